"""Tar streams into and out of an engine: build contexts, and the content of images.

Python has extraction filters since 3.11.4, and Debian 12 has 3.11.2. These rules are also stricter:
an artifact needs no absolute links, devices, set-uid bits or owners other than root.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, cast

from provision.errors import ProvisionError
from provision.progress import Transfer, report
from provision.run import decompress

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Small enough for a processor's cache, so that decompressed bytes are written from there.
_CHUNK = 256 << 10
# Bytes that are read ahead from a stream of chunks.
_BUFFER = 1 << 20
# No set-uid bits, and only the owner may write.
_PERMISSIONS = 0o755
_PROGRESS_BYTES = 8 << 20
# The limits of Linux (PATH_MAX, NAME_MAX): longer paths can't be created, and pathlib's memory for
# the folders above a path grows with the square of their number.
_LONGEST_PATH, _LONGEST_NAME = 4096, 255
# What a member may say of itself: headers in images have some hundred bytes.
_LONGEST_HEADER = 64 << 10
# Each member has 512 bytes at least, takes memory and an inode; a driver has some hundreds.
_MOST_HEADERS = 64 << 20
# The exceptions that tarfile raises for a stream that is no tar file: besides its own, those for
# numbers in headers that are not valid or too large, for headers that are cut off, and for headers
# nested without end.
BAD_TAR = (
    tarfile.TarError,
    ValueError,
    ArithmeticError,
    LookupError,
    EOFError,
    RecursionError,
)


class TarReader:
    """The members of an untrusted tar stream, one after the other.

    tarfile parses, and Python's releases differ in what it reads, keeps and refuses. What it may
    take is therefore decided by the bytes that it reads, below it.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = _Metered(stream)
        # Reads the first member's headers.
        self._archive = tarfile.open(  # noqa: SIM115 - holds nothing but the caller's stream
            fileobj=cast("IO[bytes]", self._stream), mode="r:"
        )

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        """Yield each member; its content may be read until the next one, of a file also later."""
        while (member := self._archive.next()) is not None:
            if self._archive.pax_headers:
                # They would be kept, and added to each member.
                raise tarfile.ReadError("it has a header for all files")
            # tarfile keeps its members. Records of a few bytes take twenty times as much memory.
            member.pax_headers = {}
            self._stream.ends_headers()
            yield member
            self._stream.begins_headers()
        self._stream.ends_headers()

    def content(self, member: tarfile.TarInfo) -> IO[bytes]:
        """Open a regular file among the members."""
        return cast("IO[bytes]", self._archive.extractfile(member))


class _Metered:
    """The file that tarfile reads: it has few bytes of headers, and among them leads forward only.

    Before the content of a member, all that is read is a header, whatever tarfile takes it for.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        seekable = getattr(stream, "seekable", None)
        self._can_seek: bool = seekable is not None and seekable()
        self._position = 0
        # Of all members, and of the next one.
        self._left = _MOST_HEADERS
        self._allowance: int | None = None
        self.begins_headers()

    def begins_headers(self) -> None:
        """Limit what is read from now on."""
        self._allowance = _LONGEST_HEADER

    def ends_headers(self) -> None:
        """No longer limit it."""
        self._allowance = None

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        if self._allowance is not None and position < self._position:
            raise tarfile.ReadError("it leads backwards")
        if self._can_seek:
            self._position = self._stream.seek(position)
        while self._position < position and self._read(min(position - self._position, _CHUNK)):
            pass
        return self._position

    def read(self, size: int) -> bytes:
        if self._allowance is not None:
            if not 0 <= size <= self._allowance:
                raise tarfile.ReadError(f"it has headers of more than {_LONGEST_HEADER} bytes")
            self._allowance -= size
            self._left -= size
            if self._left < 0:
                raise tarfile.ReadError(f"it has more than {_MOST_HEADERS} bytes of headers")
        # tarfile takes less than it wanted for the end of the stream.
        data = self._read(size)
        while len(data) < size and (more := self._read(size - len(data))):
            data += more
        return data

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._position += len(data)
        return data


def readable(chunks: Iterator[bytes]) -> IO[bytes]:
    """Return a file that reads a stream of byte strings."""
    return cast("IO[bytes]", io.BufferedReader(_Chunks(chunks), _BUFFER))


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fill a buffer, as ``io.RawIOBase`` requires; return 0 at the end."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        target = memoryview(buffer)
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def pack(files: Mapping[str, bytes | Path]) -> IO[bytes]:
    """Return a tar file of regular files, sorted by path, with the same owner, date and mode."""
    # Contexts with packages have some hundred MB.
    large = any(isinstance(content, Path) for content in files.values())
    # The reader closes it.
    buffer: IO[bytes] = tempfile.TemporaryFile() if large else io.BytesIO()  # noqa: SIM115 - returned
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.mode = 0o644
            try:
                if isinstance(content, Path):
                    entry.size = content.stat().st_size
                    with content.open("rb") as stream:
                        archive.addfile(entry, stream)
                else:
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
            except ValueError as error:
                raise ProvisionError(
                    f"'{path}' can't go into the build context: {error}.",
                    resolution="Rename the file in the recipe's folder, or remove it.",
                ) from error
    buffer.seek(0)
    return buffer


class Unpacker:
    """Unpacks the members of a tar stream below a folder.

    Args:
        strip: First path part of every member, such as ``opt``; it is removed.
        ignores_others: Whether members outside of ``strip`` are ignored, because an image may
            contain a shell for people who run it. Otherwise they are refused.
    """

    def __init__(self, destination: Path, *, strip: str, ignores_others: bool = False) -> None:
        self._root = destination
        self._strip = strip
        self._ignores_others = ignores_others
        self._folders = {PurePosixPath()}
        self._files: set[PurePosixPath] = set()
        self._written = 0
        self._told = 0

    def unpack(self, stream: IO[bytes]) -> None:
        """Unpack a whole stream."""
        try:
            archive = TarReader(stream)
            for member in archive:
                self._member(archive, member)
        except BAD_TAR as error:
            raise ProvisionError(
                "The image's content could not be read as a tar stream.",
                details=str(error),
                resolution="Remove the engine's copy (docker image rm IMAGE),"
                " then build or pull it again.",
            ) from error
        report(Transfer("Unpacking", self._written, self._written))

    def _member(self, archive: TarReader, member: tarfile.TarInfo) -> None:
        if self._is_elsewhere(member):
            return
        path = self._path(member.name)
        if member.isdir():
            self._make_folders(path)
            return
        if path in self._folders or path in self._files:
            raise _refused(member.name, "is there twice")
        if member.issparse():
            # A few bytes of it could fill any disk.
            raise _refused(member.name, "is a file with holes")
        self._make_folders(path.parent)
        if member.isreg():
            self._file(archive, member, path)
        elif member.issym():
            self._symlink(member, path)
        elif member.islnk():
            self._hard_link(member, path)
        else:
            raise _refused(member.name, "is neither file, folder nor link")
        self._files.add(path)

    def _is_elsewhere(self, member: tarfile.TarInfo) -> bool:
        """Return whether a member lies outside of the artifact and is ignored.

        It is not unpacked; its bytes are read and counted like all others.
        """
        if not self._ignores_others:
            return False
        parts = _checked(member.name).parts
        return parts[0] != self._strip if parts else member.isdir()

    def _path(self, name: str) -> PurePosixPath:
        path = _checked(name)
        parts = path.parts
        if not parts or parts[0] != self._strip:
            raise _refused(name, f"does not lie in '{self._strip}'")
        return PurePosixPath(*parts[1:])

    def _make_folders(self, path: PurePosixPath) -> None:
        """Make a folder and those above it; no link can be among them, as all are made here."""
        for folder in [*reversed(path.parents), path]:
            if folder in self._files:
                raise _refused(str(folder), "is a file or link, and a folder too")
            if folder not in self._folders:
                self._folders.add(folder)
                (self._root / folder).mkdir(mode=0o755)

    def _file(self, archive: TarReader, member: tarfile.TarInfo, path: PurePosixPath) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        handle = os.open(self._root / path, flags, 0o600)
        with archive.content(member) as source, os.fdopen(handle, "wb") as target:
            shutil.copyfileobj(source, target, _CHUNK)
            os.fchmod(handle, member.mode & _PERMISSIONS)
        os.utime(self._root / path, (member.mtime, member.mtime))
        self._written += member.size
        if self._written - self._told >= _PROGRESS_BYTES:
            self._told = self._written
            report(Transfer("Unpacking", self._written))

    def _symlink(self, member: tarfile.TarInfo, path: PurePosixPath) -> None:
        target = PurePosixPath(member.linkname)
        if not member.linkname or "\0" in member.linkname:
            raise _refused(member.name, "is a link that names nothing")
        if target.is_absolute() or not _stays_inside(path.parent, target):
            raise _refused(member.name, f"points out of the artifact, to '{target}'")
        (self._root / path).symlink_to(member.linkname)

    def _hard_link(self, member: tarfile.TarInfo, path: PurePosixPath) -> None:
        target = self._path(member.linkname)
        if target not in self._files or (self._root / target).is_symlink():
            raise _refused(member.name, f"is a hard link to '{target}', which is no file before it")
        (self._root / path).hardlink_to(self._root / target)


def _checked(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if len(name) > _LONGEST_PATH or any(
        len(part.encode(errors="surrogateescape")) > _LONGEST_NAME for part in path.parts
    ):
        raise _refused(f"{name[:80]}…", "has too long a name")
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise _refused(name, "lies outside of the artifact")
    return path


def _stays_inside(folder: PurePosixPath, target: PurePosixPath) -> bool:
    """Return whether a link in a folder leads into the artifact.

    ``..`` may only stand at the beginning, where it climbs real folders. After the name of a link
    it would climb from the target of that link.
    """
    parts = list(target.parts)
    climbs = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return climbs <= len(folder.parts) and ".." not in parts[climbs:]


def _refused(name: str, why: str) -> ProvisionError:
    return ProvisionError(
        f"The image's content is refused: '{name}' {why}.",
        resolution="This is no artifact image that provision built: don't use it.",
    )


# Limit of a layer's unpacked bytes; a driver has some 1.5 GB.
LARGEST_CONTENT = 16 << 30


@contextmanager
def layer_content(stored: IO[bytes], *, is_gzip: bool) -> Iterator[IO[bytes]]:
    """Yield the tar stream in a layer, which another thread decompresses ahead of its reader.

    zlib and the kernel let other threads run while they work, so two processors share the work. At
    the end, the bytes after the archive's end are read, which must be valid too.
    """
    reads, writes = os.pipe()

    def fill() -> None:
        left = LARGEST_CONTENT
        # Its reader may stop early.
        with suppress(BrokenPipeError), os.fdopen(writes, "wb") as pipe:
            source = gzip.GzipFile(fileobj=stored) if is_gzip else stored
            try:
                while data := source.read(_CHUNK):
                    left -= len(data)
                    if left < 0:
                        raise _too_much()
                    pipe.write(data)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise _damaged(str(error)) from error

    with ThreadPoolExecutor(1) as pool:
        filled = pool.submit(fill)
        try:
            with os.fdopen(reads, "rb") as content:
                yield content
                while content.read(_CHUNK):
                    pass
        finally:
            # Why a stream ends early, its reader does not know.
            filled.result()


def _too_much() -> ProvisionError:
    return ProvisionError(
        f"A layer of the image unpacks to more than {LARGEST_CONTENT} bytes.",
        resolution="This is no artifact image that provision built: don't use it.",
    )


def _damaged(details: str) -> ProvisionError:
    return ProvisionError(
        "A layer of the image can't be decompressed.",
        resolution="Have the image pushed again by those who build it: provision registry push"
        " IMAGE",
        details=details or None,
    )


def unzstd(file: Path, name: str) -> Path:
    """Decompress a layer into a file beside it, of which ``name`` is the image."""
    target = file.with_name("plain")
    try:
        decompress(file, target, limit=LARGEST_CONTENT, why=f"unpack a layer of {name}")
    except ValueError as error:
        raise _damaged(str(error)) from error
    except OSError as error:
        raise _too_much() if error.errno == errno.EFBIG else error from error
    return target
