"""What a release is made from: the files that git knows, one version, and the commit's time."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from provision.errors import ProvisionError
from provision.run import run

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = Path("ansible/ansible_collections/oci_decorator/drivers")
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
# PEP 440 and semantic versioning agree on these, and so do dpkg and rpm.
_PLAIN = re.compile(r"\d+\.\d+\.\d+")
_GALAXY = re.compile(r"^version: (\S+)$", re.MULTILINE)
_SPEC = re.compile(r"^Version: +(\S+)$", re.MULTILINE)
_RELEASE = re.compile(r"^## (\d\S*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Source:
    """A checkout that a release is made from.

    Attributes:
        root: Its root.
        version: The one version of everything.
        epoch: Seconds since 1970 that stand for every time in the release.
        files: The files that git knows, relative to the root, sorted.
    """

    root: Path
    version: str
    epoch: int
    files: tuple[Path, ...]

    def below(self, *folders: str) -> list[Path]:
        """Return the files below some folders, relative to the root."""
        return [file for file in self.files if file.parts[0] in folders or str(file) in folders]


def versions(root: Path = ROOT) -> dict[str, str]:
    """Return the version that each file names, by the file's path.

    Raises:
        ProvisionError: A file names none.
    """
    cargo = tomllib.loads((root / "hooks/Cargo.toml").read_text())
    lock = tomllib.loads((root / "hooks/Cargo.lock").read_text())
    (locked,) = (one for one in lock["package"] if one["name"] == cargo["package"]["name"])
    return {
        "src/provision/__init__.py": _found(root, "src/provision/__init__.py", _VERSION),
        "hooks/Cargo.toml": str(cargo["package"]["version"]),
        "hooks/Cargo.lock": str(locked["version"]),
        str(COLLECTION / "galaxy.yml"): _found(root, str(COLLECTION / "galaxy.yml"), _GALAXY),
        "release/rpm/provision.spec": _found(root, "release/rpm/provision.spec", _SPEC),
        "CHANGELOG.md": _found(root, "CHANGELOG.md", _RELEASE),
    }


def one_version(root: Path = ROOT) -> str:
    """Return the version that all files agree on.

    Raises:
        ProvisionError: They do not agree, or it is no plain version.
    """
    named = versions(root)
    version = named["src/provision/__init__.py"]
    if set(named.values()) != {version} or not _PLAIN.fullmatch(version):
        raise ProvisionError(
            "The files of a release do not name one version.",
            details="\n".join(f"{file}: {name}" for file, name in named.items()),
            resolution=f"Write one version such as 1.2.3 into each; {next(iter(named))} counts.",
        )
    return version


def read_source(root: Path = ROOT) -> Source:
    """Look at a checkout; ``SOURCE_DATE_EPOCH`` of the environment replaces the commit's time.

    Raises:
        ProvisionError: It is no git checkout, or its files name several versions.
    """
    git: list[str | Path] = ["git", "-C", root, "-c", f"safe.directory={root}"]
    why = "see which files belong to the release"
    listed = run([*git, "ls-files", "-z"], why=why).stdout
    epoch = (
        os.environ.get("SOURCE_DATE_EPOCH")
        or run([*git, "log", "-1", "--format=%ct"], why=why).stdout.strip()
    )
    files = sorted(Path(name) for name in listed.split("\0") if name)
    return Source(
        root=root,
        version=one_version(root),
        epoch=int(epoch),
        files=tuple(file for file in files if (root / file).is_file()),
    )


def _found(root: Path, file: str, pattern: re.Pattern[str]) -> str:
    match = pattern.search((root / file).read_text())
    if match is None:
        raise ProvisionError(
            f"'{file}' names no version.", resolution=f"A line of it has to match {pattern.pattern}"
        )
    return match[1]
