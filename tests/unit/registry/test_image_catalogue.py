"""The catalogue of a repository: what is believed of it, and writers who meet."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import NotFoundError, ProvisionError
from provision.pin import Pin
from provision.registry import catalogue_keeper, image_catalogue
from provision.registry.artifact_images import facts_of
from provision.registry.attached_signatures import sign
from provision.registry.catalogue_keeper import CatalogueKeeper, write_catalogue
from provision.registry.image_catalogue import (
    LARGEST_SERIAL,
    ImageCatalogue,
    Listed,
    document_of,
    read_catalogue,
)
from provision.registry.image_signature import CATALOGUE_FACT, UntrustedError
from provision.registry.manifests import OCI_INDEX, OCI_MANIFEST
from provision.registry.names import CATALOGUE, pin_of_tag, pin_tag, version_of_tag
from unit.kmod.artifact import make_pin
from unit.registry.memory import (
    ECDSA,
    HOST,
    REPOSITORY,
    Answer,
    Asked,
    MemoryRegistry,
    digest_of,
    new_key,
    public,
)

KEY, OTHER = new_key(), new_key()
KEYS = (public(KEY),)
SERIAL = 1_790_000_000
NAME = f"{HOST}/{REPOSITORY}:{CATALOGUE}"


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


def signs(data: bytes) -> bytes:
    return KEY.sign(data, ECDSA)


def now() -> float:
    return SERIAL + 5.5


def have(registry: MemoryRegistry, version: str, *, signed_by: object = KEY) -> Pin:
    """Have a signed image, with the tag of its Pin."""
    pin = make_pin(version=version)
    digest = registry.have_image(pin, [b""], pin_tag(pin.digest))
    if signed_by is not None:
        registry.sign(digest, facts_of(pin, SERIAL), signed_by)  # type: ignore[arg-type] # a key
    return pin


def keep(registry: MemoryRegistry, **more: object) -> ImageCatalogue:
    client = registry.client(NAME)
    return CatalogueKeeper(client, "demo", signs, KEYS, now).keep(**more)  # type: ignore[arg-type] # by name


def read(registry: MemoryRegistry) -> ImageCatalogue | None:
    return read_catalogue(registry.client(NAME), "demo", KEYS)


def versions(known: ImageCatalogue | None) -> list[str]:
    return sorted(one.facts.version for one in known.entries) if known else []


def test_what_is_signed_is_listed_with_what_is_signed(registry: MemoryRegistry) -> None:
    pin = have(registry, "1.0")
    have(registry, "2.0", signed_by=OTHER)
    have(registry, "3.0", signed_by=None)
    assert read(registry) is None
    kept = keep(registry)
    known = read(registry)
    assert known == kept
    assert known is not None
    (one,) = known.entries
    assert one.facts == facts_of(pin, SERIAL)
    assert one.digest == digest_of(registry.manifests[pin_tag(pin.digest)])
    assert (known.serial, known.signed_by) == (SERIAL * 1000 + 5500, "fleet.pub")
    # With nothing new, nothing is written.
    registry.asked.clear()
    assert keep(registry) == known
    assert {asked.method for asked in registry.asked} == {"GET"}
    # A host needs three answers: the catalogue, its signatures, and what is signed.
    registry.asked.clear()
    read(registry)
    assert len(registry.asked) == 3


@pytest.mark.parametrize("again", [False, True])
def test_no_first_catalogue_hides_what_hosts_find_by_tag(
    registry: MemoryRegistry, *, again: bool
) -> None:
    """As where cosign has signed an image that never got the tag of its Pin."""
    pin = make_pin()
    registry.sign(registry.have_image(pin, [b""], "1.2-open-6.1.debian12"), facts_of(pin, 1), KEY)
    have(registry, "3.0", signed_by=None)
    with pytest.raises(NotFoundError, match="has no image to list") as caught:
        keep(registry, again=again)
    assert "provision sign" in (caught.value.resolution or "")
    assert read(registry) is None


def test_a_serial_only_ever_grows(registry: MemoryRegistry) -> None:
    have(registry, "1.0")
    first = keep(registry)
    have(registry, "2.0")
    second = keep(registry)
    assert second.serial == first.serial + 1
    assert versions(second) == ["1.0", "2.0"]


def test_a_serial_does_not_grow_beyond_what_hosts_read(registry: MemoryRegistry) -> None:
    """As a machine leaves it whose clock was wrong by thousands of years."""
    have(registry, "1.0")
    client = registry.client(NAME)
    write_catalogue(client, ImageCatalogue("demo", LARGEST_SERIAL, ()), signs)
    with pytest.raises(ProvisionError, match="hosts read") as caught:
        keep(registry)
    assert "--replace" in (caught.value.resolution or "")
    assert keep(registry, again=True).serial == SERIAL * 1000 + 5500
    assert versions(read(registry)) == ["1.0"]


def test_a_signed_catalogue_that_is_none_is_replaced_on_demand(registry: MemoryRegistry) -> None:
    have(registry, "1.0")
    client = registry.client(NAME)
    data = document_of(ImageCatalogue("demo", LARGEST_SERIAL + 1, ()))
    sign(client, digest_of(data), {CATALOGUE_FACT: "demo"}, signs)
    client.put_manifest(CATALOGUE, data, OCI_INDEX)
    with pytest.raises(ProvisionError, match="it is no catalogue"):
        keep(registry)
    assert versions(keep(registry, again=True)) == ["1.0"]


def test_what_was_removed_from_the_registry_is_listed_no_more(registry: MemoryRegistry) -> None:
    gone = have(registry, "1.0")
    have(registry, "2.0")
    keep(registry)
    del registry.manifests[pin_tag(gone.digest)]
    assert versions(keep(registry)) == ["2.0"]


def test_a_registry_that_has_lost_an_image_takes_the_rest(registry: MemoryRegistry) -> None:
    """Its tag is still listed; an index of what is not there is refused by registries."""
    gone = digest_of(registry.manifests[pin_tag(have(registry, "1.0").digest)])
    have(registry, "2.0")
    keep(registry)
    del registry.manifests[gone]

    def refuses(asked: Asked) -> Answer | None:
        is_index = asked.method == "PUT" and asked.path.endswith(f"/{CATALOGUE}")
        return (
            Answer(400, b"MANIFEST_BLOB_UNKNOWN")
            if is_index and gone.encode() in asked.body
            else None
        )

    registry.handlers.append(refuses)
    have(registry, "3.0")
    assert versions(keep(registry)) == ["2.0", "3.0"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_two_writers_at_once_lose_no_entry(registry: MemoryRegistry, moment: str) -> None:
    """The other one writes just before or just after us, from what it read before we wrote."""
    have(registry, "1.0")
    keep(registry)
    others = [SERIAL + 40, SERIAL + 50]
    met: list[str] = []

    def meets(asked: Asked) -> Answer | None:
        if asked.method != "PUT" or not asked.path.endswith(f"/{CATALOGUE}") or met:
            return None
        met.append("once")
        stale = read(registry)
        assert stale is not None
        # It has pushed and signed its image, and knows nothing of ours.
        theirs = have(registry, "3.0")
        listed = catalogue_keeper.look_at(registry.client(NAME), pin_tag(theirs.digest), KEYS)
        assert listed is not None
        mine = replace(stale, serial=others[0], entries=(*stale.entries, listed))
        if moment == "before":
            catalogue_keeper.write_catalogue(registry.client(NAME), mine, signs)
            return None
        answer = registry.answer(asked)
        catalogue_keeper.write_catalogue(registry.client(NAME), mine, signs)
        return answer

    registry.handlers.append(meets)
    ours = have(registry, "2.0")
    kept = keep(registry, pins=[ours.digest])
    assert met
    assert versions(kept) == versions(read(registry)) == ["1.0", "2.0", "3.0"]


def test_a_catalogue_that_we_replace_may_have_listed_what_was_unsigned(
    registry: MemoryRegistry,
) -> None:
    """It is signed and listed after we looked at it, and before we write."""
    theirs = have(registry, "3.0", signed_by=None)
    met: list[str] = []

    def meets(asked: Asked) -> Answer | None:
        if asked.method == "PUT" and asked.path.endswith(f"/{CATALOGUE}") and not met:
            met.append("once")
            digest = digest_of(registry.manifests[pin_tag(theirs.digest)])
            registry.sign(digest, facts_of(theirs, SERIAL), KEY)
            listed = catalogue_keeper.look_at(registry.client(NAME), pin_tag(theirs.digest), KEYS)
            assert listed is not None
            mine = ImageCatalogue("demo", SERIAL, (listed,))
            catalogue_keeper.write_catalogue(registry.client(NAME), mine, signs)
        return None

    registry.handlers.append(meets)
    ours = have(registry, "2.0")
    kept = keep(registry, pins=[ours.digest])
    assert met
    assert versions(kept) == versions(read(registry)) == ["2.0", "3.0"]


def test_writers_that_never_let_each_other_finish_are_an_error(registry: MemoryRegistry) -> None:
    pin = have(registry, "1.0")
    empty = ImageCatalogue("demo", SERIAL, ())

    def undoes(asked: Asked) -> Answer | None:
        if asked.method == "GET" and asked.path.endswith(f"/{CATALOGUE}"):
            registry.manifests[CATALOGUE] = document_of(empty)
        return None

    catalogue_keeper.write_catalogue(registry.client(NAME), empty, signs)
    registry.handlers.append(undoes)
    with pytest.raises(ProvisionError, match="another writer had replaced it"):
        keep(registry, pins=[pin.digest])


def test_a_catalogue_of_others_is_not_signed_over(registry: MemoryRegistry) -> None:
    """Who signed what an attacker put there would make it true."""
    have(registry, "1.0")
    evil = ImageCatalogue("demo", SERIAL, ())
    catalogue_keeper.write_catalogue(
        registry.client(NAME), evil, lambda data: OTHER.sign(data, ECDSA)
    )
    before = registry.manifests[CATALOGUE]
    with pytest.raises(UntrustedError, match="no image was added"):
        keep(registry)
    assert registry.manifests[CATALOGUE] == before
    assert versions(keep(registry, again=True)) == ["1.0"]


def _unsigned(registry: MemoryRegistry) -> None:
    registry.manifests[CATALOGUE] = document_of(ImageCatalogue("demo", SERIAL + 99, ()))


def _of_another_driver(registry: MemoryRegistry) -> None:
    catalogue_keeper.write_catalogue(
        registry.client(NAME), ImageCatalogue("other", SERIAL, ()), signs
    )


def _by_another_key(registry: MemoryRegistry) -> None:
    empty = ImageCatalogue("demo", SERIAL, ())
    catalogue_keeper.write_catalogue(
        registry.client(NAME), empty, lambda data: OTHER.sign(data, ECDSA)
    )


def _signed_as_an_image(registry: MemoryRegistry) -> None:
    """The key has signed these bytes, but as an artifact."""
    data = document_of(ImageCatalogue("demo", SERIAL, ()))
    registry.manifests[CATALOGUE] = data
    registry.sign(digest_of(data), facts_of(make_pin(), SERIAL), KEY)


def _changed(registry: MemoryRegistry) -> None:
    keep(registry)
    registry.manifests[CATALOGUE] = registry.manifests[CATALOGUE].replace(b'"1.0"', b'"9.0"')


@pytest.mark.parametrize(
    "hostile", [_unsigned, _of_another_driver, _by_another_key, _signed_as_an_image, _changed]
)
def test_what_is_not_signed_as_a_catalogue_is_refused(
    registry: MemoryRegistry, hostile: Callable[[MemoryRegistry], None]
) -> None:
    have(registry, "1.0")
    hostile(registry)
    with pytest.raises(UntrustedError, match="no signature of it counts here"):
        read(registry)


@pytest.mark.parametrize(
    "change",
    [
        {"annotations": {}},
        {"annotations": {"provision.catalogue": "demo", "provision.serial": "-1"}},
        {"annotations": {"provision.catalogue": "other", "provision.serial": "1"}},
        {"schemaVersion": 1},
        {"manifests": [{"mediaType": OCI_MANIFEST, "digest": "sha256:0", "size": 1}]},
        {"manifests": [{"mediaType": OCI_MANIFEST, "digest": "sha256:" + "0" * 64, "size": 1}]},
    ],
)
def test_what_is_signed_and_no_catalogue_is_refused(
    registry: MemoryRegistry, change: dict[str, object]
) -> None:
    document = {**json.loads(document_of(ImageCatalogue("demo", SERIAL, ()))), **change}
    digest = registry.have_manifest(document, CATALOGUE)
    client = registry.client(NAME)
    sign(client, digest, {"catalogue": "demo"}, signs)
    with pytest.raises(ProvisionError, match="is refused: it is no catalogue"):
        read(registry)


_TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=20)


@given(version=_TEXT, kernel=_TEXT, distro=_TEXT, serial=st.integers(0, 10**15 - 1))
def test_what_is_written_is_read(version: str, kernel: str, distro: str, serial: int) -> None:
    facts = replace(facts_of(make_pin(), serial), version=version, kernel=kernel, distro=distro)
    known = ImageCatalogue(
        "demo", serial, (Listed("sha256:" + "a" * 64, 7, OCI_MANIFEST, facts),), "key"
    )
    assert image_catalogue.parse_catalogue(document_of(known), "demo", "name", "key") == known


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_what_is_no_catalogue_is_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(ProvisionError):
        image_catalogue.parse_catalogue(data, "demo", "name", "key")


def test_more_than_a_registry_takes_is_said_before_it_is_sent(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue_keeper, "MOST_ENTRIES", 1)
    have(registry, "1.0")
    keep(registry)
    have(registry, "2.0")
    with pytest.raises(ProvisionError, match="would have 2 images"):
        keep(registry)


def test_tags_of_pins_and_versions() -> None:
    pin = make_pin()
    assert pin_of_tag(pin_tag(pin.digest)) == pin.digest
    assert pin_of_tag("pin-1") is pin_of_tag(f"{pin_tag(pin.digest)}0") is None
    assert version_of_tag("2.0_rc1") == "2.0~rc1"
    assert version_of_tag("2.0_dfsg_beta2") == "2.0+dfsg~beta2"
    assert version_of_tag("2.0_release") == "2.0+release"
