"""RPM packages, by rpmbuild with ``rpm/provision.spec`` and an archive of what is in them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from provision.run import run
from shipping.contents import ENABLED, STARTED
from shipping.deb import HOMEPAGE
from shipping.source import Source
from shipping.tree import Entry, Folder, Tree, text, under, write_tar

_SPEC = Path(__file__).resolve().parents[1] / "rpm/provision.spec"
_LICENSE = "usr/share/licenses"
# What the spec lists by itself, because it is more than a file.
_LISTED = ("/etc/oci-decorator/config.toml",)
_PRESET = "usr/lib/systemd/system-preset/80-provision.preset"
# Folders that only these packages have anything in.
_OWN = ("usr/lib/provision", "usr/share/provision", "usr/share/oci-decorator", "etc/oci-decorator")


def archive(packages: Mapping[str, Tree], source: Source, folder: Path, machine: str) -> Path:
    """Write the archive that the spec names; its path.

    Args:
        packages: The files of each package, by its name.
        source: The checkout.
        folder: Where the archive goes.
        machine: That they are for, as ``uname -m`` prints it.
    """
    top = f"provision-{source.version}-rpm"
    content: dict[str, Entry] = {}
    licence = (source.root / "LICENSE").read_text()
    for name, tree in packages.items():
        whole = {**tree, f"{_LICENSE}/{name}/LICENSE": text(licence)}
        if name == "provision":
            whole[_PRESET] = text("".join(f"enable {unit}\n" for unit in ENABLED))
        content |= under(f"{top}/{name}", whole)
        content[f"{top}/{name}.files"] = text("".join(f"{one}\n" for one in _list(whole)))
    target = folder / f"{top}.{machine}.tar.gz"
    write_tar(content, target, source.epoch)
    return target


def build(packed: Path, source: Source, folder: Path, machine: str) -> list[Path]:
    """Make the packages; their paths.

    Args:
        packed: From ``archive``.
        source: The checkout.
        folder: Where they go.
        machine: As ``uname -m`` prints it.

    Raises:
        NotFoundError: There is no rpmbuild.
        ProvisionError: It failed.
    """
    with TemporaryDirectory(prefix="rpm-") as name:
        top = Path(name)
        spec = top / _SPEC.name
        spec.write_text(spec_text())
        defines = {
            "_topdir": top,
            "_sourcedir": packed.parent,
            "_rpmfilename": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
            # Every distro of the family reads it, EL 9 too.
            "_binary_payload": "w6.xzdio",
            **({"homepage": HOMEPAGE} if HOMEPAGE else {}),
        }
        words = [word for key, value in defines.items() for word in ("--define", f"{key} {value}")]
        run(
            ["rpmbuild", "-bb", "--quiet", f"--target={machine}-linux", *words, spec],
            why="pack RPM packages",
            env={"SOURCE_DATE_EPOCH": str(source.epoch), "HOME": name},
            timeout=900.0,
        )
        made = sorted((top / "RPMS").rglob("*.rpm"))
        return [Path(shutil.copy(path, folder)) for path in made]


def spec_text() -> str:
    """Return the spec with the units' names in it."""
    written = _SPEC.read_text().replace("@ENABLED@", " ".join(ENABLED))
    return written.replace("@STARTED@", " ".join(STARTED))


def _list(tree: Tree) -> Iterator[str]:
    """Yield the lines of a package's list of files: what it owns, folders of its own too."""
    folders: set[str] = set()
    for name, entry in sorted(tree.items()):
        if f"/{name}" not in _LISTED:
            yield f"%dir /{name}" if isinstance(entry, Folder) else f"/{name}"
        parents = (str(parent) for parent in PurePosixPath(name).parents)
        folders |= {parent for parent in parents if parent.startswith(_OWN)}
    yield from (f"%dir /{folder}" for folder in sorted(folders - set(tree)))
