"""Writes files atomically, resolves paths below a root, and finds what comes with provision.

An absolute link on a mounted disk or in an unpacked image points to a file of that system. The
kernel knows only this machine's root and would follow it to the running host. So all code that
reads or writes below the root of another host resolves paths here first
(docs/decisions/07-store-and-modules.md).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePath, PurePosixPath
from typing import IO
from urllib.parse import unquote

from provision.errors import InUseError, NotFoundError
from provision.progress import Note, report
from provision.trust import MOST_LINKS, is_own, open_folder, path_parts, require_trusted

_POLL_SECONDS = 0.05
_SCRATCH = "scratch"
# The default limit for waiting for a lock: as long as a build may take.
LONGEST_WAIT_S = 3 * 3600.0
# Where SELinux keeps a file's label, see xattr(7).
_LABEL = "security.selinux"
# Whatever another user put there, nothing is opened through a link, and no open waits.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Whoever can read it can hold the lock, see flock(2), and would keep root waiting.
_LOCK_MODE = 0o600


def in_root(root: Path, name: str | PurePath, *, follow: bool = True) -> Path:
    """Return where a path of a host lies, with each link resolved as that host itself would.

    Absolute links start at that root, and ``..`` does not climb above it. Missing parts stay as
    they were named. For the running host's own root, nothing is resolved. To read, replace or
    remove a link itself, don't ``follow`` the last part.
    """
    if root == Path("/"):
        return root / name
    left = path_parts(str(name))
    done: list[str] = []
    followed = 0
    while left:
        part = left.pop()
        if part == "..":
            del done[-1:]
            continue
        target = None if not left and not follow else _target(root.joinpath(*done, part))
        if target is None:
            done.append(part)
            continue
        followed += 1
        if followed > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(root / str(name).lstrip("/")))
        if target.startswith("/"):
            done.clear()
        left += path_parts(target)
    return root.joinpath(*done)


def text_in_root(root: Path, name: str | PurePath) -> str | None:
    """Return the stripped text of a file of a host; None: it is missing or can't be read."""
    try:
        return in_root(root, name).read_text(errors="replace").strip()
    except OSError:
        return None


def settled_path(root: Path, name: str | PurePath) -> Path:
    """Return where a file lies that a host's settings name; refuse one that others may change.

    It steers what root does: which packages are believed, what is built, who may sign.
    """
    path = in_root(root, name)
    require_trusted(path)
    return path


def state_of(path: Path) -> str:
    """Return a fingerprint of the state of a folder or file, without reading any content.

    It covers name, kind, size, inode, mtime and ctime of each file. Each change of the content sets
    ctime, which no program can set back.
    """
    top = path.resolve()
    digest = hashlib.sha256()

    def add(file: str | Path) -> None:
        of = os.lstat(file)
        times = f"{of.st_mtime_ns} {of.st_ctime_ns}"
        line = f"{os.path.relpath(file, top)} {of.st_mode} {of.st_size} {of.st_ino} {times}\n"
        # Names of files may be other bytes than UTF-8.
        digest.update(line.encode("utf-8", "surrogateescape"))

    add(top)
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted([*folders, *files]):
            add(f"{folder}/{name}")
    return digest.hexdigest()


def glob_in_root(root: Path, pattern: str) -> list[PurePosixPath]:
    """Return the paths of a host that match a pattern, sorted, relative to its root.

    ``in_root`` resolves them. ``*``, ``?`` and ``[…]`` stand for names in one folder, hidden ones
    included where the pattern's part begins with a dot.
    """
    found = [PurePosixPath()]
    for part in PurePosixPath(pattern).parts:
        found = [path for folder in found for path in _matching(root, folder, part)]
    return sorted(found)


def holds_something(path: Path) -> bool:
    """Return whether a path is a file, or a folder that is not empty.

    A host without a subscription may still have the empty folder for them.
    """
    if not path.is_dir():
        return path.exists()
    try:
        return any(path.iterdir())
    except PermissionError:
        # Root may be able to read it.
        return True


def _matching(root: Path, folder: PurePosixPath, part: str) -> Iterator[PurePosixPath]:
    if not set(part) & set("*?["):
        if os.path.lexists(in_root(root, folder / part, follow=False)):
            yield folder / part
        return
    try:
        names = [path.name for path in in_root(root, folder).iterdir()]
    except OSError:
        # Missing, not a folder, or not readable: nothing in it matches.
        return
    for name in names:
        if fnmatchcase(name, part) and (part.startswith(".") or not name.startswith(".")):
            yield folder / name


def _target(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None


def write_atomic(path: Path, content: bytes | str, *, mode: int = 0o644) -> bool:
    """Write a file as ``replacing`` does; return whether that changed content or mode."""
    data = content.encode() if isinstance(content, str) else content
    if _is_already(path, data, mode):
        return False
    with replacing(path, mode=mode) as stream:
        stream.write(data)
    return True


@contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Open what becomes a file by one rename at the end, so that readers see the old or the new.

    That holds after a power cut too. A link, pipe or socket of the name is replaced: its folder may
    belong to a user who put it there. A device, which only root can make, is an error. For what a
    person named, see ``open_output``.
    """
    folder = open_folder(path.parent, create=True)
    draft = f".{path.name}.{secrets.token_hex(4)}"
    try:
        with _naming(path):
            _refuse_device(path.name, folder)
            handle = os.open(draft, _NEW, 0o600, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as stream:
                yield stream
                os.fchmod(stream.fileno(), mode)
                _label_as_folder(stream.fileno(), folder)
                stream.flush()
                os.fsync(stream.fileno())
            with _naming(path):
                os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)


def _refuse_device(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        kind = stat.S_IFMT(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        if kind in {stat.S_IFCHR, stat.S_IFBLK}:
            raise OSError(errno.EEXIST, "it is a device", name)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors of calls that were given a folder's descriptor name the whole path."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def open_output(path: Path) -> Iterator[IO[bytes]]:
    """Open what a person named as a command's output, for writing.

    A device, pipe or socket is written to and never replaced; the stream can't seek then. A link to
    one counts only in ``/dev`` or ``/proc``, such as ``/dev/stdout``. All else is ``replacing``.
    """
    special = _special(path)
    with replacing(path) if special is None else special as stream:
        yield stream


def write_output(path: Path, content: bytes | str) -> bool:
    """Write what a person named as ``open_output`` does; return whether that changed anything."""
    data = content.encode() if isinstance(content, str) else content
    if _is_already(path, data, 0o644):
        return False
    with open_output(path) as stream:
        stream.write(data)
    return True


def copy_output(source: Path, path: Path) -> None:
    """Copy a file's content to what a person named, as ``open_output`` writes it."""
    with source.open("rb") as content, open_output(path) as stream:
        shutil.copyfileobj(content, stream)


def followed(path: Path) -> Path:
    """Return where the links of a path that a user gave lead, for writing there.

    A descriptor of this process, such as ``/dev/stdout``, stays its name in ``/proc``. A link that
    another user made, in ``/tmp`` for example, is not followed; it will be replaced.
    """
    for _ in range(MOST_LINKS):
        target = None if _descriptor(path) is not None else _target(path)
        if target is None or not is_own(path.lstat()):
            return path
        path = path.parent / target
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _special(path: Path) -> IO[bytes] | None:
    """Open a device, a pipe, a socket or a descriptor of this process; None for anything else."""
    if path.is_symlink() and path.parent.resolve().is_relative_to("/dev"):
        path = followed(path)
    descriptor = _descriptor(path)
    if descriptor is not None:
        return os.fdopen(os.dup(descriptor), "wb")
    try:
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        kind = stat.S_IFMT(os.fstat(handle).st_mode)
        # The file that was looked at, whatever has its name by now.
        looked_at = f"/proc/self/fd/{handle}"
        if kind == stat.S_IFSOCK:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(looked_at)
                return connection.makefile("wb")
        if kind in {stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR}:
            return None
        return os.fdopen(os.open(looked_at, os.O_WRONLY | os.O_NOCTTY), "wb")
    finally:
        os.close(handle)


def _descriptor(path: Path) -> int | None:
    is_own = path.name.isdecimal() and path.parent.resolve() == Path("/proc/self/fd").resolve()
    return int(path.name) if is_own else None


def remove_drafts(path: Path) -> None:
    """Remove drafts of a file that killed runs left behind; nothing may be writing it now."""
    with suppress(OSError):
        folder = open_folder(path.parent)
        try:
            with os.scandir(folder) as names:
                drafts = [one.name for one in names if one.name.startswith(f".{path.name}.")]
            for draft in drafts:
                with suppress(OSError):
                    os.unlink(draft, dir_fd=folder)
        finally:
            os.close(folder)


def switch_symlink(link: Path, target: str) -> bool:
    """Point a symbolic link at a target by one rename; return whether that changed anything."""
    if link.is_symlink() and str(link.readlink()) == target:
        return False
    link.parent.mkdir(parents=True, exist_ok=True)
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    try:
        temporary.replace(link)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(link.parent)
    return True


def sync_directory(directory: Path) -> None:
    """Make the names in a folder durable; a rename is not durable before this."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def shared_path(stream: IO[bytes]) -> str:
    """Return a path by which programs that this process starts open a file that has no name.

    Source: proc_pid_fd(5).
    """
    stream.flush()
    return f"/proc/{os.getpid()}/fd/{stream.fileno()}"


def is_writable(folder: Path) -> bool:
    """Return whether this process may write to a folder, or create it."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)


def mark_used(path: Path) -> None:
    """Set a file's time of use to now, if that may be set; garbage collection goes by it."""
    with suppress(OSError):
        os.utime(path)


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file's content as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def lock(
    path: Path,
    *,
    waiting: str | None = None,
    limit: float = LONGEST_WAIT_S,
    shared: bool = False,
) -> Iterator[bool]:
    """Hold a lock on a file, however this process ends; yield whether that took a wait.

    The file is made if missing, and removed by ``remove_lock`` only. ``waiting`` is reported before
    a wait, which ends after ``limit`` seconds.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    waited = False
    while True:
        with os.fdopen(_open_lock(path), "ab") as stream:
            try:
                fcntl.flock(stream, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                waited = True
                if waiting is not None:
                    report(Note(waiting))
                _wait_for(stream, path, kind, limit)
            if not _is_there(stream, path):
                # The file was removed meanwhile: others lock a new file of that name.
                continue
            yield waited
            return


def _open_lock(path: Path) -> int:
    folder = open_folder(path.parent, create=True)
    try:
        with _naming(path):
            handle = os.open(path.name, _LOCK, _LOCK_MODE, dir_fd=folder)
    finally:
        os.close(folder)
    # One that a former version left; a medium's file system may have no modes.
    with suppress(OSError):
        os.fchmod(handle, _LOCK_MODE)
    return handle


def _is_there(stream: IO[bytes], path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    return False


def remove_lock(path: Path) -> bool:
    """Remove a lock file unless a process holds it; returns whether it was removed."""
    if not path.is_file():
        return False
    try:
        with lock(path, limit=0):
            path.unlink(missing_ok=True)
    except InUseError:
        return False
    return True


@contextmanager
def scratch(state: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder of this user alone, removed afterwards or by the next run of any.

    What killed runs left, which may be gigabytes, goes when the next one is made. What runs inside
    the block takes another name: a second process waits for the first.
    """
    folder = state / _SCRATCH / name
    waiting = f"Another process is at work in {folder}; waiting for it"
    with lock(_scratch_lock(folder), waiting=waiting):
        # What a run mounts in it lies in a mount namespace of its own, which ends with the run.
        remove_tree(folder)
        remove_scratch(state)
        folder.parent.mkdir(parents=True, exist_ok=True)
        # What is unpacked in it may have any owner and mode until it is looked at.
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            remove_tree(folder)


def remove_scratch(state: Path) -> None:
    """Remove the scratch folders that no process is at work in."""
    for folder in (state / _SCRATCH).glob("*"):
        with suppress(InUseError), lock(_scratch_lock(folder), limit=0):
            remove_tree(folder)


def _scratch_lock(folder: Path) -> Path:
    return folder.parents[1] / "locks" / folder.name


def _wait_for(stream: IO[bytes], path: Path, kind: int, limit: float) -> None:
    # flock(2) knows no time limit.
    end = time.monotonic() + limit
    while True:
        try:
            fcntl.flock(stream, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise InUseError(
                    f"Another process has held '{path}' for {limit:g} s.",
                    resolution=f"See which one it is: fuser -v {path}. Then run the command again.",
                ) from None
            time.sleep(_POLL_SECONDS)
        else:
            return


def selinux_label(path: Path) -> str | None:
    """Return a file's SELinux label; None: it has none, or can't be read."""
    try:
        return os.getxattr(path, _LABEL).decode().rstrip("\0")
    except OSError:
        return None


def _label_as_folder(handle: int, folder: int) -> None:
    """Give a file the SELinux label of its folder, as most policies do by themselves.

    Debian's labels what a service writes to /etc as its private state (etc_runtime_t), which
    container engines may not read.
    """
    # Without SELinux, or without permission, the policy's default label stays.
    with suppress(OSError):
        os.setxattr(handle, _LABEL, os.getxattr(folder, _LABEL))


def _is_already(path: Path, data: bytes, mode: int) -> bool:
    try:
        # A pipe would keep its reader waiting.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(handle)
        return (
            stat.S_ISREG(status.st_mode)
            and status.st_size == len(data)
            and status.st_mode & 0o7777 == mode
            and stream.read(len(data) + 1) == data
        )


def local_path(address: str) -> str | None:
    """Return the path that ``file:///PATH`` or an absolute path names; None: a server's address."""
    if address.startswith("file:///"):
        return unquote(address.removeprefix("file://"))
    return address if address.startswith("/") and not address.startswith("//") else None


def remove_tree(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# The repository's root, seen from this file, if it still lies in a checkout.
_CHECKOUT = Path(__file__).resolve().parents[2]
_INSTALLED = Path(sys.prefix, "share/provision")


def templates_dir() -> Path:
    """Return the folder with the Dockerfile templates."""
    return shipped("templates")


def documentation_url(page: str) -> str:
    """Return the address of a page of the documentation, such as ``how-to/add-a-driver.md``."""
    return (shipped("docs") / page).as_uri()


def shipped(name: str) -> Path:
    """Return a folder that comes with provision."""
    # Both must exist: any project may have a folder of this name above some site-packages.
    if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / name).is_dir():
        return _CHECKOUT / name
    if (_INSTALLED / name).is_dir():
        return _INSTALLED / name
    raise NotFoundError(
        f"provision's own folder '{name}' is missing.",
        resolution="Install provision again, or run it from a checkout.",
        details=f"looked for {_CHECKOUT / name}\nlooked for {_INSTALLED / name}",
    )
