"""The files inside NVIDIA's .run: a tar archive whose paths and links are checked before use."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision.errors import ProvisionError
from provision.sources.nvidia_lists import inside

_MAX_MEMBERS = 200_000
# As many links as are followed from one file to the next.
_MOST_LINKS = 8
_AGAIN = "Download it again, and compare its sha256 with the one that NVIDIA publishes."


@dataclass(frozen=True, slots=True)
class Members:
    """The files and links of an open archive.

    Attributes:
        tar: The archive.
        files: Its members by path; folders are left out.
        name: What messages call it.
    """

    tar: tarfile.TarFile
    files: Mapping[str, tarfile.TarInfo]
    name: str

    def file(self, path: str) -> tarfile.TarInfo:
        """Return a member, or the target of a link.

        Raises:
            ProvisionError: It is a link to nothing.
        """
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
    """Open the archive inside a .run.

    Args:
        payload: The archive.
        name: What messages call the .run.

    Raises:
        ProvisionError: It is damaged, has too many files, or paths that lead out of it.
    """
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
