"""Images in folders, their layers as streams, and what hostile ones hold."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.media import files_in
from kit.memory_registry import (
    MemoryRegistry,
    copy_to_layout,
    public,
)
from provision.engine import tar_streams as layers
from provision.engine.tar_streams import Unpacker, layer_content
from provision.errors import ProvisionError
from provision.registry import Reference
from provision.registry.find import (
    ArtifactImage,
    read_image,
    unpack_layers,
)
from provision.registry.repositories import REF_NAME, Repository, folder_layout, writable_layout
from provision.registry.signatures import verify_signature
from unit.registry.signed_images import FACTS, KEY
from unit.registry.signed_images import layer as layer  # noqa: PLC0414 - a fixture
from unit.registry.signed_images import registry as registry  # noqa: PLC0414 - a fixture

CONTENTS = st.lists(st.binary(max_size=3000), max_size=6)
SIZES = st.lists(st.integers(1, 5000), min_size=1, max_size=5)


@pytest.mark.parametrize("is_gzip", [True, False])
@given(parts=CONTENTS, sizes=SIZES, chunk=st.integers(1, 4000), zeros=st.integers(0, 1000))
def test_what_is_read_is_what_was_packed(
    *, is_gzip: bool, parts: list[bytes], sizes: list[int], chunk: int, zeros: int
) -> None:
    """Members of gzip one after the other, as some programs write them, are one stream."""
    whole = b"".join(parts)
    is_gzip = is_gzip and bool(parts)
    padded = b"".join(gzip.compress(part) + bytes(zeros) for part in parts)
    read = b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "_CHUNK", chunk)
        with layer_content(io.BytesIO(padded if is_gzip else whole), is_gzip=is_gzip) as content:
            for size in itertools.cycle(sizes):
                data = content.read(size)
                assert len(data) <= size
                read += data
                if not data:
                    break
    assert read == whole


def _packed(size: int) -> bytes:
    return gzip.compress(hashlib.shake_256(b"layer").digest(size))


@pytest.mark.parametrize(
    "stored",
    [
        _packed(3 << 20)[:-20],
        _packed(3 << 20)[:1000],
        _packed(3 << 20)[:-8] + bytes(8),
        _packed(1000) + b"something else",
        _packed(1000) + _packed(1000)[:-1],
        b"no gzip at all",
    ],
    ids=[
        "cut off",
        "early",
        "another checksum",
        "more behind it",
        "cut off behind it",
        "nothing of it",
    ],
)
def test_what_can_not_be_decompressed_is_said_by_the_reader(stored: bytes) -> None:
    before = threading.active_count()
    with (
        pytest.raises(ProvisionError),
        layer_content(io.BytesIO(stored), is_gzip=True),
    ):
        pass
    assert threading.active_count() == before


def test_a_layer_that_unpacks_to_too_much_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "LARGEST_CONTENT", 1 << 20)
    stored = io.BytesIO(gzip.compress(bytes(64 << 20)) * 16)
    with (
        pytest.raises(ProvisionError),
        layer_content(stored, is_gzip=True),
    ):
        pass
    assert stored.tell() < len(stored.getvalue()) / 2


def test_a_reader_that_stops_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    stored = io.BytesIO(_packed(8 << 20))

    def stop() -> None:
        with layer_content(stored, is_gzip=True) as content:
            assert content.read(100)
            raise EOFError

    with pytest.raises(EOFError):
        stop()
    assert threading.active_count() == before
    assert stored.tell() < 4 << 20


REFERENCE = Reference("file:/medium", "demo", "1")

Files = dict[str, bytes]


@pytest.fixture
def layout(registry: MemoryRegistry, tmp_path: Path) -> Path:
    """A layout with a signed image, copied from a registry."""
    writer = writable_layout(tmp_path / "layout", REFERENCE)
    copy_to_layout(registry, writer)
    return tmp_path / "layout"


def pulled(path: Path, folder: Path) -> ArtifactImage:
    """Do what a host does: find, verify, unpack."""
    reference = Reference(f"oci:{path.parent}", path.name, "1")
    repository: Repository = folder_layout(reference)
    name = next(tag for tag in repository.tags() if not tag.endswith(".sig"))
    if name.startswith("sha256:"):
        repository = repository.at(reference.with_digest(name))
    image = read_image(repository, "x86_64")
    repository = repository.at(image.reference)
    keys = [public(KEY)]
    trusted = read_image(
        repository, "x86_64", examine=lambda d: verify_signature(repository, d, keys, {})
    )
    (folder / "entry").mkdir(parents=True)
    unpacker = Unpacker(folder / "entry", strip="opt")
    unpack_layers(trusted, folder, unpacker.unpack)
    return trusted


def test_a_layout_keeps_what_was_signed(layout: Path, tmp_path: Path) -> None:
    trusted = pulled(layout, tmp_path / "a")
    assert trusted.facts == FACTS
    assert (tmp_path / "a/entry/driver/manifest.json").is_file()


def image_of(files: Files) -> str:
    index = json.loads(files["index.json"])
    digest = next(m["digest"] for m in index["manifests"] if m["annotations"][REF_NAME] == "1")
    return f"blobs/{digest.replace(':', '/')}"


def layer_in(files: Files) -> str:
    return f"blobs/{json.loads(files[image_of(files)])['layers'][0]['digest'].replace(':', '/')}"


def other_image(files: Files) -> None:
    """A manifest of which the index does not know."""
    document = json.loads(files["index.json"])
    document["manifests"].append({**document["manifests"][0], "digest": f"sha256:{'1' * 64}"})
    files["index.json"] = json.dumps(document).encode()


def nothing(files: Files) -> None:
    files.clear()
    files["x"] = b""


DAMAGED: dict[str, Callable[[Files], object]] = {
    "no index": lambda f: f.pop("index.json"),
    "an index that is no JSON": lambda f: f.update({"index.json": b"{"}),
    "an index that nests too deep": lambda f: f.update({"index.json": b"[" * 100_000}),
    "an index that is an image": lambda f: f.update({"index.json": f[image_of(f)]}),
    "two images of one name": other_image,
    "an index of a hundred megabytes": lambda f: f.update({"index.json": bytes(5 << 20)}),
    "an index that names what is missing": lambda f: f.pop(image_of(f)),
    "a manifest that names what is missing": lambda f: f.pop(layer_in(f)),
    "a manifest of another digest": lambda f: f.update({image_of(f): f[image_of(f)] + b" "}),
    "a layer of another digest": lambda f: f.update({layer_in(f): f[layer_in(f)][:-1] + b"\xff"}),
    "a layer that is longer": lambda f: f.update({layer_in(f): f[layer_in(f)] + b"\0"}),
    "nothing of an image": nothing,
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_layout_that_lies_is_refused(layout: Path, tmp_path: Path, case: str) -> None:
    files = files_in(layout)
    DAMAGED[case](files)
    path = tmp_path / "medium"
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    with pytest.raises(ProvisionError):
        pulled(path, tmp_path / "a")
    assert list((tmp_path / "a").rglob("*")) in ([], [tmp_path / "a/entry"])


@pytest.mark.parametrize("kind", ["file", "folder", "fifo"])
def test_no_link_of_a_folder_is_followed(layout: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "secret").write_bytes((layout / "index.json").read_bytes())
    if kind == "folder":
        (layout / "blobs").rename(tmp_path / "elsewhere")
        (layout / "blobs").symlink_to(tmp_path / "elsewhere")
    else:
        (layout / "index.json").unlink()
        if kind == "file":
            (layout / "index.json").symlink_to(tmp_path / "secret")
        else:
            os.mkfifo(layout / "index.json")
    with pytest.raises(ProvisionError):
        pulled(layout, tmp_path / "a")
