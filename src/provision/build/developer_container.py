"""Flatcar's developer container as an image: downloaded, verified, and imported from its disk.

Nothing is mounted, and no loop device is needed: sfdisk reads the partition table, and debugfs
copies the files.
"""

from __future__ import annotations

import bz2
import json
import re
from pathlib import Path

from provision.build.base_image import BaseRequest, image_of_tree
from provision.build.workspace import Settings
from provision.distros.debian.suites import binary_keyring
from provision.distros.kernel_tree import release_address
from provision.engine.scratch import scratch
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.fetch import download_signed
from provision.files import in_root, lock
from provision.pin import BasePin
from provision.progress import Note, report
from provision.run import run

_ROOT = "ROOT"
_CHUNK = 1 << 20
_COPY_SECONDS = 3600.0
_AGAIN = "It may be damaged: remove it from provision's cache and try again."


def _unpack(packed: Path, disk: Path) -> None:
    """Unpack a disk; write blocks of zeros as holes."""
    with bz2.open(packed) as source, disk.open("wb") as target:
        while block := source.read(_CHUNK):
            if any(block):
                target.write(block)
            else:
                target.seek(len(block), 1)
        target.truncate()


def copy_root(disk: Path, tree: Path) -> None:
    """Copy the files of a disk's root partition into a new folder.

    It is the partition called ROOT, else the largest.
    """
    why = "read the developer container's disk"
    table = json.loads(run(["sfdisk", "--json", disk], why=why).stdout)["partitiontable"]
    found = sorted(table.get("partitions", []), key=lambda each: each["size"])
    roots = [each for each in found if each.get("name") == _ROOT] or found
    if not roots:
        raise ProvisionError("The developer container has no partition.", resolution=_AGAIN)
    offset = roots[-1]["start"] * table["sectorsize"]
    tree.mkdir()
    # unix_io of e2fsprogs takes options behind the name.
    argv = ["debugfs", "-R", f"rdump / {tree}", f"{disk}?offset={offset}"]
    done = run(argv, why=why, timeout=_COPY_SECONDS)
    if not (tree / "usr").is_dir():
        raise ProvisionError(
            "The file system of the developer container could not be read.",
            resolution=_AGAIN,
            details=done.stderr.strip() or None,
        )


FLATCAR = "flatcar"
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+){0,3}")
_FILE = "flatcar_developer_container.bin.bz2"
_KEYRING = "/etc/provision/keys/flatcar.asc"
# Source: https://www.flatcar.org/security/image-signing-key/
_FINGERPRINT = "F88CFEDEFF29A5B4D9523864E25D9AED0593B34A"


def ensure_developer_image(settings: Settings, request: BaseRequest) -> BasePin:
    """Return the developer container of a release as an image, which is made if it is missing."""
    # It becomes part of an address and of a file's name.
    if not _VERSION.fullmatch(request.version):
        raise UsageError(
            f"'{request.version}' is no version of Flatcar.",
            resolution="Give it as os-release has it: --distro flatcar:4081.2.0",
        )
    archive = settings.config.distro(FLATCAR).archive
    # The download has one name: while one process checks its signature, none may write to it.
    with lock(settings.state / "locks" / "developer-containers"):
        engine = settings.engine()
        image = engine.image(request.name)
        if image is not None:
            return BasePin(image=request.name, digest=image.id)
        place = release_address(
            FLATCAR, request.version, request.architecture, mirror=archive.mirror
        )
        packed = settings.state / "developer-containers" / f"{request.version}.bin.bz2"
        keyring = _keyring(settings, archive.keyring or _KEYRING)
        download_signed(f"{place}/{_FILE}", keyring=keyring, destination=packed)
        # Some 6 GB.
        with scratch(settings.state, "developer") as folder:
            report(Note(f"Unpacking {packed.name}"))
            disk, tree = folder / "disk", folder / "root"
            _unpack(packed, disk)
            report(Note("Copying the files of the developer container"))
            copy_root(disk, tree)
            disk.unlink()
            report(Note(f"Importing {request.name}"))
            pin = image_of_tree(engine, tree, request, "Flatcar's developer container")
        # Half a gigabyte, which is not needed once the image exists.
        packed.unlink()
        return pin


def _keyring(settings: Settings, name: str) -> Path:
    path = in_root(settings.root, name)
    if not path.is_file():
        raise NotFoundError(
            f"The key that signs Flatcar's releases is not there: '{path}'.",
            resolution="Download it from https://www.flatcar.org/security/image-signing-key/,"
            f" compare its fingerprint, and put it there: gpg --show-keys {path} has to say"
            f" {_FINGERPRINT}. Another file can be named as 'keyring' of [distros.flatcar.archive]"
            " in /etc/provision/provision.toml.",
        )
    folder = settings.state / "archive/keys"
    folder.mkdir(parents=True, exist_ok=True)
    return binary_keyring(path, folder)
