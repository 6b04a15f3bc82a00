"""A tar stream can't reach anything but its own folder."""

from __future__ import annotations

import errno
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.engine.docker_api import Image, extract, find_image, read_file
from provision.engine.tar_streams import Unpacker
from provision.errors import NotFoundError, ProvisionError
from unit.engine.fake_engine import FakeEngine

_KINDS = {
    "file": tarfile.REGTYPE,
    "folder": tarfile.DIRTYPE,
    "link": tarfile.SYMTYPE,
    "hard": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "block": tarfile.BLKTYPE,
    "fifo": tarfile.FIFOTYPE,
}
Entry = tuple[str, str, str]


def _tar(*entries: Entry, mode: int = 0o644) -> io.BytesIO:
    """Make a tar file of (kind, name, target of the link)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for kind, name, target in entries:
            info = tarfile.TarInfo(name)
            info.type = _KINDS[kind]
            info.linkname = target
            info.mode = mode
            info.size = 4 if kind == "file" else 0
            archive.addfile(info, io.BytesIO(b"evil"))
    buffer.seek(0)
    return buffer


def _unpack(folder: Path, stream: io.BytesIO) -> None:
    Unpacker(folder, strip="opt").unpack(stream)


def test_files_folders_and_links_arrive(tmp_path: Path) -> None:
    entries: list[Entry] = [
        ("folder", "opt", ""),
        ("folder", "opt/a", ""),
        ("file", "opt/a/b", ""),
        ("file", "opt/made/on/the/way", ""),
        ("link", "opt/a/c", "b"),
        ("link", "opt/a/d", "../made/on/the/way"),
        ("hard", "opt/e", "opt/a/b"),
    ]
    _unpack(tmp_path, _tar(*entries, mode=0o6777))
    assert (tmp_path / "a/c").read_bytes() == (tmp_path / "e").read_bytes() == b"evil"
    assert (tmp_path / "a/d").read_bytes() == b"evil"
    assert (tmp_path / "a/b").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "entries",
    [
        [("file", "/opt/x", "")],
        [("file", "/etc/passwd", "")],
        [("file", "opt/../../etc/passwd", "")],
        [("file", "../x", "")],
        [("file", "etc/passwd", "")],
        [("file", "opt", "")],
        [("link", "opt/x", "/etc")],
        [("link", "opt/x", "../..")],
        [("link", "opt/a/x", "../../y")],
        [("link", "opt/x", "a/../../y")],
        [("link", "opt/a/b/s", "../../t"), ("link", "opt/a/b/u", "s/../..")],
        [("link", "opt/x", "a"), ("file", "opt/x/passwd", "")],
        [("folder", "opt/a", ""), ("link", "opt/a", "b")],
        [("file", "opt/x", ""), ("file", "opt/x", "")],
        [("file", "opt/x", ""), ("link", "opt/x", "y")],
        [("file", "opt/x", ""), ("folder", "opt/x", "")],
        [("hard", "opt/x", "etc/passwd")],
        [("hard", "opt/x", "/etc/passwd")],
        [("hard", "opt/x", "opt/missing")],
        [("link", "opt/l", "x"), ("hard", "opt/y", "opt/l")],
        [("device", "opt/x", "")],
        [("block", "opt/x", "")],
        [("fifo", "opt/x", "")],
    ],
)
def test_what_an_artifact_never_has_is_refused(tmp_path: Path, entries: list[Entry]) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    with pytest.raises(ProvisionError):
        _unpack(inside, _tar(*entries))
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


_names = st.lists(st.sampled_from(["opt", "a", "b", "..", ".", "", "/"]), max_size=5).map("/".join)
_names |= _names.map("opt/{}".format)


@given(st.lists(st.tuples(st.sampled_from(sorted(_KINDS)), _names, _names), max_size=6))
def test_nothing_that_a_stream_says_leaves_the_folder(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    inside = outside / "in"
    inside.mkdir()
    with suppress(ProvisionError):
        _unpack(inside, _tar(*entries))
    assert [path.name for path in outside.iterdir()] == ["in"]
    for path in inside.rglob("*"):
        # A link that leads round in circles leads nowhere.
        with suppress(RuntimeError, OSError):
            assert path.resolve(strict=True).is_relative_to(inside.resolve())


@pytest.mark.parametrize(
    "headers", [{"mtime": "1e300"}, {"mtime": "nan"}, {"path": "opt/a\0b"}, {"linkpath": ""}]
)
def test_headers_that_make_no_sense_are_an_error_of_ours(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("opt/file")
        info.type = tarfile.SYMTYPE if "linkpath" in headers else tarfile.REGTYPE
        info.pax_headers = headers
        archive.addfile(info)
    buffer.seek(0)
    inside = tmp_path / "in"
    inside.mkdir()
    with pytest.raises(ProvisionError):
        _unpack(inside, buffer)


_WHOLE = _tar(("folder", "opt", ""), ("file", "opt/a", ""), ("link", "opt/b", "a")).getvalue()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2047), st.integers(0, 255)), max_size=30), st.integers(0))
def test_a_damaged_stream_is_unpacked_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(_WHOLE)
    whole, folder = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("damaged")
    _unpack(whole, io.BytesIO(data))
    assert (whole / "a").is_file()
    for at, value in changes:
        data[at] = value
    stream = bytes(data[: cut % len(data)] if cut else data)
    with suppress(ProvisionError):
        _unpack(folder, io.BytesIO(stream))
    engine = FakeEngine()

    @contextmanager
    def archive(*_words: object, **_options: object) -> Iterator[Iterator[bytes]]:
        yield iter([stream])

    engine.archive = archive  # type: ignore[method-assign]
    with suppress(ProvisionError):
        read_file(engine, Image("sha256:1"), "driver/manifest.json", state=folder)


def test_a_file_that_is_too_large_is_not_cut_off(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provision.engine.docker_api._FILE_MAX", 1)
    with pytest.raises(ProvisionError):
        read_file(engine, engine.images["demo:1"], "driver/manifest.json", state=tmp_path)


def test_a_stream_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError):
        _unpack(tmp_path, io.BytesIO(b"no tar" * 1000))


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    engine = FakeEngine()
    content = tmp_path / "content"
    (content / "driver").mkdir(parents=True)
    (content / "driver/manifest.json").write_text("{}")
    engine.have(Image("sha256:1", ("demo:1",)), content)
    return engine


def test_one_file_can_be_read_by_itself(engine: FakeEngine, tmp_path: Path) -> None:
    image = engine.images["demo:1"]
    assert read_file(engine, image, "driver/manifest.json", state=tmp_path) == b"{}"
    with pytest.raises(ProvisionError):
        read_file(engine, image, "driver", state=tmp_path)


def test_a_full_disk_is_named_and_nothing_stays(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(ProvisionError):
        extract(engine, engine.images["demo:1"], tmp_path / "new", state=tmp_path)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("reference", ["x:1", "provision/x:1", "registry.example/x:1"])
def test_an_image_that_the_engine_lacks_is_not_pulled(reference: str) -> None:
    engine = FakeEngine()
    engine.result = Image("sha256:2", (reference,))
    with pytest.raises(NotFoundError):
        find_image(engine, reference)
    assert engine.calls == []
    engine.have(engine.result)
    assert find_image(engine, reference) == engine.result
