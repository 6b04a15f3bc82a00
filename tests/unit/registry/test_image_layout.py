"""Images in folders, and what hostile ones have in them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.artifact import make_artifact, make_pin
from kit.media import files_in
from kit.memory_registry import (
    ECDSA,
    MemoryRegistry,
    copy_to_layout,
    layer_of,
    new_key,
    public,
)
from provision.engine.tar_streams import Unpacker
from provision.errors import ProvisionError
from provision.registry import Reference
from provision.registry.find import ArtifactImage, facts_of, read_image, unpack_layers
from provision.registry.repositories import REF_NAME, Repository, folder_layout, writable_layout
from provision.registry.signatures import verify_signature

PIN = make_pin()
KEY, OTHER = new_key(), new_key()
FACTS = facts_of(PIN, 1_790_000_000)
REFERENCE = Reference("file:/medium", "demo", "1")

Files = dict[str, bytes]


def signer(data: bytes) -> bytes:
    return KEY.sign(data, ECDSA)


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("artifact")
    make_artifact(folder, pin=PIN)
    return layer_of(folder)


@pytest.fixture
def layout(layer: bytes, tmp_path: Path) -> Path:
    """A layout with a signed image, copied from a registry."""
    registry = MemoryRegistry()
    registry.sign(registry.have_image(PIN, [layer]), FACTS, KEY)
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


def changed(name: str, change: Callable[[Any], object]) -> Callable[[Files], None]:
    def apply(files: Files) -> None:
        document = json.loads(files[name])
        files[name] = json.dumps(change(document) or document).encode()

    return apply


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
