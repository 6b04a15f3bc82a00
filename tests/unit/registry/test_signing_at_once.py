"""Two who push or sign the same at the same moment: what each leaves is what hosts can use.

The other one acts between two requests of ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kit.artifact import make_pin
from kit.memory_registry import MemoryRegistry, public
from provision.build.image import record_built
from provision.build.workspace import Settings
from provision.engine.docker_api import Engine, Image
from provision.pin import PIN_LABEL
from provision.registry import parse_reference, pin_tag
from provision.registry.find import facts_of, tag_of
from provision.registry.publish import (
    PinTagConflictError,
    Pushed,
    SignedImage,
    publish,
    sign_image,
)
from provision.registry.repositories import Repository, find_digest
from provision.registry.signatures import FileSigner, signature_tag, verify_signature
from unit.engine.fake_engine import FakeEngine, using
from unit.registry.trusting_host import ADDRESS, KEY, OTHER, SERIAL, connected, have
from unit.registry.trusting_host import registry as registry  # noqa: PLC0414 - a fixture
from unit.registry.trusting_host import settings as settings  # noqa: PLC0414 - a fixture

PIN = make_pin()
NAME = f"{ADDRESS}/demo:{tag_of(PIN).text}"
SIGNER = FileSigner(KEY, public(KEY))


def sign(settings: Settings, registry: MemoryRegistry) -> SignedImage:
    return sign_image(settings, parse_reference(NAME), SIGNER, connected=connected(registry))


def after_put(registry: MemoryRegistry, name: str, act: Callable[[], object]) -> None:
    """Have something done once, as soon as a manifest of that name was written."""
    left = [act]

    def hook(tag: str) -> None:
        if tag == name and left:
            left.pop()()

    registry.after.append(hook)


def test_who_signs_with_another_key_at_the_same_moment_takes_nothing_away(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    """It read that there is no signature before we wrote ours, and writes its own after that."""
    digest = have(registry, tmp_path, PIN, signed=False)
    tag = signature_tag(digest)

    def theirs() -> None:
        del registry.manifests[tag]
        registry.sign(digest, facts_of(PIN, SERIAL), OTHER)

    after_put(registry, tag, theirs)
    sign(settings, registry)
    client = registry.client(NAME)
    for key in (KEY, OTHER):
        assert verify_signature(client, digest, [public(key)], {"pin": PIN.digest}).facts
    assert len(json.loads(registry.manifests[tag])["layers"]) == 2


def test_a_signature_that_stays_is_written_once(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    digest = have(registry, tmp_path, PIN, signed=False)
    assert sign(settings, registry).signature == f"{ADDRESS}/demo:{signature_tag(digest)}"
    assert registry.asked.count(f"put {signature_tag(digest)}") == 1


def another_build(registry: MemoryRegistry) -> str:
    """Another build of the Pin, which its own tag leads to."""
    return registry.have_image(PIN, [b"theirs"], pin_tag(PIN.digest))


def test_the_tag_of_a_pin_that_moves_while_its_image_is_signed_is_said(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    digest = have(registry, tmp_path, PIN, signed=False)
    after_put(registry, signature_tag(digest), lambda: another_build(registry))
    with pytest.raises(PinTagConflictError):
        sign(settings, registry)


def slow_push(registry: MemoryRegistry, meanwhile: Callable[[], object]) -> Callable[..., str]:
    """Return a push that takes so long that another has pushed the same Pin meanwhile."""

    def push(_engine: Engine, _id: str, target: Repository, *, state: Path) -> str:
        del state
        meanwhile()
        return registry.have_image(PIN, [b"ours"], str(target.reference.tag))

    return push


def push(
    host: Settings, registry: MemoryRegistry, meanwhile: Callable[[], object] = lambda: None
) -> tuple[Pushed, SignedImage | None]:
    """Push what the host has built, and sign it."""
    copied = slow_push(registry, meanwhile)
    return publish(
        host, PIN, "sha256:ours", NAME, SIGNER, connected=connected(registry), push=copied
    )


def with_image(settings: Settings, **labels: str) -> Settings:
    """A host whose engine has the image that was built."""
    engine = FakeEngine()
    engine.have(Image("sha256:ours", (), (), {"provision.build": "1"} | labels, 1))
    record_built(settings.state, "sha256:ours", NAME)
    return using(settings, engine)


@pytest.mark.parametrize("rounds", [0, 2], ids=["signed before", "signed a little later"])
def test_a_name_does_not_stay_with_an_image_that_no_one_signed(
    settings: Settings, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    theirs: list[str] = []
    waits: list[float] = []

    def meanwhile() -> None:
        theirs.append(another_build(registry))
        # Else it gives way: it is taken for one that its builder never signed.
        registry.sign(theirs[0], facts_of(PIN, SERIAL), KEY if not rounds else OTHER)

    def sleep(seconds: float) -> None:
        # After each signature, too, for as long as that took.
        if seconds < 1:
            return
        waits.append(seconds)
        if len(waits) == rounds:
            registry.sign(theirs[0], facts_of(PIN, SERIAL), KEY)

    monkeypatch.setattr("provision.registry.publish.time.sleep", sleep)
    with pytest.raises(PinTagConflictError):
        push(with_image(settings), registry, meanwhile)
    client = registry.client(NAME)
    assert find_digest(client, tag_of(PIN).text) == theirs[0]
    assert find_digest(client, pin_tag(PIN.digest)) == theirs[0]
    assert waits == [2.0] * rounds


@pytest.mark.parametrize("is_artifact", [True, False])
def test_an_unsigned_build_of_the_same_pin_gives_way(
    settings: Settings, registry: MemoryRegistry, *, is_artifact: bool
) -> None:
    """Its builder ended between the tag of the Pin and the signature; or it is of someone else."""
    if is_artifact:
        theirs = another_build(registry)
    else:
        theirs = registry.have_image(
            PIN, [b"theirs"], pin_tag(PIN.digest), labels={PIN_LABEL: "none"}
        )
    pushed, signed = push(with_image(settings), registry)
    assert signed is not None
    client = registry.client(NAME)
    digests = {find_digest(client, tag) for tag in (pin_tag(PIN.digest), tag_of(PIN).text)}
    assert digests == {pushed.digest}
    assert digests != {theirs}


@pytest.mark.parametrize("key", [None, KEY, OTHER])
def test_what_a_registry_has_with_our_labels_is_signed_if_a_trusted_key_signed_it(
    settings: Settings, registry: MemoryRegistry, key: ec.EllipticCurvePrivateKey | None
) -> None:
    """Whoever may write there can put our labels on layers of another."""
    host = with_image(settings, **{PIN_LABEL: PIN.canonical_json()})
    labels = host.engine().images_with_label("provision.build")[0].labels
    theirs = registry.have_image(PIN, [b"theirs"], pin_tag(PIN.digest), labels=labels)
    if key is not None:
        registry.sign(theirs, facts_of(PIN, SERIAL), key)
    if key is OTHER:
        with pytest.raises(PinTagConflictError):
            push(host, registry)
        return
    pushed, _ = push(host, registry)
    assert (pushed.digest == theirs) == (key is KEY)


@pytest.mark.parametrize(
    ("licences", "named"),
    [
        ("MIT OR GPL-2.0-only", None),
        ("(MIT OR GPL-2.0-only) AND LicenseRef-NVIDIA", "LicenseRef-NVIDIA"),
        ("NOASSERTION", "NOASSERTION"),
        ("CDDL-1.0 AND MIT", "CDDL-1.0"),
    ],
)
def test_a_push_names_licences_that_may_forbid_it(
    settings: Settings,
    registry: MemoryRegistry,
    licences: str,
    named: str | None,
    notes: list[str],
) -> None:
    push(with_image(settings, **{"org.opencontainers.image.licenses": licences}), registry)
    warnings = [note for note in notes if note.startswith("Warning")]
    assert bool(warnings) == bool(named)
    assert not named or f"{named} may forbid" in warnings[0]
