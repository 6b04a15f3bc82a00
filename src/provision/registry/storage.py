"""Files of an image on a medium: in a folder, or in a tar archive that is never unpacked.

The medium is not trusted. Only regular files are read, under plain names below the folder or in
the archive; tar archives with other members are refused before anything of them is used. Callers
compare contents with their digests.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
import weakref
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol, cast

from provision.engine.tar_streams import BAD_TAR, BoundedTarInfo
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import WrongContentError
from provision.progress import Progress, Transfer
from provision.registry.manifests import Descriptor

_CHUNK = 1 << 20
_MOST_MEMBERS = 100_000
_LONGEST_NAME = 512
_DEEPEST = 16
# `docker save` of older engines writes such links for equal layers; they are never followed.
_LEGACY_LINK = re.compile(r"[0-9a-f]{64}/layer\.tar")
_PACKED = {b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "unzstd", b"\xfd7zXZ": "unxz"}
_DO_NOT_USE = "Don't use it. Have it made again by those whom you trust, and copied once more."


class Files(Protocol):
    """Files under plain relative names, such as ``blobs/sha256/…``."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    def size(self, path: str) -> int:
        """Return the bytes of a file."""

    def open(self, path: str) -> IO[bytes]:
        """Open a file."""


def open_files(path: Path) -> Files:
    """Return the files of a folder or of a tar archive."""
    if path.is_dir():
        return FolderFiles(path)
    return TarFiles(path)


def read_small(files: Files, path: str, limit: int) -> bytes:
    """Return the content of a file that is no longer than a limit."""
    if files.size(path) > limit:
        raise refused(files.name, f"'{path}' in it is larger than {limit} bytes")
    with files.open(path) as stream:
        return stream.read(limit)


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """Files below a folder; links are not followed."""

    folder: Path

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder)

    def size(self, path: str) -> int:
        """Return the bytes of a file."""
        with self.open(path) as stream:
            return os.fstat(stream.fileno()).st_size

    def open(self, path: str) -> IO[bytes]:
        """Open a file folder by folder: neither it nor a folder above it may be a link."""
        parts = PurePosixPath(path).parts
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in parts[:-1]:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                inner = os.open(part, flags, dir_fd=folder)
                os.close(folder)
                folder = inner
            # Opening a FIFO would block.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            handle = os.open(parts[-1], flags, dir_fd=folder)
        except FileNotFoundError as error:
            raise _missing(self.name, path) from error
        except OSError as error:
            raise refused(self.name, f"'{path}' in it can't be read ({error.strerror})") from error
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise refused(self.name, f"'{path}' in it is no regular file")
        return os.fdopen(handle, "rb")


class TarFiles:
    """Files in a tar archive (not compressed), which is scanned once and then read in place.

    It has plain files and folders only: links, devices, absolute names, two files of one name and
    the like are refused.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._members: dict[str, tarfile.TarInfo] = {}
        try:
            stream = path.open("rb")
        except FileNotFoundError as error:
            raise NotFoundError(
                f"There is no file '{path}'.", resolution="Check whether the name is right."
            ) from error
        weakref.finalize(self, stream.close)
        start = stream.read(8)
        for magic, program in _PACKED.items():
            if start.startswith(magic):
                raise ProvisionError(
                    f"'{path}' is compressed.", resolution=f"Unpack it: {program} {path}"
                )
        whole = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        try:
            self._archive = tarfile.open(fileobj=stream, mode="r:", tarinfo=BoundedTarInfo)  # noqa: SIM115 - read as long as this object lives
            for member in self._archive:
                self._take(member, whole)
        except BAD_TAR as error:
            raise refused(self.name, f"is no tar archive of an image ({error})") from error
        if not self._members:
            raise refused(self.name, "has no files")

    def size(self, path: str) -> int:
        """Return the bytes of a file."""
        return self._member(path).size

    def open(self, path: str) -> IO[bytes]:
        """Open a file."""
        return cast("IO[bytes]", self._archive.extractfile(self._member(path)))

    def _member(self, path: str) -> tarfile.TarInfo:
        if path not in self._members:
            raise _missing(self.name, path)
        return self._members[path]

    def _take(self, member: tarfile.TarInfo, whole: int) -> None:
        path = PurePosixPath(member.name)
        shown = f"'{member.name[:80]}' in it"
        if len(self._members) >= _MOST_MEMBERS:
            raise refused(self.name, f"has more than {_MOST_MEMBERS} files")
        if len(member.name) > _LONGEST_NAME or len(path.parts) > _DEEPEST:
            raise refused(self.name, f"{shown} has too long a name")
        if path.is_absolute() or ".." in path.parts or "\0" in member.name:
            raise refused(self.name, f"{shown} lies outside of it")
        if member.isdir() or (member.issym() and _LEGACY_LINK.fullmatch(str(path))):
            return
        if not member.isreg() or member.issparse():
            raise refused(self.name, f"{shown} is no plain file, but a link, device or the like")
        if str(path) in self._members:
            raise refused(self.name, f"{shown} is there twice")
        if member.offset_data + member.size > whole:
            raise refused(self.name, f"ends in the middle of {shown}")
        self._members[str(path)] = member


def refused(name: str, why: str) -> ProvisionError:
    """Return the error for content of a medium that an image can't have."""
    return ProvisionError(f"'{name}' is refused: {why}.", resolution=_DO_NOT_USE)


def _missing(name: str, path: str) -> NotFoundError:
    return NotFoundError(
        f"'{name}' has no file '{path}'.", resolution="Copy it again: it is not complete."
    )


def copy_blob(
    files: Files, path: str, descriptor: Descriptor, destination: Path, progress: Progress
) -> None:
    """Write a blob of a medium to a new file, which is gone after an error."""
    if files.size(path) != descriptor.size:
        raise WrongContentError(
            f"'{files.name}' is damaged: '{path}' in it has a different size than its index says."
        )
    try:
        sha256 = hashlib.sha256()
        with files.open(path) as source, destination.open("xb") as target:
            while chunk := source.read(_CHUNK):
                target.write(chunk)
                sha256.update(chunk)
                progress(Transfer(f"Reading {path[-71:-45]}", target.tell(), descriptor.size))
        compare_digest(files.name, descriptor.digest, f"sha256:{sha256.hexdigest()}")
    except BaseException:
        destination.unlink(missing_ok=True)
        raise


def compare_digest(name: str, expected: str, got: str) -> None:
    """Refuse content of a medium that has another digest."""
    if got != expected:
        raise WrongContentError(
            f"'{name}' is damaged: what it has under {expected} is another content.",
            resolution="Copy it again, or have it made again by those whom you trust.",
            details=f"expected {expected}\ngot      {got}",
        )
