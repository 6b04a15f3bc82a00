"""The inputs and contents of an archive of wheels for a host. Pure."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from pathlib import Path
from typing import Any

# The parts of a checkout that go into the wheel: pyproject.toml, setup.py.
PARTS = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "constraints.txt",
    "src",
    "docs",
    "driver_images",
    "templates",
)
CONSTRAINTS = "constraints.txt"
# Where setup.py installs it, relative to the root of the environment.
_INSTALLED = f"share/provision/{CONSTRAINTS}"
_OLDEST_GLIBC = 5
_FORMAT = b"2"


class BundleError(ValueError):
    """A source or an archive that can't be used, with the reason and what to do."""


def source_files(source: Path) -> list[Path]:
    """Return the files that determine the wheel of provision."""
    if source.is_file():
        return [source]
    found = [p for part in PARTS for p in _below(source / part)]
    return [
        path for path in found if "__pycache__" not in path.parts and ".egg-info" not in str(path)
    ]


def constraints_of(source: Path) -> str:
    """Return the text of the constraints that belong to a source.

    Args:
        source: A checkout of the project, or a wheel of provision.

    Raises:
        BundleError: It has none, or is neither.
    """
    if (source / "pyproject.toml").is_file():
        path = source / CONSTRAINTS
        if not path.is_file():
            raise BundleError(f"'{source}' has no {CONSTRAINTS}, which a checkout of provision has")
        return path.read_text(encoding="utf-8")
    if not source.is_file():
        raise BundleError(f"'{source}' is neither a wheel nor a checkout of provision")
    try:
        with zipfile.ZipFile(source) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(f"/{_INSTALLED}")]
            if names:
                return wheel.read(names[0]).decode()
    except zipfile.BadZipFile:
        raise BundleError(f"'{source}' is no wheel") from None
    raise BundleError(
        f"'{source}' has no {CONSTRAINTS}: it is no wheel of provision, or an old one"
    )


def inputs_digest(
    source: Path, constraints: str, wheelhouse: Path | None, python: dict[str, Any]
) -> str:
    """Return the checksum of all inputs of an archive, which names the archive.

    Args:
        source: A checkout of the project, or a wheel of provision.
        constraints: The text of the constraints.
        wheelhouse: The folder with the wheels of others; None: the package index.
        python: The host's Python, with ``version``, ``machine`` and ``libc``.
    """
    total = hashlib.sha256(_FORMAT)
    total.update(repr([python["version"][:2], python["machine"], python["libc"]]).encode())
    total.update(hashlib.sha256(constraints.encode()).digest())
    for path in source_files(source):
        name = path.name if path == source else str(path.relative_to(source))
        total.update(f"{name}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    for path in sorted(wheelhouse.glob("*.whl")) if wheelhouse else ():
        total.update(f"{path.name}\0{sha256_of(path)}\0".encode())
    return total.hexdigest()


def contents_digest(checksums: dict[str, str]) -> str:
    """Return the checksum of an archive's contents, which names its environment.

    Args:
        checksums: The sha256 of each wheel, by its file name.
    """
    lines = [f"{name} {checksum}\n" for name, checksum in sorted(checksums.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def checksums_in(archive: Path) -> dict[str, str]:
    """Return the sha256 of each wheel in an archive, by its file name.

    Raises:
        BundleError: It is no archive.
    """
    found: dict[str, str] = {}
    try:
        with tarfile.open(archive, "r:") as opened:
            for member in opened:
                content = opened.extractfile(member)
                if content is not None:
                    found[Path(member.name).name] = hashlib.sha256(content.read()).hexdigest()
    except (tarfile.TarError, OSError) as error:
        raise BundleError(f"'{archive}' is no archive of wheels: {error}") from error
    return found


def sha256_of(path: Path) -> str:
    """Return the checksum of a file."""
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def platforms(python: dict[str, Any]) -> list[str]:
    """Return the platforms whose wheels run with a host's Python, best first.

    Source: https://peps.python.org/pep-0600/
    """
    kind, version = python["libc"]
    machine = python["machine"]
    if kind != "glibc":
        return []
    newest = int(version.split(".")[1])
    known = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]
    return [*known, f"manylinux2014_{machine}"]


def download_words(
    constraints: Path, draft: Path, wheelhouse: Path | None, python: dict[str, Any]
) -> list[str]:
    """Return pip's command line that gathers exactly what the constraints name."""
    version = ".".join(map(str, python["version"][:2]))
    words = ["download", "--require-hashes", "--no-deps", "--only-binary=:all:"]
    words += [f"--python-version={version}", f"--dest={draft}"]
    words += [f"--platform={name}" for name in platforms(python)]
    if wheelhouse is not None:
        words += ["--no-index", f"--find-links={wheelhouse}"]
    return [*words, "--requirement", str(constraints)]


def _below(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
