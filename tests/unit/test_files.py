"""Files that are written whole or not at all."""

import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from kit.probe import is_root, need
from provision.cli.options import OUTPUT_FILE
from provision.errors import InUseError
from provision.files import (
    is_writable,
    lock,
    remove_lock,
    switch_symlink,
    write_atomic,
    write_output,
)
from provision.progress import listening


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_with_its_folder_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "a/b/f"
    assert write_atomic(path, "text\u00e9", mode=0o600)
    assert path.read_bytes() == b"text\xc3\xa9"
    assert path.stat().st_mode & 0o7777 == 0o600
    assert names(path.parent) == ["f"]


def test_a_file_gets_its_folders_selinux_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = b"system_u:object_r:etc_t:s0\0"
    given: list[tuple[str, bytes]] = []
    folder = tmp_path.stat()
    monkeypatch.setattr(
        os, "getxattr", lambda at, _name: label if os.path.samestat(os.fstat(at), folder) else b""
    )
    monkeypatch.setattr(os, "setxattr", lambda _handle, name, value: given.append((name, value)))
    write_atomic(tmp_path / "file", "content")
    assert given == [("security.selinux", label)]


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomic(path, "text")
    inode = path.stat().st_ino
    assert not write_atomic(path, b"text")
    assert path.stat().st_ino == inode
    assert write_atomic(path, b"text", mode=0o600)
    assert write_atomic(path, b"other", mode=0o600)


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("text")
    (tmp_path / "f").symlink_to("target")
    assert write_atomic(tmp_path / "f", "text")
    assert not (tmp_path / "f").is_symlink()


def _socket(path: Path) -> Callable[[], bytes]:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    listening.settimeout(1)

    def read() -> bytes:
        with listening:
            connection, _address = listening.accept()
        with connection, connection.makefile("rb") as stream:
            return stream.read()

    return read


def _fifo(path: Path) -> Callable[[], bytes]:
    os.mkfifo(path)
    # Both ends are open, so that neither the writer nor this test waits.
    handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def read() -> bytes:
        with os.fdopen(handle, "rb", buffering=0) as stream:
            return stream.read(1 << 16)

    return read


@pytest.mark.parametrize("make", [_fifo, _socket])
def test_a_pipe_or_socket_is_written_to(
    plain_path: Path,
    make: Callable[[Path], Callable[[], bytes]],
) -> None:
    path = plain_path / "other"
    read = make(path)
    before = path.lstat()
    write_output(path, "text")
    assert b"text" in read()
    assert path.lstat().st_ino == before.st_ino
    assert names(plain_path) == ["other"]


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "{root}/out"])
@pytest.mark.parametrize("to_file", [False, True])
def test_standard_output_is_written_to(tmp_path: Path, name: str, *, to_file: bool) -> None:
    (tmp_path / "link").symlink_to("/dev/stdout")
    (tmp_path / "out").symlink_to("link")
    before = _identity(Path("/dev/stdout"))
    code = "import sys; from provision.cli.options import OUTPUT; from provision.files import *;"
    code += "[write_output(OUTPUT.convert(sys.argv[1], None, None), 'text') for _ in range(2)]"
    words = [sys.executable, "-c", code, name.format(root=tmp_path)]
    if to_file:
        with (tmp_path / "file").open("wb") as stream:
            subprocess.run(words, check=True, stdout=stream)
            stream.write(b"!")
        written = (tmp_path / "file").read_bytes()
    else:
        written = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout + b"!"
    assert written == b"texttext!"
    assert _identity(Path("/dev/stdout")) == before


def _identity(link: Path) -> tuple[int, int, int, Path]:
    """What changes if a link is replaced; its time of access changes whenever it is followed."""
    status = link.lstat()
    return status.st_dev, status.st_ino, status.st_mode, link.readlink()


def test_a_device_is_written_to_and_a_link_elsewhere_does_not_lead_there(tmp_path: Path) -> None:
    assert write_output(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()
    # A masked unit is one, maybe of another host.
    masked = tmp_path / "masked"
    masked.symlink_to("/dev/full")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_output(OUTPUT_FILE.convert(str(masked), None, None), "text")
    assert masked.is_symlink()
    assert write_atomic(masked, "text")
    assert masked.read_text() == "text"


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    need(is_root(), "root", "only root can make device nodes")
    path = tmp_path / "null"
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with pytest.raises(OSError, match="device"):
        write_atomic(path, "text")
    assert path.is_char_device()
    assert names(tmp_path) == ["null"]


def test_links_of_an_output_are_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("old")
    (tmp_path / "link").symlink_to("folder/next")
    (tmp_path / "folder/next").symlink_to("file")
    write_output(OUTPUT_FILE.convert(str(tmp_path / "link"), None, None), "new")
    assert (tmp_path / "folder/next").is_symlink()
    assert (tmp_path / "folder/file").read_text() == "new"


def test_a_failure_leaves_the_old_content_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    write_atomic(path, "old")

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is looked at
        write_atomic(path, "new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_text() == "old"
    assert names(tmp_path) == ["f"]


def test_a_link_is_switched_by_one_rename(tmp_path: Path) -> None:
    link = tmp_path / "new/current"
    assert switch_symlink(link, "one")
    assert not switch_symlink(link, "one")
    assert switch_symlink(link, "two")
    assert str(link.readlink()) == "two"
    assert names(link.parent) == ["current"]


def test_a_folder_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "current").mkdir()
    with pytest.raises(OSError, match="current"):
        switch_symlink(tmp_path / "current", "one")
    assert names(tmp_path) == ["current"]


def test_a_shared_lock_is_held_by_many_and_excludes_an_exclusive_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        lock(path, shared=True),
        lock(path, shared=True),
        pytest.raises(InUseError),
        lock(path, limit=0),
    ):
        pass
    with lock(path), pytest.raises(InUseError), lock(path, shared=True, limit=0):
        pass


def test_a_lock_is_held_by_one_and_the_other_gets_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run/lock"
    waiting, entered = Event(), Event()

    def other() -> None:
        with listening(lambda _: waiting.set()), lock(path, waiting="Waiting"):
            entered.set()

    thread = Thread(target=other)
    with lock(path):
        thread.start()
        assert waiting.wait(10)
        assert not entered.is_set()
    thread.join(10)
    assert entered.is_set()
    assert path.exists()


def test_a_folder_that_can_be_made_is_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_writable(tmp_path / "a/b/c")
    # Root may write everywhere.
    monkeypatch.setattr("os.access", lambda path, _mode: path != tmp_path)
    assert not is_writable(tmp_path / "a/b/c")


def test_a_lock_that_is_held_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock(path):
        assert not remove_lock(path)
        assert path.exists()
    assert remove_lock(path)
    assert not path.exists()
    assert not remove_lock(path)


def test_a_lock_that_was_removed_meanwhile_is_taken_again(tmp_path: Path) -> None:
    """Two processes that lock two files of one name would both go on."""
    path = tmp_path / "lock"
    inside = Event()
    leave = Event()

    def second() -> None:
        with lock(path):
            inside.set()
            leave.wait(10)

    with path.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        thread = Thread(target=second)
        thread.start()
        path.unlink()
    assert inside.wait(10)
    with pytest.raises(InUseError), lock(path, limit=0):
        pass
    leave.set()
    thread.join()
