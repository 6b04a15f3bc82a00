"""The program that unpacks sources in the build container."""

import io
import random
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.build.unpack_source import UnpackError, main, unpack
from unit.deb_file import deb


def tar(path: Path, *members: tuple[str, bytes | str], kind: str = "w:xz") -> Path:
    """Write a tar file; a text is where a symbolic link leads to."""
    with tarfile.open(path, kind) as archive:  # type: ignore[call-overload]
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.mode = 0o4755 if name.endswith(".sh") else 0o600
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return a folder to unpack into."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_a_tarball_is_unpacked_without_its_leading_parts(tmp_path: Path, out: Path) -> None:
    archive = tar(
        tmp_path / "a", ("x-1/src/a.c", b"int a;"), ("x-1/run.sh", b"#!"), ("x-1/l", "src/a.c")
    )
    assert unpack(archive, out, 1) == 3
    assert (out / "src/a.c").read_bytes() == b"int a;"
    assert (out / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (out / "src/a.c").stat().st_mode & 0o7777 == 0o644
    assert (out / "l").read_bytes() == b"int a;"


def test_a_zip_file_too(tmp_path: Path, out: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x/a.c", "int a;")
        file.writestr("top", "left out")
    assert unpack(archive, out, 1) == 1
    assert (out / "a.c").read_text() == "int a;"


@pytest.mark.parametrize("kind", ["xz", "gz", "bz2", ""])
def test_a_package_is_unpacked_as_it_would_be_installed(
    tmp_path: Path, out: Path, kind: str
) -> None:
    source = ("./usr/src/x-1/dkms.conf", b"PACKAGE_NAME=x")
    data = tar(tmp_path / "data", source, kind=f"w:{kind}").read_bytes()
    assert unpack(deb(tmp_path, data, f"data.tar.{kind}".rstrip(".")), out, 0) == 1
    assert (out / "usr/src/x-1/dkms.conf").read_bytes() == b"PACKAGE_NAME=x"


def test_the_name_of_a_packages_member_may_end_with_a_slash(tmp_path: Path) -> None:
    data = tar(tmp_path / "data", ("a", b"1")).read_bytes()
    assert unpack(deb(tmp_path, data, "data.tar.xz/"), tmp_path, 0) == 1


@given(st.binary(max_size=400))
def test_whatever_is_in_a_package_is_a_mistake_that_is_said(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "a.deb"
        archive.write_bytes(b"!<arch>\n" + content)
        with pytest.raises(UnpackError):
            unpack(archive, Path(folder), 0)


def test_a_file_is_not_written_through_a_link_of_its_name(tmp_path: Path, out: Path) -> None:
    (tmp_path / "other").write_text("untouched")
    archive = tar(
        tmp_path / "a", ("d/l", ".."), ("d/x", "l/../other"), ("d/x", b"new"), ("d/y", b"")
    )
    unpack(archive, out, 0)
    assert (out / "d/x").read_bytes() == b"new"
    assert (tmp_path / "other").read_text() == "untouched"


def a_damaged_one(path: Path, *, is_cut: bool) -> Path:
    content = random.Random(0).randbytes(1 << 20).hex().encode()  # noqa: S311 - the same each time
    raw = bytearray(tar(path, ("f", content), ("g", b"")).read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 40] = b"\xff" * 40
    path.write_bytes(raw[: middle - 100] if is_cut else raw)
    return path


def a_hard_link_out(path: Path) -> Path:
    """A file above the source, by links that lead out together."""
    links = (("d/l", tarfile.SYMTYPE, ".."), ("d/m", tarfile.SYMTYPE, "l/.."))
    with tarfile.open(path, "w") as archive:
        for name, kind, target in (*links, ("d/x", tarfile.LNKTYPE, "d/m/secret")):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            archive.addfile(entry)
    return path


def one_entry(path: Path, **members: Any) -> Path:  # noqa: ANN401 - those of `TarInfo`
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("entry")
        for name, value in members.items():
            setattr(entry, name, value)
        archive.addfile(entry)
    return path


def package(path: Path, content: bytes) -> Path:
    path.with_suffix(".deb").write_bytes(b"!<arch>\n" + content)
    return path.with_suffix(".deb")


_DATA = b"data.tar.xz".ljust(48)
_HOLES = {"GNU.sparse.map": "x,y", "GNU.sparse.size": "7"}
REFUSED: dict[str, Callable[[Path], Path]] = {
    "leads up": lambda path: tar(path, ("../out", b"")),
    "leads to the root": lambda path: tar(path, ("/etc/passwd", b"")),
    "a link to the root": lambda path: tar(path, ("x/link", "/etc/passwd")),
    "a link up": lambda path: tar(path, ("x/link", "../../etc/passwd")),
    # Each stays in the source by its text; d/m is the folder above.
    "links that lead out together": lambda path: tar(
        path, ("d/l", ".."), ("d/m", "l/.."), ("d/m/evil", b"evil")
    ),
    "a hard link through them": a_hard_link_out,
    "damaged": lambda path: a_damaged_one(path, is_cut=False),
    "cut off": lambda path: a_damaged_one(path, is_cut=True),
    "a header without sense": lambda path: one_entry(path, pax_headers=_HOLES),
    "a device": lambda path: one_entry(path, type=tarfile.CHRTYPE),
    "no member of a package": lambda path: package(path, b"x" * 60),
    "a short package": lambda path: package(path, b"short"),
    "a member that is cut off": lambda path: package(path, _DATA + b"9         `\nab"),
    "a member of no size": lambda path: package(path, _DATA + b"many      `\nab"),
    "a member that is no archive": lambda path: package(path, _DATA + b"2         `\nab"),
    "a member of a negative size": lambda path: package(path, b"a".ljust(48) + b"-60       `\nab"),
    "an empty package": lambda path: package(path, b""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_leads_out_or_is_damaged_is_refused(tmp_path: Path, out: Path, name: str) -> None:
    with pytest.raises(UnpackError):
        unpack(REFUSED[name](tmp_path / "a"), out, 0)
    assert not (tmp_path / "evil").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"out", "a", "a.deb"}


def test_what_is_no_archive_or_holds_nothing_is_said(tmp_path: Path, out: Path) -> None:
    (tmp_path / "a").write_bytes(b"<html>not found</html>" * 100)
    with pytest.raises(UnpackError):
        main([str(tmp_path / "a"), "0"], None)
    with pytest.raises(UnpackError):
        unpack(tar(tmp_path / "b", ("x", b"")), out, 1)
