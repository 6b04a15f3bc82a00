"""Signatures that hosts accept, and signatures that they refuse before they ask for a layer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from provision.errors import ProvisionError, UntrustedError
from provision.pin import PIN_LABEL
from provision.registry.find import read_image
from provision.registry.signatures import sign, signature_tag, verify_signature
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
    registry.sign(digest, FACTS._replace(serial=SERIAL + 5), OTHER)
    registry.sign(digest, FACTS._replace(serial=SERIAL + 9), KEY)
    assert pull(registry, tmp_path / "a", KEY).facts == FACTS._replace(serial=SERIAL + 9)
    assert pull(registry, tmp_path / "b", OTHER).facts == FACTS._replace(serial=SERIAL + 5)
    assert len(json.loads(registry.manifests[signature_tag(digest)])["layers"]) == 3


def test_the_newest_signature_counts_and_texts_are_numbers(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    """As 'cosign sign -a serial=…' writes them."""
    digest = digest_of(registry.manifests["1"])
    facts = {**FACTS._asdict(), "serial": str(SERIAL + 60), "note": "of our own"}
    put_signature(registry, digest, payload(digest, facts), KEY)
    found = pull(registry, tmp_path).facts
    assert found is not None
    assert found.serial == SERIAL + 60


def say(registry: MemoryRegistry, text: bytes | None = None, **more: Any) -> None:  # noqa: ANN401 - options of `put_signature`
    """Put a signature of ours in place of the image's own: of any text, or of what is usual."""
    digest = signed_digest(registry)
    text = payload(digest, FACTS._asdict()) if text is None else text
    put_signature(registry, digest, text, more.pop("key", KEY), **more)


def say_fact(registry: MemoryRegistry, **changes: object) -> None:
    say(registry, payload(signed_digest(registry), {**FACTS._asdict(), **changes}))


def moved_from_another_image(registry: MemoryRegistry) -> None:
    """An image that was never signed has the signatures of one that was."""
    before = signed_digest(registry)
    other = registry.have_image(PIN, [layer_of(Path(__file__).parent / "../registry")])
    registry.manifests[signature_tag(other)] = registry.manifests[signature_tag(before)]


def altered(registry: MemoryRegistry) -> None:
    good = payload(signed_digest(registry), FACTS._asdict())
    signature = base64.b64encode(KEY.sign(good, ECDSA)).decode()
    say(registry, good.replace(b'"1.2"', b'"1.3"'), signature=signature)


def thousands(registry: MemoryRegistry) -> None:
    tag = signature_tag(signed_digest(registry))
    document = json.loads(registry.manifests[tag])
    registry.have_manifest({**document, "layers": document["layers"] * 100}, tag)


def an_image_with_its_own_pin(registry: MemoryRegistry) -> None:
    """The label of an image says another Pin than the signature does."""
    labels = {PIN_LABEL: make_pin(version="9.9").canonical_json()}
    registry.sign(registry.have_image(PIN, [b""], labels=labels), FACTS, KEY)


UNTRUSTED: dict[str, Callable[[MemoryRegistry], None]] = {
    "none": unsigned,
    "by a stranger": lambda r: say(r, key=OTHER),
    "of another image": lambda r: say(r, payload("sha256:" + "0" * 64, FACTS._asdict())),
    "moved from another image": moved_from_another_image,
    "of another kind": lambda r: say(
        r, payload(signed_digest(r), FACTS._asdict(), type="atomic container signature")
    ),
    "altered": altered,
    "no base64": lambda r: say(r, signature="!!"),
    "no DER": lambda r: say(r, signature="AAAA"),
    "no JSON": lambda r: say(r, b"\xff\xfe"),
    "deep": lambda r: say(r, b"[" * 60_000),
    "large": lambda r: say(r, payload(signed_digest(r), FACTS._asdict()).ljust(65 << 10)),
    "without facts": lambda r: say(r, payload(signed_digest(r), None)),
    "no serial": lambda r: say_fact(r, serial=True),
    "a serial without end": lambda r: say_fact(r, serial=10**400),
    "an old serial": lambda r: say_fact(r, serial=SERIAL - 1),
    "in an unknown layer": lambda r: say(r, media_type="text/plain"),
    "thousands": thousands,
    "another driver": lambda r: say_fact(r, driver="other"),
    "another kernel": lambda r: say_fact(r, kernel="6.1.0-48-amd64"),
    "another version": lambda r: say_fact(r, version="1.1"),
    "another flavour": lambda r: say_fact(r, flavour="proprietary"),
    "another architecture": lambda r: say_fact(r, architecture="aarch64"),
    "another distro": lambda r: say_fact(r, distro="debian:11"),
    "another pin": lambda r: say_fact(r, pin="sha256:" + "0" * 64),
    "an image with its own pin": an_image_with_its_own_pin,
}


def test_usual_facts_in_a_signature_of_ours_are_accepted(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    say(registry)
    assert pull(registry, tmp_path, oldest=SERIAL).facts == FACTS


@pytest.mark.parametrize("attack", UNTRUSTED)
def test_what_is_not_trusted_is_refused_before_a_layer_is_asked_for(
    registry: MemoryRegistry, tmp_path: Path, attack: str
) -> None:
    UNTRUSTED[attack](registry)
    registry.asked.clear()
    with pytest.raises(UntrustedError) as caught:
        pull(registry, tmp_path, oldest=SERIAL if attack == "an old serial" else 0)
    assert caught.value.exit_code == 1
    assert caught.value.resolution
    assert list(tmp_path.iterdir()) == []
    layers = {one["digest"] for one in json.loads(registry.manifests["1"])["layers"]}
    assert not any(asked.endswith(tuple(layers)) for asked in registry.asked)


def test_where_nothing_is_asked_for_nothing_is_verified(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    unsigned(registry)
    trusted = read_image(registry.client(), "x86_64")
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


def test_a_tag_that_moves_between_two_requests_serves_nothing_unsigned(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    first = signed_digest(registry)
    answers = iter([registry.manifests["1"]])
    other = registry.have_image(PIN, [], tag="2")

    def move(_host: str, what: str) -> None:
        if what == "manifest 1":
            registry.manifests["1"] = next(answers, registry.manifests[other])

    registry.hooks.append(move)
    registry.manifests[signature_tag(other)] = registry.manifests.pop(signature_tag(first))
    with pytest.raises(UntrustedError):
        pull(registry, tmp_path)
