"""One file out of a package."""

import contextlib
import io
import lzma
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.archive.deb import read_deb
from provision.errors import NotFoundError, ProvisionError

NAME = "/usr/src/linux-headers-1/.config"
TEXT = b'CONFIG_CC_VERSION_TEXT="gcc-12 (Debian 12.2.0) 12.2.0"\n'


def tar(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return stream.getvalue()


def member(name: str, content: bytes) -> bytes:
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
    return head + content + b"\n" * (len(content) % 2)


def deb(folder: Path, data: bytes, *, ending: str = ".xz", control: bytes = b"odd") -> Path:
    path = folder / "headers.deb"
    parts = [("debian-binary", b"2.0\n"), ("control.tar.xz", control), (f"data.tar{ending}", data)]
    path.write_bytes(b"!<arch>\n" + b"".join(member(*part) for part in parts))
    return path


def test_a_file_of_a_package_is_read(tmp_path: Path) -> None:
    files = {"./usr/src/other": b"x" * 5000, f".{NAME}": TEXT}
    assert read_deb(deb(tmp_path, lzma.compress(tar(files))), NAME) == TEXT
    assert read_deb(deb(tmp_path, tar(files), ending=""), NAME) == TEXT


def test_a_link_is_no_file(tmp_path: Path) -> None:
    path = deb(tmp_path, lzma.compress(tar({}, {f".{NAME}": "/etc/shadow"})))
    with pytest.raises(NotFoundError, match=r"headers\.deb' has no file '/usr/src"):
        read_deb(path, NAME)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = deb(tmp_path, lzma.compress(tar({f".{NAME}": TEXT})))
    with pytest.raises(ProvisionError, match="at most 10 are read"):
        read_deb(path, NAME, limit=10)


@pytest.mark.parametrize("content", [b"", b"PK", b"!<arch>\n", b"!<arch>\nshort"])
def test_what_is_no_package_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "headers.deb"
    path.write_bytes(content)
    with pytest.raises(ProvisionError, match=r"headers\.deb' is"):
        read_deb(path, NAME)


@given(at=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_damaged_package_is_an_error_of_ours(
    at: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = deb(tmp_path_factory.mktemp("deb"), lzma.compress(tar({f".{NAME}": TEXT})))
    content = bytearray(path.read_bytes())
    content[at % len(content)] = byte
    path.write_bytes(content)
    with contextlib.suppress(ProvisionError):
        read_deb(path, NAME)
