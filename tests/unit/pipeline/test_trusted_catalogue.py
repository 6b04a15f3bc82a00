"""What a host makes of a registry's catalogue, and of the tag of a Pin."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from provision.config import RegistryConfig, TrustConfig
from provision.engine.docker_api import Engine
from provision.errors import NotFoundError, ProvisionError
from provision.pipeline import obtaining
from provision.pipeline.obtaining import obtain
from provision.pipeline.package_pins import Resolved
from provision.pipeline.publishing import TakenError, pushed_before, set_pin_tag, tag_again
from provision.pipeline.pulling import store_pulled
from provision.pipeline.registries import Consent, examine, tag_of
from provision.pipeline.registry_search import Lookup, seek, seek_pin
from provision.pipeline.workspace import Settings
from provision.progress import Note
from provision.registry.artifact_images import Trusted
from provision.registry.catalogue_keeper import CatalogueKeeper, write_catalogue
from provision.registry.image_catalogue import ImageCatalogue
from provision.registry.image_signature import UntrustedError
from provision.registry.names import CATALOGUE, pin_tag
from provision.sources.market import VersionRequest
from provision.store.entries import newest_serial
from provision.store.layout import Layout
from unit.engine.fake_engine import FakeEngine
from unit.kmod.artifact import make_pin
from unit.pipeline.trusting_host import (
    ADDRESS,
    DEFAULT,
    KEY,
    OTHER,
    SERIAL,
    SOUGHT,
    configured,
    connected,
    found,
    have,
)
from unit.pipeline.trusting_host import registry as registry  # noqa: PLC0414 - a fixture
from unit.pipeline.trusting_host import settings as settings  # noqa: PLC0414 - a fixture
from unit.registry.memory import ECDSA, Answer, Asked, MemoryRegistry, public

NAME = f"{ADDRESS}/demo:{CATALOGUE}"
TARGET = f"catalogue of {ADDRESS}"


def signs(data: bytes) -> bytes:
    return KEY.sign(data, ECDSA)


def have_listed(
    registry: MemoryRegistry, folder: Path, *versions: str, serial: int = SERIAL
) -> ImageCatalogue:
    """Have images and the catalogue of them."""
    for version in versions:
        pin = make_pin(version=version)
        have(registry, folder, pin)
        registry.manifests[pin_tag(pin.digest)] = registry.manifests[tag_of(pin).text]
    client = registry.client(NAME)
    known = CatalogueKeeper(client, "demo", signs, (public(KEY),), lambda: serial).keep()
    registry.asked.clear()
    return known


def version(trusted: Trusted | None) -> str:
    assert trusted is not None
    return trusted.image.pin.driver.version


def test_the_newest_version_is_found_without_a_list_of_tags(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    known = have_listed(registry, tmp_path, "2.0~rc1", "2.0", "1.9")
    trusted = found(settings, registry)
    assert version(trusted) == "2.0"
    assert trusted.listed == (TARGET, known.serial)
    assert not any("tags/list" in asked.url for asked in registry.asked)
    # Three answers for the catalogue, and four for the image.
    assert len(registry.asked) == 7


def test_a_wish_chooses_among_what_is_listed(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have_listed(registry, tmp_path, "1.2", "1.10", "2.0")
    wishes = [("1", None, "1.10"), ("1.2", None, "1.2"), (None, "1.2", "1.2"), ("2", "1.2", "1.2")]
    for wanted, prefer, expected in wishes:
        sought = replace(SOUGHT, version=VersionRequest(wanted, prefer=prefer))
        assert version(found(settings, registry, sought)) == expected
    kinds = replace(SOUGHT, version=VersionRequest("lts", ("3", "1")))
    assert version(found(settings, registry, kinds)) == "1.10"


def test_what_is_not_listed_is_still_found_by_its_tag(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have_listed(registry, tmp_path, "1.2")
    other = make_pin(kernel="6.1.0-99-amd64")
    have(registry, tmp_path, other)
    trusted = found(settings, registry, replace(SOUGHT, kernel="6.1.0-99-amd64"))
    assert (version(trusted), trusted.listed) == ("1.2", None)


def test_tags_are_read_in_the_order_of_versions(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    """A release candidate has a '_' in its tag, and is older than the release all the same."""
    for one in ("2.0~rc1", "2.0", "1.9"):
        have(registry, tmp_path, make_pin(version=one))
    assert version(found(settings, registry)) == "2.0"


def test_an_older_catalogue_than_one_that_was_used_is_refused(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have_listed(registry, tmp_path, "1.2")
    old = registry.manifests[CATALOGUE]
    known = have_listed(registry, tmp_path, "1.3", serial=SERIAL + 99)
    layout = Layout(settings.root, "demo")
    store_pulled(settings, found(settings, registry), DEFAULT)
    assert newest_serial(layout, TARGET) == known.serial
    registry.manifests[CATALOGUE] = old
    with pytest.raises(UntrustedError, match="older than the catalogue that this host has used"):
        found(settings, registry)
    # A fresh host can't know, and one with the option believes it.
    consent = Consent(allow_downgrade=True)
    back = found(settings, registry, consent=consent)
    assert version(back) == "1.2"
    store_pulled(settings, back, consent)
    assert newest_serial(layout, TARGET) == known.serial - 99_000
    assert version(found(settings, registry)) == "1.2"


def test_of_two_pulls_at_once_the_newer_catalogue_is_remembered(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have_listed(registry, tmp_path, "1.2")
    slow = found(settings, registry)
    known = have_listed(registry, tmp_path, "1.3", serial=SERIAL + 99)
    store_pulled(settings, found(settings, registry), DEFAULT)
    store_pulled(settings, slow, DEFAULT)
    assert newest_serial(Layout(settings.root, "demo"), TARGET) == known.serial


def test_a_catalogue_that_is_gone_is_refused_where_it_was_used(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    """Else who may delete it could have hosts read tags of old images again."""
    have_listed(registry, tmp_path, "1.2")
    store_pulled(settings, found(settings, registry), DEFAULT)
    del registry.manifests[CATALOGUE]
    with pytest.raises(UntrustedError, match="is gone") as caught:
        found(settings, registry)
    assert "provision catalogue demo" in (caught.value.resolution or "")
    assert version(found(settings, registry, consent=Consent(allow_downgrade=True))) == "1.2"


def test_a_foreign_catalogue_is_passed_over_until_one_was_used(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path)
    evil = ImageCatalogue("demo", SERIAL, ())
    write_catalogue(registry.client(NAME), evil, lambda data: OTHER.sign(data, ECDSA))
    notes: list[object] = []
    trusted = seek(
        settings, SOUGHT, Lookup(DEFAULT, connected=connected(registry), progress=notes.append)
    )
    assert version(trusted) == "1.2"
    assert any(isinstance(n, Note) and "tags are read instead" in n.text for n in notes)
    del registry.manifests[CATALOGUE]
    have_listed(registry, tmp_path, "1.2")
    store_pulled(settings, found(settings, registry), DEFAULT)
    write_catalogue(registry.client(NAME), evil, lambda data: OTHER.sign(data, ECDSA))
    with pytest.raises(UntrustedError, match="no signature of it counts here"):
        found(settings, registry)


def test_a_fresh_host_can_refuse_an_old_catalogue(
    tmp_path: Path, registry: MemoryRegistry, settings: Settings
) -> None:
    have_listed(registry, tmp_path, "1.2")
    trust = TrustConfig(keys="/etc/provision/trust.d", not_before=date(2026, 9, 23))
    host = replace(settings, config=settings.config.model_copy(update={"trust": trust}))
    with pytest.raises(UntrustedError, match="no signature of it counts here"):
        found(host, registry)
    assert any("tags/list" in asked.url for asked in registry.asked)


def test_a_mirror_without_the_catalogue_is_passed_over(
    tmp_path: Path, registry: MemoryRegistry, settings: Settings
) -> None:
    have_listed(registry, tmp_path, "1.2")
    store_pulled(settings, found(settings, registry), DEFAULT)
    mirror = RegistryConfig(address=ADDRESS, mirrors=("mirror.example/drivers",))
    host = configured(tmp_path, registry=mirror)

    def answers(asked: Asked) -> Answer | None:
        if asked.host != "mirror.example":
            return None
        if asked.path.endswith(f"/{CATALOGUE}"):
            return Answer(404)
        return registry.answer(
            replace(asked, url=asked.url.replace(asked.host, "registry.example"))
        )

    registry.handlers.append(answers)
    trusted = found(host, registry)
    assert trusted.image.reference.registry == "registry.example"


def test_a_listed_image_that_is_another_is_refused(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    """A catalogue decides nothing: the image's own signature has to say the same."""
    known = have_listed(registry, tmp_path, "1.2", "1.3")
    one, two = known.entries
    swapped = (replace(one, digest=two.digest), replace(two, digest=one.digest))
    write_catalogue(registry.client(NAME), replace(known, entries=swapped), signs)
    with pytest.raises(UntrustedError):
        found(settings, registry)
    # The same version, but of another Pin than is listed.
    other = tuple(replace(e, facts=replace(e.facts, pin="sha256:" + "0" * 64)) for e in (one, two))
    write_catalogue(registry.client(NAME), replace(known, entries=other), signs)
    with pytest.raises(UntrustedError):
        found(settings, registry)


def test_a_listed_image_that_is_gone_leaves_the_next(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    known = have_listed(registry, tmp_path, "1.2", "1.3")
    (newest,) = (one for one in known.entries if one.facts.version == "1.3")
    del registry.manifests[newest.digest]
    assert version(found(settings, registry)) == "1.2"


def test_the_catalogue_is_no_image(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    """It is an index: whatever image came first in it would be installed."""
    have_listed(registry, tmp_path, "1.2")
    with pytest.raises(ProvisionError, match="is the catalogue") as caught:
        examine(settings, registry.client(NAME), {}, DEFAULT)
    assert caught.value.resolution == "Name one of the images that it lists: provision search demo"


def test_without_signatures_the_tags_count(
    tmp_path: Path, registry: MemoryRegistry, settings: Settings
) -> None:
    have_listed(registry, tmp_path, "1.2")
    open_host = configured(tmp_path, TrustConfig(insecure=True))
    assert found(open_host, registry).listed is None
    assert settings is not open_host


# The tag of a Pin


def test_a_pin_leads_to_its_image_whatever_that_is_called(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    pin = make_pin()
    have(registry, tmp_path, pin, tag=pin_tag(pin.digest))
    trusted = seek_pin(settings, pin, Lookup(DEFAULT, connected=connected(registry)))
    assert trusted is not None
    assert trusted.image.pin == pin
    assert (
        seek_pin(settings, make_pin(version="9"), Lookup(DEFAULT, connected=connected(registry)))
        is None
    )


def test_the_tag_of_a_pin_that_leads_to_another_image_is_refused(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    pin, other = make_pin(), make_pin(version="9")
    have(registry, tmp_path, other, tag=pin_tag(pin.digest))
    with pytest.raises(UntrustedError):
        seek_pin(settings, pin, Lookup(DEFAULT, connected=connected(registry)))


def test_the_tag_of_a_pin_is_never_moved(registry: MemoryRegistry, tmp_path: Path) -> None:
    pin = make_pin()
    have(registry, tmp_path, pin, tag="first")
    have(registry, tmp_path, make_pin(version="9"), tag="second")
    client = registry.client(f"{ADDRESS}/demo:again")
    first, second = client.manifest("first"), client.manifest("second")
    tag = set_pin_tag(client, pin, first)
    assert set_pin_tag(client, pin, first) == tag == pin_tag(pin.digest)
    with pytest.raises(TakenError, match="never moved"):
        set_pin_tag(client, pin, second)
    assert client.manifest(tag).digest == first.digest
    # What is there is pushed by a name only; another build of the same Pin is not pushed at all.
    config = str(json.loads(first.data)["config"]["digest"])
    for known in (config, first.digest):
        assert pushed_before(client, pin, known) == first
    with pytest.raises(TakenError, match="never moved"):
        pushed_before(client, pin, "sha256:other")
    assert pushed_before(client, make_pin(version="10"), "sha256:other") is None
    tag_again(client, first)
    assert client.manifest("again").digest == first.digest


def test_a_tag_that_another_sets_at_the_same_time_is_an_error(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    pin = make_pin()
    have(registry, tmp_path, pin, tag="first")
    have(registry, tmp_path, make_pin(version="9"), tag="second")
    client = registry.client(f"{ADDRESS}/demo:x")
    first, second = client.manifest("first"), client.manifest("second")
    tag = pin_tag(pin.digest)

    def overwrites(asked: Asked) -> Answer | None:
        if asked.method != "PUT":
            return None
        registry.answer(asked)
        registry.manifests[tag] = second.data
        return Answer(201)

    registry.handlers.append(overwrites)
    with pytest.raises(TakenError):
        set_pin_tag(client, pin, first)


def test_what_would_be_built_is_pulled_by_its_pin(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = make_pin()
    have(registry, tmp_path, pin, tag=pin_tag(pin.digest))
    resolved = cast("Resolved", SimpleNamespace(pin=pin))
    monkeypatch.setattr(
        obtaining,
        "look_for_pin",
        lambda settings, pin, lookup: seek_pin(
            settings, pin, replace(lookup, connected=connected(registry))
        ),
    )

    def no_engine() -> Engine:
        raise NotFoundError("no engine")

    done = obtain(settings, no_engine, resolved)
    assert (done.origin, done.entry.name) == ("registry", pin.short_digest)
    assert obtain(settings, no_engine, resolved).origin == "store"
    # With an image in the engine, no registry is asked.
    monkeypatch.setattr(obtaining, "look_for_pin", None)
    monkeypatch.setattr(obtaining, "find", lambda *_: object())
    monkeypatch.setattr(obtaining, "build_image", _fails)
    other = cast("Resolved", SimpleNamespace(pin=make_pin(version="9")))
    with pytest.raises(ProvisionError, match="built"):
        obtain(settings, FakeEngine, other)


def _fails(*_given: object, **_more: object) -> object:
    raise ProvisionError("built")
