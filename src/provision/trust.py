"""Which files a program that runs as root may trust, and which public keys.

A path is walked from the root, by descriptors. A file that only root may write can still be
replaced by who may rename a folder above it, and a link leads to where its owner wants. The crate
does the same (``hooks/src/host/rootfs.rs``), as sshd and sudo do.
"""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import io
import os
import re
import shlex
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from provision.errors import ConfigError, Mistake

# As many as the kernel follows: path_resolution(7).
MOST_LINKS = 40
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ROOT = 0
# Access control lists of files, as the kernel keeps them.
_LIST = "system.posix_acl_access"
_LIST_HEAD = 4
_LISTED_USER, _LISTED_GROUP, _LISTED_WRITE = 0x02, 0x08, 0x02

_SUFFIXES = (".pub", ".pem")
LONGEST = 64 << 10
_KEY = re.compile(rb"-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----")

Look = Callable[[Path, os.stat_result], None]


class Distrust(NamedTuple):
    """A folder, link or file that a user other than root may change."""

    path: Path
    # What is wrong with its owner or mode.
    why: str

    def __str__(self) -> str:
        return f"'{self.path}' {self.why}"

    @property
    def cure(self) -> str:
        """What to do about it."""
        path = shlex.quote(str(self.path))
        return f"Correct the owner and the mode: chown -h root {path} && chmod go-w {path}"


def distrusted(path: Path) -> Distrust | None:
    """Return the first step of a file's path that a user other than root may change.

    Links are followed. This process's own user counts as root. What is missing is judged by the
    folder in which it would be made.
    """
    found: list[Distrust] = []

    def judge(step: Path, status: os.stat_result) -> None:
        if not found and (why := _untrusted(status) or _listed(step, status)):
            found.append(Distrust(step, why))

    with suppress(FileNotFoundError):
        os.close(_walk(path, judge))
    return found[0] if found else None


def require_trusted(path: Path) -> None:
    """Refuse a file that steers what root does, and that another user may change.

    What a person names for one command is that person's to judge; what a host's settings name
    (``files.settled_path``), or its units run, is not.
    """
    if found := distrusted(path):
        raise ConfigError(
            str(path), [Mistake("", f"not only root may change it: {found}")], resolution=found.cure
        )


def open_folder(path: Path, *, create: bool = False) -> int:
    """Open a folder, or make it; a link of another user on its path is an error: ``ELOOP``."""

    def refuse(step: Path, status: os.stat_result) -> None:
        if stat.S_ISLNK(status.st_mode) and not is_own(status):
            raise OSError(errno.ELOOP, "it is a link that another user made", str(step))

    place = _walk(path, refuse, create=create)
    try:
        return os.open(".", _FOLDER, dir_fd=place)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(place)


def is_own(status: os.stat_result) -> bool:
    """Return whether a file belongs to root or this process's user."""
    return status.st_uid in {_ROOT, os.geteuid(), _unmapped_root()}


def _walk(path: Path, look: Look, *, create: bool = False) -> int:
    """Open a path with ``O_PATH``; each step of it is looked at, links before they are followed."""
    left = path_parts(str(path.absolute()))
    at, shown, links = os.open("/", _STEP), Path("/"), 0
    try:
        look(shown, os.fstat(at))
        while left:
            name = left.pop()
            here = shown.parent if name == ".." else shown / name
            step = _open_step(name, here, at, create=create)
            try:
                look(here, os.fstat(step))
                target = _target(step)
                if target is None:
                    at, step, shown = step, at, here
                    continue
            finally:
                os.close(step)
            links += 1
            _check_count(links, path)
            if target.startswith("/"):
                os.close(at)
                at, shown = os.open("/", _STEP), Path("/")
            left += path_parts(target)
    except BaseException:
        os.close(at)
        raise
    return at


def _check_count(links: int, path: Path) -> None:
    if links > MOST_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _open_step(name: str, here: Path, at: int, *, create: bool) -> int:
    try:
        try:
            return os.open(name, _STEP, dir_fd=at)
        except FileNotFoundError:
            if not create:
                raise
        # Another process may have made it meanwhile.
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=at)
        return os.open(name, _STEP, dir_fd=at)
    except OSError as error:
        error.filename = str(here)
        raise


def path_parts(path: str) -> list[str]:
    """Return the parts of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in {"", "."}]


def _target(step: int) -> str | None:
    is_link = stat.S_ISLNK(os.fstat(step).st_mode)
    return os.readlink("", dir_fd=step) if is_link else None


def _untrusted(status: os.stat_result) -> str | None:
    mode = status.st_mode
    # In a sticky folder, users can't replace other users' files. A link has no mode.
    keeps = (stat.S_ISDIR(mode) and mode & stat.S_ISVTX) or stat.S_ISLNK(mode)
    if not is_own(status):
        return "is not owned by root"
    if mode & stat.S_IWOTH and not keeps:
        return "is writable by everyone"
    # Many distros give each user a group.
    if mode & stat.S_IWGRP and status.st_gid not in {_ROOT, os.getegid()} and not keeps:
        return "is writable by a group"
    return None


def _listed(path: Path, status: os.stat_result) -> str | None:
    """Return why a root program must not trust a file whose access control list lets others write.

    The mode of such a file has the list's mask in place of the group's rights. Source: acl(5),
    linux/posix_acl_xattr.h
    """
    mode = status.st_mode
    is_sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    if not mode & stat.S_IWGRP or is_sticky or stat.S_ISLNK(mode):
        return None
    try:
        entries = os.getxattr(path, _LIST, follow_symlinks=False)[_LIST_HEAD:]
    except OSError:
        # It has none, or the file system knows no lists.
        return None
    own = {_LISTED_USER: {_ROOT, os.geteuid()}, _LISTED_GROUP: {_ROOT, os.getegid()}}
    for tag, rights, number in struct.iter_unpack("<HHI", entries):
        if rights & _LISTED_WRITE and number not in own.get(tag, {number}):
            return "is writable by those whom its access control list names"
    return None


@cache
def _unmapped_root() -> int:
    """Return as whom the host's root appears in this user namespace, by the kernel's settings."""
    try:
        return Path("/proc/sys/kernel").stat().st_uid
    except OSError:
        return _ROOT


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; a pipe or device is an error, and nobody waits for it."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(handle, "rb")


def key_files(place: Path) -> list[Path]:
    """Return the files of keys in a folder (``*.pub``, ``*.pem``), or the one file."""
    if place.is_dir():
        return sorted(path for path in place.iterdir() if path.suffix in _SUFFIXES)
    return [place] if place.is_file() else []


def fingerprint(pem: bytes) -> str | None:
    """Return the sha256 of a public key's DER, as ``openssl pkey -pubin -outform DER`` writes it.

    None: this is no public key.
    """
    found = _KEY.search(pem)
    if found is None:
        return None
    try:
        return f"sha256:{hashlib.sha256(base64.b64decode(found[1])).hexdigest()}"
    except binascii.Error:
        return None


def fingerprints(place: Path) -> frozenset[str]:
    """Return the fingerprints of the keys in a folder, or in one file; others are left out."""
    found = set()
    for path in key_files(place):
        try:
            with open_regular(path) as stream:
                data = stream.read(LONGEST + 1)
        except OSError:
            continue
        if len(data) <= LONGEST and (one := fingerprint(data)):
            found.add(one)
    return frozenset(found)
