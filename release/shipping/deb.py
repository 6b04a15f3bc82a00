"""Debian packages, by dpkg-deb from a tree: nothing is compiled, so that debhelper has no work.

Sources: deb-control(5), deb-src-control(5) for the fields; Debian Policy, chapters 4, 6 and 12.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from provision.run import run
from shipping.source import Source
from shipping.tree import Entry, File, Tree, compressed, size, text, write

# The publisher of packages says who answers for them, and where: make dist HOMEPAGE=… MAINTAINER=…
MAINTAINER = os.environ.get("MAINTAINER") or "The authors of provision and oci-decorator"
HOMEPAGE = os.environ.get("HOMEPAGE")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_SCRIPTS = Path(__file__).resolve().parents[1] / "debian"
_PLACEHOLDER = re.compile(r"@([A-Z_]+)@")


@dataclass(frozen=True, slots=True)
class Package:
    """A binary package.

    Attributes:
        name: Its name.
        summary: Half a sentence, for lists.
        description: Paragraphs, with an empty line between them.
        tree: Its files.
        relations: ``Depends``, ``Recommends`` and the like.
        machine: As ``uname -m`` prints it; None: it suits every machine.
        conffiles: Which of its files below /etc an admin may change, so that dpkg asks.
        values: What stands for ``@NAME@`` in its maintainer scripts, ``release/debian/NAME.*``.
    """

    name: str
    summary: str
    description: str
    tree: Tree
    relations: Mapping[str, Sequence[str]]
    machine: str | None
    conffiles: Sequence[str] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """What dpkg calls its machine."""
        return "all" if self.machine is None else architecture(self.machine)


def architecture(machine: str) -> str:
    """Return what dpkg calls a machine."""
    return _ARCHITECTURES.get(machine, machine)


def build(package: Package, source: Source, folder: Path) -> Path:
    """Write a package into a folder; its path.

    Raises:
        ProvisionError: dpkg-deb refused it.
    """
    tree = {**package.tree, **_documents(package, source)}
    target = folder / f"{package.name}_{source.version}_{package.architecture}.deb"
    with TemporaryDirectory(prefix="deb-") as name:
        root = Path(name) / "root"
        write({**tree, **_control(package, source, tree)}, root, source.epoch)
        words: list[str | Path] = [
            "--root-owner-group",
            "-Zxz",
            "--threads-max=1",
            "--build",
            root,
            target,
        ]
        epoch = {"SOURCE_DATE_EPOCH": str(source.epoch)}
        run(["dpkg-deb", *words], why="pack Debian packages", env=epoch, timeout=900.0)
    return target


def _control(package: Package, source: Source, tree: Tree) -> dict[str, Entry]:
    fields = {
        "Package": package.name,
        "Source": "provision",
        "Version": source.version,
        "Architecture": package.architecture,
        "Maintainer": MAINTAINER,
        "Installed-Size": str(size(tree) // 1024 + 1),
        **{name: ", ".join(values) for name, values in package.relations.items()},
        "Section": "admin",
        "Priority": "optional",
        **({"Homepage": HOMEPAGE} if HOMEPAGE else {}),
        "Description": "\n".join([package.summary, *_folded(package.description)]),
    }
    lines = "".join(f"{name}: {value}\n" for name, value in fields.items())
    sums = "".join(
        f"{hashlib.md5(entry.content, usedforsecurity=False).hexdigest()}  {name}\n"
        for name, entry in sorted(tree.items())
        if isinstance(entry, File)
    )
    files: dict[str, Entry] = {"DEBIAN/control": text(lines), "DEBIAN/md5sums": text(sums)}
    if package.conffiles:
        files["DEBIAN/conffiles"] = text("".join(f"/{one}\n" for one in package.conffiles))
    for step in ("postinst", "prerm", "postrm"):
        path = _SCRIPTS / f"{package.name}.{step}"
        if path.is_file():
            content = _PLACEHOLDER.sub(lambda found: package.values[found[1]], path.read_text())
            files[f"DEBIAN/{step}"] = text(content, program=True)
    return files


def _documents(package: Package, source: Source) -> dict[str, Entry]:
    """Return what Debian wants in /usr/share/doc."""
    when = format_datetime(datetime.fromtimestamp(source.epoch, UTC))
    # Native: there is no Debian revision, whose changes a changelog of its own would have.
    entry = (
        f"provision ({source.version}) unstable; urgency=medium\n\n"
        f"  * Release {source.version}; CHANGELOG.md of the source says what changed.\n\n"
        f" -- {MAINTAINER}  {when}\n"
    )
    folder = f"usr/share/doc/{package.name}"
    overrides = _SCRIPTS / f"{package.name}.lintian-overrides"
    known: dict[str, Entry] = {}
    if overrides.is_file():
        known[f"usr/share/lintian/overrides/{package.name}"] = text(overrides.read_text())
    return known | {
        f"{folder}/changelog.gz": compressed(entry),
        f"{folder}/copyright": text((_SCRIPTS / "copyright").read_text()),
    }


def _folded(description: str) -> list[str]:
    return [f" {line}" if line.strip() else " ." for line in description.strip().splitlines()]
