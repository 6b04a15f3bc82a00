"""Where an artifact comes from: the store, the engine, a registry, a build."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from kit.artifact import MODULE, make_artifact, make_pin
from kit.module_key import module_key
from provision.build.resolve import resolve_pin
from provision.build.workspace import Settings
from provision.config import RegistryConfig, TrustConfig
from provision.kmod.module_signatures import is_signed
from provision.kmod.verify import verify_artifact
from provision.pin import Pin
from provision.store.activate import activate_entry, deactivate
from provision.store.entries import Admission, record_admission, unsigned_image
from provision.store.layout import Layout
from provision.store.obtain import obtain
from unit.build.debian_host import REQUEST
from unit.build.debian_host import settings as settings  # noqa: PLC0414 - a fixture
from unit.engine.fake_engine import FakeEngine, no_engine, using
from unit.fake_archive import AptEngine, samples

PIN = make_pin()


@pytest.fixture
def pin(settings: Settings) -> Pin:
    return resolve_pin(using(settings, AptEngine(samples())), REQUEST)


@pytest.fixture
def engine(settings: Settings, pin: Pin, tmp_path: Path) -> FakeEngine:
    """An engine that has the image, which was built here."""
    engine = FakeEngine()
    engine.have_built(pin, tmp_path / "content", settings.state)
    return engine


def test_an_image_that_is_there_is_taken(settings: Settings, engine: FakeEngine, pin: Pin) -> None:
    begun = time.monotonic()
    found = obtain(using(settings, engine), pin)
    assert found.origin == "engine"
    assert found.seconds["total"] <= time.monotonic() - begun
    assert [call for call in engine.calls if not call.startswith("tag")] == []
    assert verify_artifact(found.entry).findings == ()
    # The store has it now.
    assert obtain(using(settings, no_engine), pin).origin == "store"


def test_an_image_that_is_there_is_sought_in_no_registry(
    settings: Settings, engine: FakeEngine, pin: Pin
) -> None:
    registry = RegistryConfig(address="registry.example/drivers")
    config = settings.config.model_copy(update={"registry": registry})
    assert config.asks_registries
    assert obtain(using(replace(settings, config=config), engine), pin).origin == "engine"


@pytest.mark.parametrize(("insecure", "origin"), [(False, "engine"), (True, "store")])
def test_what_came_unsigned_serves_where_that_is_allowed(
    settings: Settings,
    engine: FakeEngine,
    pin: Pin,
    *,
    insecure: bool,
    origin: str,
) -> None:
    config = settings.config.model_copy(update={"trust": TrustConfig(insecure=insecure)})
    host = replace(settings, config=config)
    entry = obtain(using(host, engine), pin).entry
    record_admission(
        entry, Admission(image="registry.example/demo:1", repository="registry.example/demo")
    )
    assert obtain(using(host, engine), pin).origin == origin
    assert (unsigned_image(entry) is not None) is insecure


def test_a_retired_driver_leaves_other_peoples_files(tmp_path: Path) -> None:
    layout = Layout(tmp_path, "demo")
    entry = layout.entry(PIN.short_digest)
    make_artifact(entry, pin=PIN)
    activate_entry(layout, entry)
    layout.loader_config.write_text("mine")
    deactivate(layout)
    assert not layout.vendor_config.exists()
    assert not layout.current.is_symlink()
    assert layout.loader_config.read_text() == "mine"
    assert entry.is_dir()


def test_an_entry_that_another_key_signed_is_signed_again_and_not_built(
    settings: Settings, engine: FakeEngine, pin: Pin
) -> None:
    entry = obtain(using(settings, engine), pin).entry
    signing = module_key(settings.root)
    host = replace(settings, config=settings.config.model_copy(update={"signing": signing}))
    assert not is_signed(entry / MODULE)
    assert obtain(using(host, engine), pin).origin == "engine"
    assert is_signed(entry / MODULE)
    assert obtain(using(host, no_engine), pin).origin == "store"
