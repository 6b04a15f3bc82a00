"""Signatures that hosts accept, and signatures that they refuse before they ask for a layer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kit.artifact import make_pin
from kit.memory_registry import (
    ECDSA,
    MemoryRegistry,
    digest_of,
    layer_of,
    public,
)
from provision.errors import ProvisionError
from provision.pin import PIN_LABEL
from provision.registry.artifact_images import find
from provision.registry.signatures import UntrustedError, sign, signature_tag, verify_signature
from unit.registry.signed_images import (
    FACTS,
    KEY,
    OTHER,
    PIN,
    SERIAL,
    payload,
    pull,
    put_signature,
    signed_digest,
    unsigned,
)
from unit.registry.signed_images import layer as layer  # noqa: PLC0414 - a fixture
from unit.registry.signed_images import registry as registry  # noqa: PLC0414 - a fixture


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


def foreign_signature(registry: MemoryRegistry) -> None:
    put_signature(
        registry, signed_digest(registry), payload(signed_digest(registry), asdict(FACTS)), OTHER
    )


def signature_of_another_image(registry: MemoryRegistry) -> None:
    text = payload("sha256:" + "0" * 64, asdict(FACTS))
    put_signature(registry, signed_digest(registry), text, KEY)


def signature_moved_from_another_image(registry: MemoryRegistry) -> None:
    """An image that was never signed, with the signatures of one that was."""
    before = signed_digest(registry)
    other = registry.have_image(PIN, [layer_of(Path(__file__).parent / "../registry")])
    registry.manifests[signature_tag(other)] = registry.manifests[signature_tag(before)]


def signature_of_another_kind(registry: MemoryRegistry) -> None:
    text = payload(signed_digest(registry), asdict(FACTS), type="atomic container signature")
    put_signature(registry, signed_digest(registry), text, KEY)


def payload_that_was_altered(registry: MemoryRegistry) -> None:
    good = payload(signed_digest(registry), asdict(FACTS))
    signature = base64.b64encode(KEY.sign(good, ECDSA)).decode()
    altered = good.replace(b'"1.2"', b'"1.3"')
    put_signature(registry, signed_digest(registry), altered, KEY, signature=signature)


def signature_that_is_no_base64(registry: MemoryRegistry) -> None:
    text = payload(signed_digest(registry), asdict(FACTS))
    put_signature(registry, signed_digest(registry), text, KEY, signature="!!")


def signature_that_is_no_der(registry: MemoryRegistry) -> None:
    text = payload(signed_digest(registry), asdict(FACTS))
    put_signature(registry, signed_digest(registry), text, KEY, signature="AAAA")


def signed_text_that_is_no_json(registry: MemoryRegistry) -> None:
    put_signature(registry, signed_digest(registry), b"\xff\xfe", KEY)


def signed_text_that_is_deep(registry: MemoryRegistry) -> None:
    put_signature(registry, signed_digest(registry), b"[" * 60_000, KEY)


def signed_text_that_is_large(registry: MemoryRegistry) -> None:
    put_signature(registry, signed_digest(registry), b"x" * (65 << 10), KEY)


def signature_without_facts(registry: MemoryRegistry) -> None:
    put_signature(registry, signed_digest(registry), payload(signed_digest(registry), None), KEY)


def signature_of_no_serial(registry: MemoryRegistry) -> None:
    facts = {**asdict(FACTS), "serial": True}
    put_signature(registry, signed_digest(registry), payload(signed_digest(registry), facts), KEY)


def signature_of_a_serial_without_end(registry: MemoryRegistry) -> None:
    resign(registry, serial=10**400)


def signature_in_an_unknown_layer(registry: MemoryRegistry) -> None:
    text = payload(signed_digest(registry), asdict(FACTS))
    put_signature(registry, signed_digest(registry), text, KEY, media_type="text/plain")


def thousand_signatures(registry: MemoryRegistry) -> None:
    tag = signature_tag(signed_digest(registry))
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
    put_signature(registry, signed_digest(registry), payload(signed_digest(registry), facts), KEY)


def another_image_by_that_digest(registry: MemoryRegistry) -> None:
    """The tag moves between two requests: the second answer is another image."""
    first = signed_digest(registry)
    answers = iter([registry.manifests["1"]])
    other = registry.have_image(PIN, [], tag="2")

    def move(_host: str, what: str) -> None:
        if what == "manifest 1":
            registry.manifests["1"] = next(answers, registry.manifests[other])

    registry.hooks.append(move)
    registry.manifests[signature_tag(other)] = registry.manifests.pop(signature_tag(first))


def unsigned_image_with_its_own_pin(registry: MemoryRegistry) -> None:
    """The label of an image says another Pin than the signature does."""
    other = make_pin(version="9.9")
    digest = registry.have_image(PIN, [b""], labels={PIN_LABEL: other.canonical_json()})
    put_signature_of(registry, digest)


def put_signature_of(registry: MemoryRegistry, digest: str) -> None:
    registry.sign(digest, FACTS, KEY)


UNTRUSTED: list[Callable[[MemoryRegistry], None]] = [
    unsigned,
    foreign_signature,
    signature_of_another_image,
    signature_moved_from_another_image,
    signature_of_another_kind,
    payload_that_was_altered,
    signature_that_is_no_base64,
    signature_that_is_no_der,
    signed_text_that_is_no_json,
    signed_text_that_is_deep,
    signed_text_that_is_large,
    signature_without_facts,
    signature_of_no_serial,
    signature_of_a_serial_without_end,
    signature_in_an_unknown_layer,
    thousand_signatures,
    facts_of_another_driver,
    facts_of_another_kernel,
    facts_of_another_version,
    facts_of_another_flavour,
    facts_of_another_architecture,
    facts_of_another_distro,
    facts_of_another_pin,
    old_signature,
    unsigned_image_with_its_own_pin,
]


@pytest.mark.parametrize("attack", UNTRUSTED)
def test_what_is_not_trusted_is_refused_before_a_layer_is_asked_for(
    registry: MemoryRegistry, tmp_path: Path, attack: Callable[[MemoryRegistry], None]
) -> None:
    attack(registry)
    registry.asked.clear()
    with pytest.raises(UntrustedError) as caught:
        pull(registry, tmp_path, oldest=SERIAL)
    assert caught.value.exit_code == 1
    assert caught.value.resolution
    assert list(tmp_path.iterdir()) == []
    layers = {one["digest"] for one in json.loads(registry.manifests["1"])["layers"]}
    assert not any(asked.endswith(tuple(layers)) for asked in registry.asked)


def test_where_nothing_is_asked_for_nothing_is_verified(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    unsigned(registry)
    trusted = find(registry.client(), "x86_64")
    assert trusted.verified is None
    assert list(tmp_path.iterdir()) == []


def test_signatures_that_are_none_are_not_written_over(registry: MemoryRegistry) -> None:
    tag = signature_tag(signed_digest(registry))
    registry.manifests[tag] = b"something else"
    with pytest.raises(ProvisionError):
        sign(registry.client(), signed_digest(registry), FACTS, lambda _data: b"x")
    assert registry.manifests[tag] == b"something else"


def test_no_more_is_signed_than_hosts_read(registry: MemoryRegistry) -> None:
    digest, tag = signed_digest(registry), signature_tag(signed_digest(registry))
    document = json.loads(registry.manifests[tag])
    document["layers"] *= 63
    registry.manifests[tag] = json.dumps(document).encode()
    sign(registry.client(), digest, FACTS, lambda _data: b"x")
    full = registry.manifests[tag]
    assert len(json.loads(full)["layers"]) == 64
    with pytest.raises(ProvisionError) as caught:
        sign(registry.client(), digest, FACTS, lambda _data: b"y")
    assert tag in (caught.value.resolution or "")
    assert registry.manifests[tag] == full
    assert verify_signature(registry.client(), digest, [public(KEY)], {}).facts == FACTS


def test_a_tag_that_moves_serves_nothing_unsigned(registry: MemoryRegistry, tmp_path: Path) -> None:
    another_image_by_that_digest(registry)
    with pytest.raises(UntrustedError):
        pull(registry, tmp_path)
