"""A registry with a signed image of a whole artifact, and the pull of a host."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kit.artifact import make_artifact, make_pin
from kit.memory_registry import (
    ECDSA,
    MemoryRegistry,
    digest_of,
    layer_of,
    new_key,
    public,
    wanted_of,
)
from provision.engine.tar_streams import Unpacker
from provision.registry.find import ArtifactImage, facts_of, read_image, unpack_layers
from provision.registry.signatures import (
    ANNOTATION,
    PAYLOAD,
    payload_of,
    signature_tag,
    verify_signature,
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
) -> ArtifactImage:
    """Do what a host does: find, verify, unpack."""
    client = registry.client()
    trusted_keys = [public(key) for key in keys or (KEY,)]
    asked = wanted_of(PIN) if wanted is None else wanted
    trusted = read_image(
        client,
        "x86_64",
        examine=lambda digest: verify_signature(client, digest, trusted_keys, asked, oldest=oldest),
    )
    entry = folder / "entry"
    entry.mkdir(parents=True)
    unpacker = Unpacker(entry, strip="opt", ignores_others=True)
    unpack_layers(trusted, folder, unpacker.unpack)
    return trusted


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
    document = json.loads(registry.manifests[signature_tag(signed_digest(registry))])
    registry.have_manifest({**document, "layers": [signed]}, signature_tag(digest))


def signed_digest(registry: MemoryRegistry) -> str:
    return digest_of(registry.manifests["1"])


def unsigned(registry: MemoryRegistry) -> None:
    del registry.manifests[signature_tag(signed_digest(registry))]


def tar_of(*members: tuple[str, bytes, str]) -> bytes:
    """Return a layer of members: name, kind of the tar format, target of a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return buffer.getvalue()


def images_manifest(registry: MemoryRegistry, **changes: object) -> None:
    document = json.loads(registry.manifests["1"])
    registry.sign(registry.have_manifest({**document, **changes}), FACTS, KEY)


def changed_layer(registry: MemoryRegistry, **changes: object) -> None:
    (layer,) = json.loads(registry.manifests["1"])["layers"]
    images_manifest(registry, layers=[{**layer, **changes}])


def signed_image(registry: MemoryRegistry, *layers: bytes) -> None:
    registry.sign(registry.have_image(PIN, layers), FACTS, KEY)
