"""Flatcar's developer container as an image: downloaded, verified, and imported from its disk.

Nothing is mounted, and no loop device is needed: the partition is cut out of the disk while it is
unpacked, and debugfs copies its files.
"""

from __future__ import annotations

import bz2
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from provision.build.base_image import BaseRequest, image_of_tree
from provision.distros.debian.apt_sources import binary_keyring
from provision.distros.kernel_tree import release_address
from provision.engine.docker_api import Engine
from provision.engine.scratch import scratch
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.fetch import download_signed
from provision.files import in_root, lock
from provision.host.facts import read_facts
from provision.pin import BasePin
from provision.pipeline.workspace import Settings
from provision.progress import Note, Progress, silent
from provision.run import run

# https://uefi.org/specs/UEFI/2.10/05_GUID_Partition_Table_Format.html
_SECTOR = 512
_HEADER = struct.Struct("<8s4I4Q16sQ3I")
_MAGIC = b"EFI PART"
_ENTRY = struct.Struct("<16s16sQQQ72s")
# The protective MBR and the header come before any table.
_FIRST_TABLE = 2
_MAX_ENTRIES = 1024
_ROOT = "ROOT"
# The magic number of ext2 to ext4, and its offset in the partition.
# Source: https://docs.kernel.org/filesystems/ext4/super.html
_EXT_AT, _EXT = 0x438, b"\x53\xef"
_CHUNK = 1 << 20
_COPY_SECONDS = 3600.0
_AGAIN = "It may be damaged: remove it from provision's cache and try again."


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a disk: its name, and its offset and size in bytes."""

    name: str
    offset: int
    size: int


def partitions(disk: IO[bytes]) -> list[Partition]:
    """Return the partitions in the GPT of a disk; read the stream up to the end of the table.

    Raises:
        ProvisionError: The disk has no valid GPT.
    """
    head = disk.read(_FIRST_TABLE * _SECTOR)
    if len(head) < _FIRST_TABLE * _SECTOR or head[_SECTOR : _SECTOR + 8] != _MAGIC:
        raise ProvisionError("The developer container is no disk with a GPT.", resolution=_AGAIN)
    fields = _HEADER.unpack_from(head, _SECTOR)
    table, count, size = fields[10], fields[11], fields[12]
    if table < _FIRST_TABLE or count > _MAX_ENTRIES or size < _ENTRY.size:
        raise ProvisionError(
            "The partition table of the developer container is not valid.", resolution=_AGAIN
        )
    _skip(disk, (table - _FIRST_TABLE) * _SECTOR)
    found = []
    for _ in range(count):
        entry = disk.read(size)
        if len(entry) < size:
            raise ProvisionError(
                "The developer container ends within its partition table.", resolution=_AGAIN
            )
        kind, _guid, first, last, _flags, name = _ENTRY.unpack_from(entry)
        if any(kind):
            text = name.decode("utf-16-le", "replace").rstrip("\0")
            found.append(Partition(text, first * _SECTOR, (last - first + 1) * _SECTOR))
    return found


def root_partition(found: Iterable[Partition]) -> Partition:
    """Return the partition with the root of the container: the one named ROOT, else the largest.

    Raises:
        ProvisionError: There is no partition.
    """
    by_size = sorted(found, key=lambda partition: partition.size)
    if not by_size:
        raise ProvisionError("The developer container has no partition.", resolution=_AGAIN)
    named = [partition for partition in by_size if partition.name == _ROOT]
    return (named or by_size)[-1]


def make_developer_image(
    engine: Engine,
    request: BaseRequest,
    *,
    packed: Path,
    state: Path,
    progress: Progress = silent,
) -> BasePin:
    """Make an image of a developer container.

    Args:
        engine: The engine that gets the image.
        request: Names the image.
        packed: ``flatcar_developer_container.bin.bz2``, whose signature was verified.
        state: Folder for work in progress, which takes some 6 GB.
        progress: Receives the progress.

    Raises:
        NotFoundError: debugfs is not installed.
        ProvisionError: The file is damaged, or has an unknown layout.
    """
    with scratch(state, "developer", progress=progress) as folder:
        progress(Note(f"Unpacking {packed.name}"))
        disk, tree = folder / "root.img", folder / "root"
        with bz2.open(packed) as stream:
            _cut(stream, disk)
        progress(Note("Copying the files of the developer container"))
        _copy_files(disk, tree)
        disk.unlink()
        progress(Note(f"Importing {request.name}"))
        return image_of_tree(engine, tree, request, "Flatcar's developer container")


def _copy_files(disk: Path, tree: Path) -> None:
    """Copy the files of a file system into a new folder; errors as ``make_developer_image``."""
    tree.mkdir()
    done = run(
        ["debugfs", "-R", f"rdump / {tree}", disk],
        why="read the developer container's file system",
        timeout=_COPY_SECONDS,
    )
    if not (tree / "usr").is_dir():
        raise ProvisionError(
            "The file system of the developer container could not be read.",
            resolution=_AGAIN,
            details=done.stderr.strip() or None,
        )


def _cut(disk: IO[bytes], target: Path) -> None:
    """Copy the root partition; write blocks of zeros as holes."""
    found = partitions(disk)
    root = root_partition(found)
    _skip(disk, root.offset - disk.tell())
    with target.open("wb") as stream:
        left = root.size
        while left and (block := disk.read(min(_CHUNK, left))):
            left -= len(block)
            if any(block):
                stream.write(block)
            else:
                stream.seek(len(block), 1)
        stream.truncate(root.size)
    with target.open("rb") as stream:
        stream.seek(_EXT_AT)
        magic = stream.read(len(_EXT))
    if left or magic != _EXT:
        raise ProvisionError(
            f"The partition '{root.name}' of the developer container is no whole ext4 file system.",
            resolution="Report it with the version of Flatcar: another layout is not known.",
        )


def _skip(disk: IO[bytes], count: int) -> None:
    """Skip bytes of a stream that is unpacked as it is read."""
    if count < 0:
        raise ProvisionError(
            "The partitions of the developer container overlap their table.", resolution=_AGAIN
        )
    while count and (block := disk.read(min(_CHUNK, count))):
        count -= len(block)


FLATCAR = "flatcar"
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+){0,3}")
_FILE = "flatcar_developer_container.bin.bz2"
_KEYRING = "/etc/provision/keys/flatcar.asc"
# Source: https://www.flatcar.org/security/image-signing-key/
_FINGERPRINT = "F88CFEDEFF29A5B4D9523864E25D9AED0593B34A"


def developer_request(settings: Settings, distro: str | None) -> BaseRequest | None:
    """Return the request for a developer container; None: the distro is not Flatcar.

    Args:
        settings: The host.
        distro: ``flatcar:4081.2.0``; None: the host's.

    Raises:
        UsageError: The version is missing, or not valid.
    """
    facts = read_facts(settings.root)
    named = distro or f"{facts.distro.id}:{facts.distro.version}"
    name, _, version = named.partition(":")
    if name != FLATCAR:
        return None
    # It becomes part of an address and of a file's name.
    if not _VERSION.fullmatch(version):
        what = f"'{version}' is no version of Flatcar" if version else "Its version is missing"
        raise UsageError(
            f"{what}.",
            resolution="Give it as os-release has it: provision base flatcar:4081.2.0",
        )
    return BaseRequest(
        distro=FLATCAR,
        version=version,
        codename=FLATCAR,
        architecture=facts.arch,
        reference=f"flatcar-developer:{version}",
    )


def ensure_developer_image(
    settings: Settings,
    engine: Engine,
    request: BaseRequest,
    *,
    replace: bool = False,
    progress: Progress = silent,
) -> tuple[BasePin, bool]:
    """Return the developer container as an image, and whether it was made.

    Raises:
        NotFoundError: There is no such release, or the key that signs them is not on the host.
        SignatureError: The file is not signed by that key.
        ProvisionError: A download failed, or the file is damaged.
    """
    before = engine.image(request.name)
    if before is not None and not replace:
        return BasePin(image=request.name, digest=before.id), False
    # The download has one name: while one process checks its signature, none may write to it.
    with lock(settings.state / "locks" / "developer-containers"):
        image = engine.image(request.name)
        if image is not None and (before is None or image.id != before.id):
            # The process that this one waited for made it.
            return BasePin(image=request.name, digest=image.id), False
        return _made(settings, engine, request, progress), True


def _made(settings: Settings, engine: Engine, request: BaseRequest, progress: Progress) -> BasePin:
    archive = settings.config.distro(FLATCAR).archive
    place = release_address(FLATCAR, request.version, request.architecture, mirror=archive.mirror)
    packed = settings.state / "developer-containers" / f"{request.version}.bin.bz2"
    keyring = _keyring(settings, archive.keyring or _KEYRING)
    download_signed(f"{place}/{_FILE}", keyring=keyring, destination=packed, progress=progress)
    pin = make_developer_image(
        engine, request, packed=packed, state=settings.state, progress=progress
    )
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
