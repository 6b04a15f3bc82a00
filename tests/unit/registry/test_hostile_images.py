"""Signed images with hostile content: each is refused, and nothing escapes the artifact."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.memory_registry import (
    MemoryRegistry,
)
from provision.engine import tar_streams as unpack
from provision.errors import ProvisionError
from provision.registry import artifact_images as layers
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


def a_layer_that_is_no_gzip(registry: MemoryRegistry) -> None:
    changed_layer(registry, digest=registry.have_blob(b"x" * 100), size=100)


def a_layer_that_ends_early(registry: MemoryRegistry) -> None:
    (layer,) = json.loads(registry.manifests["1"])["layers"]
    half = registry.blobs[layer["digest"]][:100]
    changed_layer(registry, digest=registry.have_blob(half), size=100)


def a_config_of_more_layers(registry: MemoryRegistry) -> None:
    images_manifest(registry, layers=json.loads(registry.manifests["1"])["layers"] * 2)


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


HOSTILE: list[tuple[str, Callable[[MemoryRegistry], None], str]] = [
    (
        "a header of headers without end",
        lambda r: signed_image(r, header(tarfile.GNUTYPE_LONGNAME, b"opt/x\0") * 3000),
        "headers of more than 65536 bytes",
    ),
    (
        "a long header of PAX",
        lambda r: signed_image(r, paxes(comment="x" * 70_000) + header(b"0", b"", name="opt/x")),
        "headers of more than 65536 bytes",
    ),
    (
        "a long name of GNU's",
        lambda r: signed_image(r, header(tarfile.GNUTYPE_LONGNAME, b"x" * 70_000)),
        "headers of more than 65536 bytes",
    ),
    (
        "a header for all files",
        lambda r: signed_image(
            r, header(tarfile.XGLTYPE, b"6 a=b\n") + header(b"0", b"", name="opt/x")
        ),
        "a header for all files",
    ),
    (
        "a list of holes",
        lambda r: signed_image(r, list_of_holes(blocks=200)),
        "headers of more than 65536 bytes",
    ),
    (
        "a list of holes that is cut off",
        lambda r: signed_image(r, list_of_holes(blocks=20)),
        "as a tar stream",
    ),
    (
        "a list of holes in the content",
        lambda r: signed_image(r, long_list_of_holes()),
        "headers of more than 65536 bytes",
    ),
    (
        "a member that leads backwards",
        lambda r: signed_image(r, before_the_last() + header(b"0", b"", name="opt/x")),
        "leads backwards|as a tar stream",
    ),
    (
        "a deep folder",
        lambda r: signed_image(r, paxes(path="opt/" + "a/" * 20_000 + "b") + header(b"0", b"")),
        "too long a name",
    ),
    (
        "a long name",
        lambda r: signed_image(r, paxes(path="opt/" + "a" * 300) + header(b"0", b"")),
        "too long a name",
    ),
    ("no gzip", a_layer_that_is_no_gzip, "can't be decompressed"),
    ("cut-off gzip", a_layer_that_ends_early, "can't be decompressed|as a tar stream"),
    ("other number of layers", a_config_of_more_layers, "another number of layers"),
    ("no layers", lambda r: images_manifest(r, layers=[]), "has no layers"),
    (
        "200 layers",
        lambda r: images_manifest(r, layers=json.loads(r.manifests["1"])["layers"] * 200),
        "no manifest of an image",
    ),
    ("negative size", lambda r: changed_layer(r, size=-1), "no manifest of an image"),
    ("huge size", lambda r: changed_layer(r, size=1 << 40), "no manifest of an image"),
    ("digest of another kind", lambda r: changed_layer(r, digest="md5:00"), "no manifest"),
    ("xz", lambda r: changed_layer(r, mediaType="…tar+xz"), "a layer of the kind"),
    ("helm chart", lambda r: images_manifest(r, mediaType="x/y"), "is a x/y"),
    ("two readings", lambda r: images_manifest(r, manifests=[]), "read in two ways"),
    (
        "no image's configuration",
        lambda r: images_manifest(
            r, config={**json.loads(r.manifests["1"])["config"], "mediaType": "x/y"}
        ),
        "holds a x/y",
    ),
    ("schema 1", lambda r: images_manifest(r, schemaVersion=1), "no manifest of an image"),
    (
        "absolute name",
        lambda r: signed_image(r, tar_of(("/etc/passwd", tarfile.REGTYPE, ""))),
        "outside of the artifact",
    ),
    (
        "parent folder",
        lambda r: signed_image(r, tar_of(("opt/../../x", tarfile.REGTYPE, ""))),
        "outside of the artifact",
    ),
    (
        "device",
        lambda r: signed_image(r, tar_of(("opt/sda", tarfile.BLKTYPE, ""))),
        "neither file, folder nor link",
    ),
    (
        "fifo",
        lambda r: signed_image(r, tar_of(("opt/fifo", tarfile.FIFOTYPE, ""))),
        "neither file, folder nor link",
    ),
    (
        "link out",
        lambda r: signed_image(r, tar_of(("opt/x", tarfile.SYMTYPE, "/etc"))),
        "points out of the artifact",
    ),
    (
        "file below a link of another layer",
        lambda r: signed_image(
            r,
            tar_of(("opt/d/x", tarfile.REGTYPE, "")),
            tar_of(("opt/d", tarfile.SYMTYPE, "e"), ("opt/e", tarfile.DIRTYPE, "")),
        ),
        "a folder too",
    ),
    (
        "link in place of a folder of another layer",
        lambda r: signed_image(
            r,
            tar_of(("opt/d", tarfile.SYMTYPE, "e"), ("opt/e", tarfile.DIRTYPE, "")),
            tar_of(("opt/d/x", tarfile.REGTYPE, "")),
        ),
        "is there twice",
    ),
    (
        "the same file in two layers",
        lambda r: signed_image(r, *[tar_of(("opt/x", tarfile.REGTYPE, ""))] * 2),
        "is there twice",
    ),
    (
        "a hard link to elsewhere in the image",
        lambda r: signed_image(
            r, tar_of(("bin/sh", tarfile.REGTYPE, ""), ("opt/sh", tarfile.LNKTYPE, "bin/sh"))
        ),
        "does not lie in 'opt'",
    ),
    (
        "a link in place of the folder",
        lambda r: signed_image(
            r, tar_of(("opt", tarfile.SYMTYPE, "usr"), ("usr/x", tarfile.REGTYPE, ""))
        ),
        "is there twice",
    ),
    (
        "absolute name elsewhere",
        lambda r: signed_image(r, tar_of(("/bin/sh", tarfile.REGTYPE, ""))),
        "outside of the artifact",
    ),
    ("bytes elsewhere", lambda r: signed_image(r, zeros("usr/x", 1 << 20)), "unpacks to more"),
    (
        "names without end",
        lambda r: signed_image(r, tar_of(*[("bin/x", tarfile.REGTYPE, "")] * 400)),
        "more than 131072 bytes of headers",
    ),
    (
        "a file with holes",
        lambda r: signed_image(r, holes(1 << 22)),
        "is a file with holes",
    ),
    ("no tar", lambda r: signed_image(r, b"x" * 2000), "as a tar stream"),
]


@pytest.mark.parametrize(("_name", "attack", "said"), HOSTILE, ids=[name for name, *_ in HOSTILE])
def test_even_what_is_signed_is_not_unpacked_blindly(
    registry: MemoryRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    _name: str,
    attack: Callable[[MemoryRegistry], None],
    said: str,
) -> None:
    """A key of ours signed it: the machine that builds may belong to others by now."""
    monkeypatch.setattr(layers, "LARGEST_CONTENT", 1 << 19)
    monkeypatch.setattr(unpack, "_MOST_HEADERS", 1 << 17)
    attack(registry)
    with pytest.raises(ProvisionError) as caught:
        pull(registry, tmp_path / "a")
    assert re.search(said, f"{caught.value.message} {caught.value.details}")
    # The layer itself is gone; the draft of an entry is its maker's to remove.
    assert {path.name for path in tmp_path.iterdir()} <= {"a"}
    assert {path.name for path in tmp_path.glob("a/*")} <= {"entry"}
    assert not (tmp_path / "a/entry/etc").exists()
