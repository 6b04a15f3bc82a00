"""Opens NVIDIA's self-extracting .run files without running them: head, payload, and members.

Such a file is a shell script with a compressed tar file behind it. Its head says ``skip=N``: the
tar file begins with line N. The paths and links in the tar file are checked before they are used.
Source: https://makeself.io/, and the heads of NVIDIA's own files.
"""

from __future__ import annotations

import gzip
import lzma
import posixpath
import re
import signal
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from provision.errors import ProvisionError
from provision.run import find_program, run
from provision.sources.nvidia_lists import inside

# The largest known head has some 40 kB.
_MAX_HEAD = 4 << 20
# Bytes of the tar file inside; today's have 1.3 GB.
MAX_PAYLOAD = 8 << 30
_CHUNK = 1 << 20
_LIMITED = 'ulimit -f "$1" && shift && exec "$@"'
_ZSTD_SECONDS = 900.0
_SKIP = re.compile(rb"^skip=\"?([0-9]{1,6})\"?\s*$")
_FIELD = re.compile(rb"^(targetdir|pkg_version|label)=\"?([^\"\n]{0,200})\"?\s*$")
_FOLDER = re.compile(r"^NVIDIA-Linux-(?P<arch>[a-z0-9_]+)-(?P<version>[0-9][0-9.]*[0-9])")
_AGAIN = "Download it again, and compare its sha256 with the one that NVIDIA publishes."
_MAX_MEMBERS = 200_000
# As many links as are followed from one file to the next.
_MOST_LINKS = 8


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a file.

    Attributes:
        offset: Offset of the compressed tar file, in bytes.
    """

    offset: int
    architecture: str | None
    version: str | None


def read_head(stream: IO[bytes], name: str) -> Head:
    """Read the head of a self-extracting file."""
    first = stream.read(512)
    if re.match(rb"\s*<(!doctype|html|\?xml)", first, re.IGNORECASE):
        raise ProvisionError(
            f"'{name}' is a web page, and no .run file.",
            resolution="A proxy or the server answered with a page in its place: open the address"
            " in a browser and look what it says.",
        )
    if not first.startswith(b"#!"):
        raise ProvisionError(
            f"'{name}' is no .run file: it doesn't begin with '#!'.", resolution=_AGAIN
        )
    stream.seek(0)
    fields: dict[str, str] = {}
    skip = 0
    for number in range(1, _MAX_HEAD):
        if number == skip:
            return _head(stream.tell(), fields)
        line = stream.readline(_MAX_HEAD)
        if not line.endswith(b"\n") or stream.tell() > _MAX_HEAD:
            break
        if match := _SKIP.match(line):
            skip = int(match[1])
        if match := _FIELD.match(line):
            fields.setdefault(match[1].decode(), match[2].decode(errors="replace"))
    said = f"it ends before line {skip}, where its content begins" if skip else "no 'skip=' in it"
    raise ProvisionError(f"'{name}' is no whole .run file: {said}.", resolution=_AGAIN)


def _head(offset: int, fields: dict[str, str]) -> Head:
    folder = _FOLDER.match(fields.get("targetdir", "").removeprefix("./"))
    architecture = folder["arch"] if folder else None
    version = folder["version"] if folder else fields.get("pkg_version") or None
    return Head(offset, architecture, version)


def require(head: Head, *, version: str, architecture: str, name: str) -> None:
    """Refuse a file of another driver version or for another architecture."""
    for what, found, expected in (
        ("for the architecture", head.architecture, architecture),
        ("of the version", head.version, version),
    ):
        if found is not None and found != expected:
            raise ProvisionError(
                f"'{name}' is {what} {found}, not {expected}.",
                resolution="Correct 'url' (its {version} and {arch}), 'version' or 'architecture'"
                " of the release in driver.toml.",
            )


def unpack_payload(path: Path, head: Head, target: Path, *, limit: int = MAX_PAYLOAD) -> None:
    """Write the tar file inside a self-extracting file."""
    with path.open("rb") as stream:
        stream.seek(head.offset)
        magic = stream.read(6)
        stream.seek(head.offset)
        if magic.startswith(b"\x28\xb5\x2f\xfd"):
            _unzstd(stream, target, path.name, limit)
            return
        try:
            _copy(_plain(stream, magic, path.name), target, path.name, limit)
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise ProvisionError(
                f"'{path.name}' is damaged or cut off: {error}.", resolution=_AGAIN
            ) from error


def _plain(stream: IO[bytes], magic: bytes, name: str) -> IO[bytes] | gzip.GzipFile:
    if magic == b"\xfd7zXZ\x00":
        return lzma.open(stream)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=stream)
    raise ProvisionError(
        f"The content of '{name}' is compressed in an unknown way (it begins with {magic.hex()}).",
        resolution="xz, zstd and gzip are known. " + _AGAIN,
    )


def _copy(source: IO[bytes] | gzip.GzipFile, target: Path, name: str, limit: int) -> None:
    done = 0
    with target.open("wb") as stream:
        for chunk in _chunks(source):
            done += len(chunk)
            if done > limit:
                raise _too_large(name, limit)
            stream.write(chunk)


def _chunks(source: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    while chunk := source.read(_CHUNK):
        yield chunk


def _unzstd(stream: IO[bytes], target: Path, name: str, limit: int) -> None:
    """Decompress with the distro's zstd: Python supports it from 3.14 on."""
    cut = target.with_name(f"{target.name}.zst")
    try:
        _copy(stream, cut, name, limit)
        argv: list[str | Path] = ["zstd", "--decompress", "--quiet", "--force", "-o", target, cut]
        if find_program("zstd"):
            # It has no limit of its own, and some kB may become more than a disk holds. Blocks of
            # 512 bytes, as every sh counts them.
            argv = ["sh", "-c", _LIMITED, "sh", str(-(-limit // 512)), *argv]
        done = run(
            argv,
            why=f"unpack {name}",
            check=False,
            timeout=_ZSTD_SECONDS,
        )
    finally:
        cut.unlink(missing_ok=True)
    if done.returncode == -signal.SIGXFSZ or "File too large" in done.stderr:
        raise _too_large(name, limit)
    if done.returncode:
        raise ProvisionError(
            f"'{name}' is damaged or cut off.", resolution=_AGAIN, details=done.stderr
        )
    if target.stat().st_size > limit:
        raise _too_large(name, limit)


def _too_large(name: str, limit: int) -> ProvisionError:
    return ProvisionError(
        f"The content of '{name}' has more than {limit >> 20} MiB.", resolution=_AGAIN
    )


@dataclass(frozen=True, slots=True)
class Members:
    """The files and links of an open archive.

    Attributes:
        files: Its members by path; folders are left out.
    """

    tar: tarfile.TarFile
    files: Mapping[str, tarfile.TarInfo]
    name: str

    def file(self, path: str) -> tarfile.TarInfo:
        """Return a member, or the target of a link."""
        member = self.files[path]
        for _ in range(_MOST_LINKS):
            if not member.issym():
                return member
            linked = posixpath.normpath(PurePosixPath(path).parent / member.linkname)
            if linked not in self.files:
                break
            path, member = linked, self.files[linked]
        raise ProvisionError(f"'{path}' in the .run is a link to nothing.", resolution=_AGAIN)

    def text(self, path: str, limit: int) -> str | None:
        """Return the text of a file; None if there is none, or it has more bytes than a limit."""
        member = self.files.get(path)
        if member is None or not member.isreg() or member.size > limit:
            return None
        stream = self.tar.extractfile(member)
        return stream.read().decode(errors="replace") if stream else None

    def unfit(self, what: str, problems: list[str] | None = None) -> ProvisionError:
        """Return the error for a file that can't be one of NVIDIA's."""
        return _unfit(self.name, what, problems)


@contextmanager
def open_members(payload: Path, name: str) -> Iterator[Members]:
    """Open the archive inside a .run."""
    try:
        with tarfile.open(payload, mode="r:") as tar:
            yield Members(tar, _checked(tar, name), name)
    # The last two are errors of invalid or oversized numbers in headers.
    except (tarfile.TarError, EOFError, ValueError, ArithmeticError) as error:
        raise ProvisionError(
            f"'{name}' is damaged or cut off: {error}.", resolution=_AGAIN
        ) from error


def _checked(tar: tarfile.TarFile, name: str) -> dict[str, tarfile.TarInfo]:
    members: dict[str, tarfile.TarInfo] = {}
    problems: list[str] = []
    for member in tar:
        if member.name in {".", "./"}:
            continue
        problem, path = _problem(member, members)
        if problem:
            problems.append(problem)
        elif path:
            members[path] = member
        if len(members) > _MAX_MEMBERS:
            raise _unfit(name, f"it has more than {_MAX_MEMBERS} files")
    if problems:
        raise _unfit(name, "some of its files can't be taken", problems)
    return members


def _problem(member: tarfile.TarInfo, known: Collection[str]) -> tuple[str | None, str | None]:
    """Return the problem of a member, or its path."""
    try:
        path = inside(member.name)
    except ValueError as error:
        return str(error), None
    if member.isdir():
        return None, None
    if path in known:
        return f"'{path}' comes twice", None
    if member.issym():
        climbs = PurePosixPath(path).parent / member.linkname
        depth = 0
        for part in climbs.parts:
            depth += -1 if part == ".." else 1
            if depth < 0:
                break
        if PurePosixPath(member.linkname).is_absolute() or depth < 0:
            return f"'{path}' is a link out of it, to '{member.linkname[:80]}'", None
    # A sparse file may claim to be larger than any disk.
    elif not member.isreg() or member.issparse():
        return f"'{path}' is neither file, folder nor link", None
    return None, path


def _unfit(name: str, what: str, problems: list[str] | None = None) -> ProvisionError:
    return ProvisionError(
        f"'{name}' is not what NVIDIA publishes: {what}.",
        resolution=_AGAIN,
        details="\n".join(problems) if problems else None,
    )
