"""Unpacks a driver's source into the current folder.

Runs in the build container, on Python's standard library (3.9 or newer):
``python3 step.py unpack ARCHIVE STRIP`` takes a tar file, compressed in any way that Python knows,
a zip file or a package of Debian's kind (``.deb``), and drops the first STRIP parts of every path.
What would leave the folder is refused.
"""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

_EXECUTABLE = 0o100
_MODE_SHIFT = 16
# A package of Debian's kind is an archive of ar: deb(5).
_AR = b"!<arch>\n"
_AR_HEADER = 60
_AR_END = b"`\n"
_COPIED = 1 << 20
# What the library raises besides its own: for data that is damaged, numbers in headers that are
# none or too large, and of a zip file a password, or a compression that Python lacks.
_DAMAGED = (
    EOFError,
    ValueError,
    ArithmeticError,
    RuntimeError,
    lzma.LZMAError,
    zipfile.BadZipFile,
    zlib.error,
)


class UnpackError(Exception):
    """Why an archive can't be unpacked."""


def unpack(archive: Path, target: Path, strip: int) -> int:
    """Unpack an archive and return how many files it had.

    Args:
        archive: The file.
        target: The folder that gets its content.
        strip: How many leading parts every path loses; what has no more is left out.

    Raises:
        UnpackError: It is neither a tar file, a zip file nor a package, or damaged, or holds
            nothing, or a path leads out.
    """
    try:
        if zipfile.is_zipfile(archive):
            count = _unzip(archive, target, strip)
        else:
            with open_tar(archive) as tar:
                count = _untar(tar, target, strip)
    except tarfile.ReadError as error:
        raise UnpackError(f"neither a tar file, a zip file nor a package: {error}") from error
    except _DAMAGED as error:
        raise UnpackError(f"damaged, cut off or locked: {error}") from error
    if count == 0:
        raise UnpackError(f"no file is left after dropping {strip} leading parts of every path")
    return count


@contextmanager
def open_tar(archive: Path) -> Iterator[tarfile.TarFile]:
    """Open a tar file, or the one that a package of Debian's kind has its files in.

    Raises:
        tarfile.ReadError: It is neither.
        UnpackError: It is a package, and damaged, or compressed in a way that is not known here.
    """
    with archive.open("rb") as stream:
        if stream.read(len(_AR)) != _AR:
            with tarfile.open(archive) as tar:
                yield tar
            return
        with tempfile.TemporaryFile() as copy:
            name = _data_of_package(stream, copy)
            copy.seek(0)
            if name.endswith(".zst"):
                with _zstd(copy) as tar:
                    yield tar
            else:
                with tarfile.open(fileobj=copy) as tar:
                    yield tar


def _data_of_package(stream: BinaryIO, copy: BinaryIO) -> str:
    """Copy the member ``data.tar`` of a package, from behind its first bytes; returns its name."""
    while header := stream.read(_AR_HEADER):
        size = int(header[48:58]) if header.endswith(_AR_END) else -1
        if len(header) < _AR_HEADER or size < 0:
            raise UnpackError("damaged or cut off: a member of the package has no header")
        # Some write a slash behind the name, as ar of System V does.
        name = header[:16].decode("ascii", "replace").rstrip(" ").rstrip("/")
        if not name.startswith("data.tar"):
            stream.seek(size + size % 2, os.SEEK_CUR)
            continue
        while size > 0:
            chunk = stream.read(min(size, _COPIED))
            if not chunk:
                raise UnpackError("damaged or cut off: the package ends within its files")
            copy.write(chunk)
            size -= len(chunk)
        return name
    raise UnpackError("an archive of ar without a data.tar: no package")


@contextmanager
def _zstd(copy: BinaryIO) -> Iterator[tarfile.TarFile]:
    """Open a tar file that zstd compressed, which Python before 3.14 can't read by itself."""
    program = shutil.which("zstd")
    if program is None:
        raise UnpackError(
            "its files are compressed with zstd, and there is no such program here: add 'zstd' to"
            " the packages of the build in driver.toml"
        )
    # Its end comes with that of its input or of its reader, and the build has a time limit.
    with (
        subprocess.Popen(
            [program, "--decompress", "--stdout"], stdin=copy, stdout=subprocess.PIPE
        ) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as tar,
    ):
        yield tar


def _untar(tar: tarfile.TarFile, target: Path, strip: int) -> int:
    count = 0
    top = target.resolve()
    for member in tar:
        name = _stripped(member.name, strip)
        if name is None:
            continue
        _make_way(top, name)
        if member.islnk():
            linked = _stripped(member.linkname, strip)
            if linked is None:
                raise UnpackError(f"'{member.name}' is a link to '{member.linkname}'")
            _check_folder(top, linked)
            member.linkname = str(linked)
        elif member.issym():
            _check_link(name, member.linkname)
        elif not (member.isreg() or member.isdir()):
            raise UnpackError(f"'{member.name}' is neither file, folder nor link")
        member.name = str(name)
        member.mode = 0o755 if member.isdir() or member.mode & _EXECUTABLE else 0o644
        # Python 3.12 and later ask for a filter; what it checks was checked above.
        if hasattr(tarfile, "fully_trusted_filter"):
            tar.extract(member, target, filter="fully_trusted")
        else:
            tar.extract(member, target)
        count += not member.isdir()
    return count


def _unzip(archive: Path, target: Path, strip: int) -> int:
    count = 0
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            name = _stripped(member.filename, strip)
            if name is None or member.is_dir():
                continue
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with file.open(member) as content, path.open("wb") as stream:
                shutil.copyfileobj(content, stream)
            path.chmod(0o755 if (member.external_attr >> _MODE_SHIFT) & _EXECUTABLE else 0o644)
            count += 1
    return count


def _stripped(name: str, strip: int) -> PurePosixPath | None:
    """Return a member's path without its leading parts; None where nothing is left."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise UnpackError(f"'{name}' leads out of the source")
    parts = path.parts[strip:]
    return PurePosixPath(*parts) if parts else None


def _make_way(top: Path, name: PurePosixPath) -> None:
    """Remove a link that a path would be written through; refuse one that its folder is below."""
    _check_folder(top, name)
    if (top / name).is_symlink():
        (top / name).unlink()


def _check_folder(top: Path, name: PurePosixPath) -> None:
    """Refuse a path below links that each stay in the source and together lead out."""
    folder = (top / name).parent.resolve()
    if folder != top and top not in folder.parents:
        raise UnpackError(f"'{name}' leads out of the source, by links that come before it")


def _check_link(name: PurePosixPath, target: str) -> None:
    path = PurePosixPath(target)
    climbs = sum(part == ".." for part in path.parts)
    if path.is_absolute() or climbs >= len(name.parts):
        raise UnpackError(f"'{name}' is a link out of the source, to '{target}'")


def main(arguments: Sequence[str], _tool: object) -> None:
    """Run the program: archive, parts to drop."""
    archive, strip = Path(arguments[0]), int(arguments[1])
    try:
        count = unpack(archive, Path(), strip)
    except UnpackError as error:
        raise UnpackError(f"{archive.name}: {error}") from error
    sys.stdout.write(f"unpack: {count} files\n")
