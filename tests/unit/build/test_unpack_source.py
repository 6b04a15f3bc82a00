"""The program that unpacks sources in the build container."""

import io
import random
import tarfile
import tempfile
import zipfile
from pathlib import Path

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


def test_a_tarball_is_unpacked_without_its_leading_parts(tmp_path: Path) -> None:
    archive = tar(
        tmp_path / "a", ("x-1/src/a.c", b"int a;"), ("x-1/run.sh", b"#!"), ("x-1/l", "src/a.c")
    )
    out = tmp_path / "out"
    out.mkdir()
    assert unpack(archive, out, 1) == 3
    assert (out / "src/a.c").read_bytes() == b"int a;"
    assert (out / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (out / "src/a.c").stat().st_mode & 0o7777 == 0o644
    assert (out / "l").read_bytes() == b"int a;"


def test_a_zip_file_too(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x/a.c", "int a;")
        file.writestr("top", "left out")
    out = tmp_path / "out"
    out.mkdir()
    assert unpack(archive, out, 1) == 1
    assert (out / "a.c").read_text() == "int a;"


@pytest.mark.parametrize("kind", ["xz", "gz", "bz2", ""])
def test_a_package_is_unpacked_as_it_would_be_installed(tmp_path: Path, kind: str) -> None:
    source = ("./usr/src/x-1/dkms.conf", b"PACKAGE_NAME=x")
    data = tar(tmp_path / "data", source, kind=f"w:{kind}").read_bytes()
    out = tmp_path / "out"
    out.mkdir()
    assert unpack(deb(tmp_path, data, f"data.tar.{kind}".rstrip(".")), out, 0) == 1
    assert (out / "usr/src/x-1/dkms.conf").read_bytes() == b"PACKAGE_NAME=x"


def test_the_name_of_a_packages_member_may_end_with_a_slash(tmp_path: Path) -> None:
    data = tar(tmp_path / "data", ("a", b"1")).read_bytes()
    assert unpack(deb(tmp_path, data, "data.tar.xz/"), tmp_path, 0) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"!<arch>\n" + b"x" * 60,
        b"!<arch>\nshort",
        b"!<arch>\n" + b"data.tar.xz".ljust(48) + b"9         `\nab",
        b"!<arch>\n" + b"data.tar.xz".ljust(48) + b"many      `\nab",
        b"!<arch>\n" + b"data.tar.xz".ljust(48) + b"2         `\nab",
        b"!<arch>\n" + b"a".ljust(48) + b"-60       `\nab",
        b"!<arch>\n",
    ],
)
def test_a_damaged_package_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.deb").write_bytes(content)
    with pytest.raises(UnpackError):
        unpack(tmp_path / "a.deb", tmp_path, 0)


def test_a_package_that_needs_zstd_says_how_to_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(UnpackError):
        unpack(deb(tmp_path, b"(\xb5/\xfd", "data.tar.zst"), tmp_path, 0)


@given(st.binary(max_size=400))
def test_whatever_is_in_a_package_is_a_mistake_that_is_said(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "a.deb"
        archive.write_bytes(b"!<arch>\n" + content)
        with pytest.raises(UnpackError):
            unpack(archive, Path(folder), 0)


@pytest.mark.parametrize(
    "member",
    [
        ("../out", b""),
        ("/etc/passwd", b""),
        ("x/link", "/etc/passwd"),
        ("x/link", "../../etc/passwd"),
    ],
)
def test_what_leads_out_is_refused(tmp_path: Path, member: tuple[str, bytes | str]) -> None:
    archive = tar(tmp_path / "a", member)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UnpackError):
        unpack(archive, out, 0)
    assert not list(out.rglob("*"))


def test_links_that_lead_out_together_are_refused(tmp_path: Path) -> None:
    # Each stays in the source by its text; d/m is the folder above.
    links: list[tuple[str, bytes | str]] = [("d/l", ".."), ("d/m", "l/..")]
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UnpackError):
        unpack(tar(tmp_path / "a", *links, ("d/m/evil", b"evil")), out, 0)
    assert not (tmp_path / "evil").exists()


def test_a_file_is_not_written_through_a_link_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("untouched")
    out = tmp_path / "out"
    out.mkdir()
    archive = tar(
        tmp_path / "a", ("d/l", ".."), ("d/x", "l/../other"), ("d/x", b"new"), ("d/y", b"")
    )
    unpack(archive, out, 0)
    assert (out / "d/x").read_bytes() == b"new"
    assert (tmp_path / "other").read_text() == "untouched"


def test_a_damaged_archive_is_said(tmp_path: Path) -> None:
    content = random.Random(0).randbytes(1 << 20).hex().encode()  # noqa: S311 - the same each time
    raw = bytearray(tar(tmp_path / "a", ("f", content), ("g", b"")).read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 40] = b"\xff" * 40
    (tmp_path / "damaged").write_bytes(raw)
    (tmp_path / "cut").write_bytes(raw[: middle - 100])
    for name in ("damaged", "cut"):
        with pytest.raises(UnpackError):
            unpack(tmp_path / name, tmp_path, 0)


def test_a_header_that_makes_no_sense_is_said(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a", "w") as archive:
        entry = tarfile.TarInfo("hole")
        entry.pax_headers = {"GNU.sparse.map": "x,y", "GNU.sparse.size": "7"}
        archive.addfile(entry)
    with pytest.raises(UnpackError):
        unpack(tmp_path / "a", tmp_path, 0)


def test_a_device_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a", "w") as archive:
        entry = tarfile.TarInfo("null")
        entry.type = tarfile.CHRTYPE
        archive.addfile(entry)
    with pytest.raises(UnpackError):
        unpack(tmp_path / "a", tmp_path, 0)


def test_what_is_no_archive_or_holds_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"<html>not found</html>" * 100)
    with pytest.raises(UnpackError):
        main([str(tmp_path / "a"), "0"], None)
    archive = tar(tmp_path / "b", ("x", b""))
    with pytest.raises(UnpackError):
        unpack(archive, tmp_path, 1)
