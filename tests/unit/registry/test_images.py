"""Images of registries that lie: whatever they serve, nothing is unpacked that is not trusted."""

from __future__ import annotations

import base64
import io
import json
import re
import signal
import tarfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from provision.engine import tar_streams as unpack
from provision.engine.tar_streams import Unpacker
from provision.errors import NotFoundError, ProvisionError
from provision.pin import PIN_LABEL
from provision.progress import silent
from provision.registry import artifact_images, layers
from provision.registry.artifact_images import Trusted, facts_of, find, unpack_layers
from provision.registry.attached_signatures import sign, signature_tag, verify_signature
from provision.registry.image_signature import ANNOTATION, PAYLOAD, UntrustedError, payload_of
from provision.registry.manifests import OCI_INDEX, OCI_MANIFEST
from provision.registry.private_key import FileSigner
from provision.run import Completed
from unit.kmod.artifact import make_artifact, make_pin
from unit.registry.memory import (
    ECDSA,
    Answer,
    Asked,
    MemoryRegistry,
    digest_of,
    layer_of,
    new_key,
    public,
    wanted_of,
)

PIN = make_pin()
KEY, OTHER = new_key(), new_key()
SERIAL = 1_790_000_000
FACTS = facts_of(PIN, SERIAL)


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The layer of a whole artifact."""
    folder = tmp_path_factory.mktemp("artifact")
    make_artifact(folder, pin=PIN)
    return layer_of(folder)


@pytest.fixture
def registry(layer: bytes) -> MemoryRegistry:
    """A registry with an image that is signed as it should be."""
    registry = MemoryRegistry()
    registry.sign(registry.have_image(PIN, [layer]), FACTS, KEY)
    return registry


def pull(
    registry: MemoryRegistry,
    folder: Path,
    *keys: ec.EllipticCurvePrivateKey,
    oldest: int = 0,
    wanted: dict[str, str] | None = None,
) -> Trusted:
    """Do what a host does: find, verify, unpack."""
    client = registry.client()
    trusted_keys = [public(key) for key in keys or (KEY,)]
    asked = wanted_of(PIN) if wanted is None else wanted
    trusted = find(
        client,
        "x86_64",
        examine=lambda digest: verify_signature(client, digest, trusted_keys, asked, oldest=oldest),
    )
    entry = folder / "entry"
    entry.mkdir(parents=True)
    unpacker = Unpacker(entry, strip="opt", progress=silent, ignores_others=True)
    unpack_layers(trusted.image, folder, unpacker.unpack)
    return trusted


def test_what_is_signed_is_unpacked(registry: MemoryRegistry, tmp_path: Path) -> None:
    trusted = pull(registry, tmp_path)
    assert trusted.facts == FACTS
    assert trusted.image.pin == PIN
    assert (tmp_path / "entry/driver/manifest.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


@pytest.mark.parametrize("keys", [(OTHER, KEY), (KEY, OTHER)])
def test_one_of_several_keys_suffices(
    registry: MemoryRegistry, tmp_path: Path, keys: tuple[ec.EllipticCurvePrivateKey, ...]
) -> None:
    pull(registry, tmp_path, *keys)


def test_a_second_signature_leaves_the_first(registry: MemoryRegistry, tmp_path: Path) -> None:
    digest = digest_of(registry.manifests["1"])
    registry.sign(digest, replace(FACTS, serial=SERIAL + 5), OTHER)
    registry.sign(digest, replace(FACTS, serial=SERIAL + 9), KEY)
    assert pull(registry, tmp_path / "a", KEY).facts == replace(FACTS, serial=SERIAL + 9)
    assert pull(registry, tmp_path / "b", OTHER).facts == replace(FACTS, serial=SERIAL + 5)
    assert len(json.loads(registry.manifests[signature_tag(digest)])["layers"]) == 3


def test_the_newest_signature_counts_and_texts_are_numbers(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    """As 'cosign sign -a serial=…' writes them."""
    digest = digest_of(registry.manifests["1"])
    facts = {**asdict(FACTS), "serial": str(SERIAL + 60), "note": "of our own"}
    put_signature(registry, digest, payload(digest, facts), KEY)
    found = pull(registry, tmp_path).facts
    assert found is not None
    assert found.serial == SERIAL + 60


def test_an_index_leads_to_the_hosts_architecture(registry: MemoryRegistry, tmp_path: Path) -> None:
    def entry(architecture: str, digest: str) -> dict[str, Any]:
        size = len(registry.manifests[digest])
        platform = {"architecture": architecture, "os": "linux"}
        return {"mediaType": OCI_MANIFEST, "digest": digest, "size": size, "platform": platform}

    digest = digest_of(registry.manifests["1"])
    other = registry.have_manifest({"schemaVersion": 2, "layers": []}, "2")
    manifests = [entry("arm64", other), entry("amd64", digest)]
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}
    registry.have_manifest(index, "1")
    assert pull(registry, tmp_path).image.reference.digest == digest
    with pytest.raises(NotFoundError, match="no image for s390x"):
        find(registry.client(), "s390x")


# Hostile registries: what each does, and what is said about it.


def payload(digest: str, optional: object, **critical: object) -> bytes:
    document = json.loads(payload_of(digest, FACTS, "x"))
    return json.dumps(
        {"critical": {**document["critical"], **critical}, "optional": optional}
    ).encode()


def put_signature(
    registry: MemoryRegistry,
    digest: str,
    text: bytes,
    key: ec.EllipticCurvePrivateKey,
    *,
    signature: str | None = None,
    media_type: str = PAYLOAD,
) -> None:
    """Put a signature of any text in place of those of an image."""
    if signature is None:
        signature = base64.b64encode(key.sign(text, ECDSA)).decode()
    signed = {
        "mediaType": media_type,
        "digest": registry.have_blob(text),
        "size": len(text),
        "annotations": {ANNOTATION: signature},
    }
    document = json.loads(registry.manifests[signature_tag(FIRST(registry))])
    registry.have_manifest({**document, "layers": [signed]}, signature_tag(digest))


def FIRST(registry: MemoryRegistry) -> str:  # noqa: N802 - reads as a constant
    return digest_of(registry.manifests["1"])


def unsigned(registry: MemoryRegistry) -> None:
    del registry.manifests[signature_tag(FIRST(registry))]


def foreign_signature(registry: MemoryRegistry) -> None:
    put_signature(registry, FIRST(registry), payload(FIRST(registry), asdict(FACTS)), OTHER)


def signature_of_another_image(registry: MemoryRegistry) -> None:
    text = payload("sha256:" + "0" * 64, asdict(FACTS))
    put_signature(registry, FIRST(registry), text, KEY)


def signature_moved_from_another_image(registry: MemoryRegistry) -> None:
    """An image that was never signed, with the signatures of one that was."""
    before = FIRST(registry)
    other = registry.have_image(PIN, [layer_of(Path(__file__).parent / "../registry")])
    registry.manifests[signature_tag(other)] = registry.manifests[signature_tag(before)]


def signature_of_another_kind(registry: MemoryRegistry) -> None:
    text = payload(FIRST(registry), asdict(FACTS), type="atomic container signature")
    put_signature(registry, FIRST(registry), text, KEY)


def payload_that_was_altered(registry: MemoryRegistry) -> None:
    good = payload(FIRST(registry), asdict(FACTS))
    signature = base64.b64encode(KEY.sign(good, ECDSA)).decode()
    altered = good.replace(b'"1.2"', b'"1.3"')
    put_signature(registry, FIRST(registry), altered, KEY, signature=signature)


def signature_that_is_no_base64(registry: MemoryRegistry) -> None:
    text = payload(FIRST(registry), asdict(FACTS))
    put_signature(registry, FIRST(registry), text, KEY, signature="!!")


def signature_that_is_no_der(registry: MemoryRegistry) -> None:
    text = payload(FIRST(registry), asdict(FACTS))
    put_signature(registry, FIRST(registry), text, KEY, signature="AAAA")


def signed_text_that_is_no_json(registry: MemoryRegistry) -> None:
    put_signature(registry, FIRST(registry), b"\xff\xfe", KEY)


def signed_text_that_is_deep(registry: MemoryRegistry) -> None:
    put_signature(registry, FIRST(registry), b"[" * 60_000, KEY)


def signed_text_that_is_large(registry: MemoryRegistry) -> None:
    put_signature(registry, FIRST(registry), b"x" * (65 << 10), KEY)


def signature_without_facts(registry: MemoryRegistry) -> None:
    put_signature(registry, FIRST(registry), payload(FIRST(registry), None), KEY)


def signature_of_no_serial(registry: MemoryRegistry) -> None:
    facts = {**asdict(FACTS), "serial": True}
    put_signature(registry, FIRST(registry), payload(FIRST(registry), facts), KEY)


def signature_of_a_serial_without_end(registry: MemoryRegistry) -> None:
    resign(registry, serial=10**400)


def signature_in_an_unknown_layer(registry: MemoryRegistry) -> None:
    text = payload(FIRST(registry), asdict(FACTS))
    put_signature(registry, FIRST(registry), text, KEY, media_type="text/plain")


def thousand_signatures(registry: MemoryRegistry) -> None:
    tag = signature_tag(FIRST(registry))
    document = json.loads(registry.manifests[tag])
    registry.have_manifest({**document, "layers": document["layers"] * 100}, tag)


def facts_of_another_driver(registry: MemoryRegistry) -> None:
    resign(registry, driver="other")


def facts_of_another_kernel(registry: MemoryRegistry) -> None:
    resign(registry, kernel="6.1.0-48-amd64")


def facts_of_another_version(registry: MemoryRegistry) -> None:
    resign(registry, version="1.1")


def facts_of_another_flavour(registry: MemoryRegistry) -> None:
    resign(registry, flavour="proprietary")


def facts_of_another_architecture(registry: MemoryRegistry) -> None:
    resign(registry, architecture="aarch64")


def facts_of_another_distro(registry: MemoryRegistry) -> None:
    resign(registry, distro="debian:11")


def facts_of_another_pin(registry: MemoryRegistry) -> None:
    resign(registry, pin="sha256:" + "0" * 64)


def old_signature(registry: MemoryRegistry) -> None:
    resign(registry, serial=SERIAL - 1)


def resign(registry: MemoryRegistry, **changes: object) -> None:
    facts = {**asdict(FACTS), **changes}
    put_signature(registry, FIRST(registry), payload(FIRST(registry), facts), KEY)


def another_image_by_that_digest(registry: MemoryRegistry) -> None:
    """The tag moves between two requests: the second answer is another image."""
    first = FIRST(registry)
    answers = iter([registry.manifests["1"]])
    other = registry.have_image(PIN, [], tag="2")

    def handler(asked: Asked) -> Answer | None:
        if asked.path.endswith("/manifests/1"):
            return Answer(200, next(answers, registry.manifests[other]))
        return None

    registry.handlers.append(handler)
    registry.manifests[signature_tag(other)] = registry.manifests.pop(signature_tag(first))


def unsigned_image_with_its_own_pin(registry: MemoryRegistry) -> None:
    """The label of an image says another Pin than the signature does."""
    other = make_pin(version="9.9")
    digest = registry.have_image(PIN, [b""], labels={PIN_LABEL: other.canonical_json()})
    put_signature_of(registry, digest)


def put_signature_of(registry: MemoryRegistry, digest: str) -> None:
    registry.sign(digest, FACTS, KEY)


UNTRUSTED: list[tuple[Callable[[MemoryRegistry], None], str]] = [
    (unsigned, "it has no signature"),
    (foreign_signature, "by none of the keys"),
    (signature_of_another_image, "fleet.pub is of another image"),
    (signature_moved_from_another_image, "is of another image"),
    (signature_of_another_kind, "of another image"),
    (payload_that_was_altered, "by none of the keys"),
    (signature_that_is_no_base64, "not base64"),
    (signature_that_is_no_der, "by none of the keys"),
    (signed_text_that_is_no_json, "says nothing of an image"),
    (signed_text_that_is_deep, "says nothing of an image"),
    (signature_without_facts, "does not say which driver"),
    (signature_of_no_serial, "does not say which driver"),
    (signature_of_a_serial_without_end, "does not say which driver"),
    (signature_in_an_unknown_layer, "it has no signature"),
    (thousand_signatures, "more than 64"),
    (facts_of_another_driver, "driver: demo was asked for, and other is signed"),
    (facts_of_another_kernel, "and 6.1.0-48-amd64 is signed"),
    (facts_of_another_version, "version: 1.2 was asked for, and 1.1 is signed"),
    (facts_of_another_flavour, "flavour: open was asked for"),
    (facts_of_another_architecture, "architecture: x86_64 was asked for"),
    (facts_of_another_distro, "distro: debian:12 was asked for"),
    (facts_of_another_pin, "its Pin is not the one that is signed"),
    (old_signature, "not_before asks for"),
    (unsigned_image_with_its_own_pin, "its Pin is not the one that is signed"),
]


@pytest.mark.parametrize(("attack", "said"), UNTRUSTED, ids=[a.__name__ for a, _ in UNTRUSTED])
def test_what_is_not_trusted_is_refused_before_a_layer_is_asked_for(
    registry: MemoryRegistry, tmp_path: Path, attack: Callable[[MemoryRegistry], None], said: str
) -> None:
    attack(registry)
    registry.asked.clear()
    with pytest.raises(UntrustedError) as caught:
        pull(registry, tmp_path, oldest=SERIAL)
    assert said in f"{caught.value.message} {caught.value.details}"
    assert caught.value.exit_code == 1
    assert caught.value.resolution
    assert list(tmp_path.iterdir()) == []
    layers = {one["digest"] for one in json.loads(registry.manifests["1"])["layers"]}
    assert not any(asked.path.endswith(tuple(layers)) for asked in registry.asked)


def tar_of(*members: tuple[str, bytes, str]) -> bytes:
    """Return a layer of members: name, kind of the tar format, target of a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return buffer.getvalue()


def zeros(name: str, size: int) -> bytes:
    """Return a layer of one file of zeros."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = size
        archive.addfile(info, io.BytesIO(bytes(size)))
    return buffer.getvalue()


def images_manifest(registry: MemoryRegistry, **changes: object) -> None:
    document = json.loads(registry.manifests["1"])
    registry.sign(registry.have_manifest({**document, **changes}), FACTS, KEY)


def changed_layer(registry: MemoryRegistry, **changes: object) -> None:
    (layer,) = json.loads(registry.manifests["1"])["layers"]
    images_manifest(registry, layers=[{**layer, **changes}])


def signed_image(registry: MemoryRegistry, *layers: bytes) -> None:
    registry.sign(registry.have_image(PIN, layers), FACTS, KEY)


def a_layer_with_another_content(registry: MemoryRegistry) -> None:
    (layer,) = json.loads(registry.manifests["1"])["layers"]
    stored = registry.blobs[layer["digest"]]
    registry.blobs[layer["digest"]] = stored[:-1] + bytes([stored[-1] ^ 1])


def a_layer_that_never_ends(registry: MemoryRegistry) -> None:
    (layer,) = json.loads(registry.manifests["1"])["layers"]
    registry.blobs[layer["digest"]] *= 50


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


def list_of_holes() -> bytes:
    """The header of an old GNU file with holes that says: the list goes on in the next block."""
    info = bytearray(header(tarfile.GNUTYPE_SPARSE, b"", name="opt/x"))
    info[482] = 1
    info[148:156] = b" " * 8
    info[148:156] = b"%06o\0 " % sum(info)
    block = b"00000000001\0" * 42 + b"\1" + bytes(7)
    return bytes(info) + block * 200


def endless_list_of_holes() -> bytes:
    """A file with holes in PAX' newest form, whose list has no end of a line."""
    said = {"GNU__sparse__major": "1", "GNU__sparse__minor": "0", "GNU__sparse__name": "opt/x"}
    return paxes(**said, GNU__sparse__realsize="1") + header(b"0", b"1" * 100_000, name="opt/x")


HOSTILE: list[tuple[str, Callable[[MemoryRegistry], None], str]] = [
    (
        "a header of headers without end",
        lambda r: signed_image(r, header(tarfile.GNUTYPE_LONGNAME, b"opt/x\0") * 3000),
        "as a tar stream",
    ),
    (
        "a long header of PAX",
        lambda r: signed_image(r, paxes(comment="x" * 70_000) + header(b"0", b"", name="opt/x")),
        "a header of 70",
    ),
    (
        "a long name of GNU's",
        lambda r: signed_image(r, header(tarfile.GNUTYPE_LONGNAME, b"x" * 70_000)),
        "a header of 70",
    ),
    (
        "a header for all files",
        lambda r: signed_image(r, header(tarfile.XGLTYPE, b"6 a=b\n")),
        "a header for all files",
    ),
    ("a list of holes", lambda r: signed_image(r, list_of_holes()), "a file with holes"),
    (
        "an endless list of holes",
        lambda r: signed_image(r, endless_list_of_holes()),
        "is a file with holes",
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
    ("another content", a_layer_with_another_content, "another content"),
    ("endless blob", a_layer_that_never_ends, "is larger than"),
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
    (
        "foreign layer",
        lambda r: changed_layer(r, urls=["http://169.254.169.254/"]),
        "a layer that lies elsewhere",
    ),
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
        "a layer that hides a file of another",
        lambda r: signed_image(r, tar_of(("opt/.wh.driver", tarfile.REGTYPE, ""))),
        "hides what another layer has",
    ),
    (
        "a layer that hides all of another",
        lambda r: signed_image(r, tar_of((".wh.opt", tarfile.REGTYPE, ""))),
        "hides what another layer has",
    ),
    (
        "a layer that hides everything",
        lambda r: signed_image(r, tar_of((".wh..wh..opq", tarfile.REGTYPE, ""))),
        "hides what another layer has",
    ),
    (
        "absolute name elsewhere",
        lambda r: signed_image(r, tar_of(("/bin/sh", tarfile.REGTYPE, ""))),
        "outside of the artifact",
    ),
    ("bytes elsewhere", lambda r: signed_image(r, zeros("usr/x", 1 << 20)), "unpacks to more"),
    (
        "names without end",
        lambda r: signed_image(r, tar_of(*[("bin/x", tarfile.REGTYPE, "")] * 60)),
        "more than 50 members",
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
    monkeypatch.setattr(unpack, "_MOST_MEMBERS", 50)
    attack(registry)
    with pytest.raises(ProvisionError) as caught:
        pull(registry, tmp_path / "a")
    assert re.search(said, f"{caught.value.message} {caught.value.details}")
    # The layer itself is gone; the draft of an entry is its maker's to remove.
    assert {path.name for path in tmp_path.iterdir()} <= {"a"}
    assert {path.name for path in tmp_path.glob("a/*")} <= {"entry"}
    assert not (tmp_path / "a/entry/etc").exists()


def test_what_an_image_has_for_others_is_passed_over(
    registry: MemoryRegistry, layer: bytes, tmp_path: Path
) -> None:
    """Kubernetes' KMM needs a shell in the image; none of it gets onto a host, whatever it is."""
    shell = tar_of(
        ("./", tarfile.DIRTYPE, ""),
        ("./bin", tarfile.SYMTYPE, "usr/bin"),
        ("lib", tarfile.SYMTYPE, "/usr/lib"),
        ("usr/bin/sh", tarfile.REGTYPE, ""),
        ("usr/bin/cp", tarfile.LNKTYPE, "usr/bin/sh"),
        ("etc/passwd", tarfile.SYMTYPE, "../../../etc/passwd"),
        ("dev/sda", tarfile.BLKTYPE, ""),
        ("usr/.wh.share", tarfile.REGTYPE, ""),
        ("usr/bin/sh", tarfile.REGTYPE, ""),
    )
    signed_image(registry, shell, layer, shell)
    pull(registry, tmp_path)
    assert {path.name for path in (tmp_path / "entry").iterdir()} == {"driver", "lib"}
    assert not (tmp_path / "entry/lib").is_symlink()
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


@pytest.mark.parametrize(
    ("status", "stderr", "said"),
    [
        (0, "", None),
        (1, "zstd: corrupt", "can't be decompressed"),
        (-signal.SIGXFSZ, "", "unpacks to more"),
        (1, "zstd: File too large", "unpacks to more"),
    ],
)
def test_a_layer_of_zstd_is_left_to_the_distros_program(
    registry: MemoryRegistry,
    layer: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    stderr: str,
    said: str | None,
) -> None:
    packed = b"\x28\xb5\x2f\xfd" + layer
    stored = {"digest": registry.have_blob(packed), "size": len(packed)}
    changed_layer(registry, mediaType="application/vnd.oci.image.layer.v1.tar+zstd", **stored)
    asked: list[str] = []

    def run(argv: list[str], **_more: object) -> Completed:
        asked.extend(argv)
        target, source = Path(argv[-2]), Path(argv[-1])
        assert source.read_bytes() == packed
        target.write_bytes(layer)
        return Completed(tuple(argv), status, "", stderr)

    monkeypatch.setattr(artifact_images, "run", run)
    monkeypatch.setattr(artifact_images, "find_program", lambda name: f"/usr/bin/{name}")
    if said is None:
        pull(registry, tmp_path)
        assert (tmp_path / "entry/driver/manifest.json").is_file()
    else:
        with pytest.raises(ProvisionError, match=said):
            pull(registry, tmp_path)
    # Neither bytes nor memory without a limit.
    assert asked[:2] == ["prlimit", f"--fsize={16 << 30}"]
    assert "--memory=128MB" in asked
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_a_tag_that_moves_serves_nothing_unsigned(registry: MemoryRegistry, tmp_path: Path) -> None:
    another_image_by_that_digest(registry)
    with pytest.raises(UntrustedError):
        pull(registry, tmp_path)


def test_what_is_verified_is_what_is_unpacked(registry: MemoryRegistry, tmp_path: Path) -> None:
    """From the first answer on, everything is asked for by digest."""
    pull(registry, tmp_path)
    names = [asked.path.rsplit("/", 1)[1] for asked in registry.asked if asked.method == "GET"]
    # The registry's own tests put the signature there first.
    pulled = names[names.index("1") :]
    assert pulled.count("1") == 1
    assert all(name.startswith("sha256") for name in pulled[1:])


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b"[" * 100_000, b"\xff"])
def test_a_manifest_that_is_none(registry: MemoryRegistry, tmp_path: Path, body: bytes) -> None:
    registry.manifests["1"] = body
    registry.sign(digest_of(body), FACTS, KEY)
    with pytest.raises(ProvisionError, match="is refused"):
        pull(registry, tmp_path)


def test_an_image_of_another_program_is_named_so(
    registry: MemoryRegistry, tmp_path: Path, layer: bytes
) -> None:
    registry.sign(registry.have_image(PIN, [layer], labels={"a": "b"}), FACTS, KEY)
    with pytest.raises(ProvisionError, match="is no artifact image"):
        pull(registry, tmp_path)


def test_where_nothing_is_asked_for_nothing_is_verified(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    unsigned(registry)
    trusted = find(registry.client(), "x86_64")
    assert trusted.verified is None
    assert list(tmp_path.iterdir()) == []


def test_signatures_that_are_none_are_not_written_over(registry: MemoryRegistry) -> None:
    tag = signature_tag(FIRST(registry))
    registry.manifests[tag] = b"something else"
    with pytest.raises(ProvisionError, match="not JSON"):
        sign(registry.client(), FIRST(registry), FACTS, lambda _data: b"x")
    assert registry.manifests[tag] == b"something else"


def test_no_more_is_signed_than_hosts_read(registry: MemoryRegistry) -> None:
    digest, tag = FIRST(registry), signature_tag(FIRST(registry))
    document = json.loads(registry.manifests[tag])
    document["layers"] *= 63
    registry.manifests[tag] = json.dumps(document).encode()
    sign(registry.client(), digest, FACTS, lambda _data: b"x")
    full = registry.manifests[tag]
    assert len(json.loads(full)["layers"]) == 64
    with pytest.raises(ProvisionError, match="has 64 signatures") as caught:
        sign(registry.client(), digest, FACTS, lambda _data: b"y")
    assert tag in (caught.value.resolution or "")
    assert registry.manifests[tag] == full
    assert verify_signature(registry.client(), digest, [public(KEY)], {}).facts == FACTS
    # What a key signed before gives way to what it signs now; the other one's signature stays.
    newer = replace(FACTS, serial=FACTS.serial + 1)
    sign(registry.client(), digest, newer, FileSigner(KEY, public(KEY)))
    assert len(json.loads(registry.manifests[tag])["layers"]) == 2
    assert verify_signature(registry.client(), digest, [public(KEY)], {}).facts == newer
