"""Signed images with hostile content: each is refused, and nothing escapes the artifact."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.memory_registry import (
    MemoryRegistry,
)
from provision.engine import tar_streams as layers
from provision.engine import tar_streams as unpack
from provision.errors import ProvisionError
from unit.registry.signed_images import (
    changed_layer,
    images_manifest,
    pull,
    signed_image,
    tar_of,
)
from unit.registry.signed_images import layer as layer  # noqa: PLC0414 - a fixture
from unit.registry.signed_images import registry as registry  # noqa: PLC0414 - a fixture


def zeros(name: str, size: int) -> bytes:
    """Return a layer of one file of zeros."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = size
        archive.addfile(info, io.BytesIO(bytes(size)))
    return buffer.getvalue()


def layers_of(registry: MemoryRegistry) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(registry.manifests["1"])["layers"]
    return found


def a_layer_that_ends_early(registry: MemoryRegistry) -> None:
    (layer,) = json.loads(registry.manifests["1"])["layers"]
    half = registry.blobs[layer["digest"]][:100]
    changed_layer(registry, digest=registry.have_blob(half), size=100)


def holes(size: int) -> bytes:
    """A tar file of some kB with one sparse file, as GNU tar writes it for PAX."""
    header = tarfile.TarInfo("opt/holes")
    body = b"0\n".ljust(tarfile.BLOCKSIZE, b"\0")
    header.size = len(body)
    header.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "opt/holes",
        "GNU.sparse.realsize": str(size),
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(header, io.BytesIO(body))
    return stream.getvalue()


def header(kind: bytes, body: bytes, *, name: str = "x") -> bytes:
    """Return a member with a body, as it stands in a tar file."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(body)
    return info.tobuf(tarfile.GNU_FORMAT) + body + bytes(-len(body) % tarfile.BLOCKSIZE)


def paxes(**said: str) -> bytes:
    """Return a header of PAX with these records."""
    records = b""
    for key, value in said.items():
        rest = f" {key.replace('__', '.')}={value}\n".encode()
        size = len(rest) + len(str(len(rest) + 6))
        records += str(size).encode() + rest
    return header(tarfile.XHDTYPE, records)


def list_of_holes(blocks: int) -> bytes:
    """The header of an old GNU file with holes that says: the list goes on in the next block."""
    info = bytearray(header(tarfile.GNUTYPE_SPARSE, b"", name="opt/x"))
    info[482] = 1
    info[148:156] = b" " * 8
    info[148:156] = b"%06o\0 " % sum(info)
    block = b"00000000001\0" * 42 + b"\1" + bytes(7)
    return bytes(info) + block * blocks


def before_the_last() -> bytes:
    """A folder whose next header is said to lie before its own."""
    info = bytearray(header(b"0", b"", name="opt/y"))
    info[124:136] = b"\xff" * 10 + b"\xf8\x00"
    info[148:156] = b" " * 8
    info[148:156] = b"%06o\0 " % sum(info)
    return bytes(info)


def long_list_of_holes() -> bytes:
    """A file with holes in PAX' newest form, whose list is longer than headers may be."""
    said = {"GNU__sparse__major": "1", "GNU__sparse__minor": "0", "GNU__sparse__name": "opt/x"}
    return paxes(**said, GNU__sparse__realsize="1") + header(
        b"0", b"60000\n" + b"1\n" * 120_000, name="opt/x"
    )


_FILE, _LINK, _FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE
_LINKED_FOLDER = tar_of(("opt/d", _LINK, "e"), ("opt/e", _FOLDER, ""))
LAYERS: dict[str, list[bytes]] = {
    "a header of headers without end": [header(tarfile.GNUTYPE_LONGNAME, b"opt/x\0") * 3000],
    "a long header of PAX": [paxes(comment="x" * 70_000) + header(b"0", b"", name="opt/x")],
    "a long name of GNU's": [header(tarfile.GNUTYPE_LONGNAME, b"x" * 70_000)],
    "a header for all files": [
        header(tarfile.XGLTYPE, b"6 a=b\n") + header(b"0", b"", name="opt/x")
    ],
    "a list of holes": [list_of_holes(blocks=200)],
    "a list of holes that is cut off": [list_of_holes(blocks=20)],
    "a list of holes in the content": [long_list_of_holes()],
    "a member that leads backwards": [before_the_last() + header(b"0", b"", name="opt/x")],
    "a deep folder": [paxes(path="opt/" + "a/" * 20_000 + "b") + header(b"0", b"")],
    "a long name": [paxes(path="opt/" + "a" * 300) + header(b"0", b"")],
    "a file below a link of another layer": [tar_of(("opt/d/x", _FILE, "")), _LINKED_FOLDER],
    "a link in place of a folder": [_LINKED_FOLDER, tar_of(("opt/d/x", _FILE, ""))],
    "the same file in two layers": [tar_of(("opt/x", _FILE, ""))] * 2,
    "a hard link to elsewhere in the image": [
        tar_of(("bin/sh", _FILE, ""), ("opt/sh", tarfile.LNKTYPE, "bin/sh"))
    ],
    "a link in place of the artifact": [tar_of(("opt", _LINK, "usr"), ("usr/x", _FILE, ""))],
    "an absolute name elsewhere": [tar_of(("/bin/sh", _FILE, ""))],
    "bytes elsewhere": [zeros("usr/x", 1 << 20)],
    "names without end": [tar_of(*[("bin/x", _FILE, "")] * 400)],
    "a file with holes": [holes(1 << 22)],
}
MANIFESTS: dict[str, Callable[[MemoryRegistry], None]] = {
    "no gzip": lambda r: changed_layer(r, digest=r.have_blob(b"x" * 100), size=100),
    "cut-off gzip": a_layer_that_ends_early,
    "other number of layers": lambda r: images_manifest(r, layers=layers_of(r) * 2),
    "no layers": lambda r: images_manifest(r, layers=[]),
    "200 layers": lambda r: images_manifest(r, layers=layers_of(r) * 200),
    "negative size": lambda r: changed_layer(r, size=-1),
    "huge size": lambda r: changed_layer(r, size=1 << 40),
    "digest of another kind": lambda r: changed_layer(r, digest="md5:00"),
    "xz": lambda r: changed_layer(r, mediaType="…tar+xz"),
    "helm chart": lambda r: images_manifest(r, mediaType="x/y"),
    "two readings": lambda r: images_manifest(r, manifests=[]),
    "no image's configuration": lambda r: images_manifest(
        r, config={**json.loads(r.manifests["1"])["config"], "mediaType": "x/y"}
    ),
    "schema 1": lambda r: images_manifest(r, schemaVersion=1),
}


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "LARGEST_CONTENT", 1 << 19)
    monkeypatch.setattr(unpack, "_MOST_HEADERS", 1 << 17)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("attack", [*LAYERS, *MANIFESTS])
def test_even_what_is_signed_is_not_unpacked_blindly(
    registry: MemoryRegistry, tmp_path: Path, attack: str
) -> None:
    """A key of ours signed it: the machine that builds may belong to others by now."""
    if attack in LAYERS:
        signed_image(registry, *LAYERS[attack])
    else:
        MANIFESTS[attack](registry)
    with pytest.raises(ProvisionError):
        pull(registry, tmp_path / "a")
    # The layer itself is gone; the draft of an entry is its maker's to remove.
    assert {path.name for path in tmp_path.iterdir()} <= {"a"}
    assert {path.name for path in tmp_path.glob("a/*")} <= {"entry"}
    assert not (tmp_path / "a/entry/etc").exists()


@pytest.mark.usefixtures("_small")
def test_what_is_just_small_enough_is_unpacked(
    registry: MemoryRegistry, tmp_path: Path, layer: bytes
) -> None:
    """Each attack is one step beyond what is allowed."""
    folders = tar_of(("opt/d", _FOLDER, ""))
    near = [paxes(path="opt/d/" + "a" * 200) + header(b"0", b""), zeros("usr/x", 1 << 18)]
    signed_image(registry, layer, folders, *near, tar_of(*[("bin/x", _FILE, "")] * 60))
    pull(registry, tmp_path / "a")
