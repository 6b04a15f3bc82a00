"""Where an artifact comes from: the store, the engine, a registry, a build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kit.artifact import KERNEL, make_artifact, make_pin
from provision.build.image import DIGEST_LABEL, Built
from provision.build.provenance import record_built
from provision.build.resolve import Resolved
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config, RegistryConfig, TrustConfig
from provision.engine.docker_api import Engine, Image
from provision.engine.transfer import Pushed
from provision.errors import ProvisionError
from provision.kmod.verify import verify_artifact
from provision.registry.publish import EngineImage
from provision.store import obtain as obtaining
from provision.store.activate import activate_entry, deactivate
from provision.store.admission import Admission, record_admission, unsigned_image
from provision.store.layout import Layout
from provision.store.obtain import obtain
from unit.engine.fake_engine import FakeEngine, using

PIN = make_pin()
RESOLVED = cast("Resolved", SimpleNamespace(pin=PIN))
ADDRESS = "registry.example:5000/drivers"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    registry = RegistryConfig(address=ADDRESS, push=True)
    config = Config(registry=registry)
    return Settings(tmp_path / "host", config, Catalogue([]), tmp_path / "state")


def _engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    make_artifact(tmp_path / "content", pin=PIN)
    engine = FakeEngine()

    def build_image(*_given: object, **_more: object) -> Built:
        is_new = PIN.image not in engine.images and not engine.images_with_label(
            f"{DIGEST_LABEL}={PIN.digest}"
        )
        engine.calls.append("build" if is_new else "name")
        image = Image("sha256:1", (PIN.image,), labels={DIGEST_LABEL: PIN.digest})
        engine.have(image, tmp_path / "content")
        record_built(tmp_path / "state", image.id, PIN.image)
        return Built(PIN.image, "sha256:1", 1, built=is_new, seconds=3.0)

    def publish(
        _settings: object, image: EngineImage, name: str, **_more: object
    ) -> tuple[Pushed, SimpleNamespace | None]:
        assert image.pin == PIN
        signs = "" if image.signer is None else f" {image.signer(b'x').decode()}"
        engine.calls.append(f"push {image.image_id} {name}{signs}")
        return Pushed(name, "sha256:2"), SimpleNamespace(reference=name) if image.signer else None

    monkeypatch.setattr(obtaining, "build_image", build_image)
    monkeypatch.setattr(obtaining, "publish", publish)
    monkeypatch.setattr(obtaining, "find_pin_in_registries", lambda *_given, **_more: None)
    return engine


def _no_engine() -> Engine:
    raise AssertionError("the engine was asked for")


def _reference() -> str:
    return f"{ADDRESS}/demo:1.2-open-{KERNEL}.debian12"


def test_what_is_nowhere_is_built_pushed_and_stored(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _engine(tmp_path, monkeypatch)
    found = obtain(using(settings, engine), RESOLVED)
    assert found.origin == "build"
    assert engine.calls == ["build", f"push sha256:1 {_reference()}"]
    assert verify_artifact(found.entry).findings == ()
    assert found.seconds["build"] == 3.0
    # The store has it now.
    assert obtain(using(settings, _no_engine), RESOLVED).origin == "store"


def test_a_registry_that_fails_stops_no_build(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    engine = _engine(tmp_path, monkeypatch)

    def publish(*_given: object, **_more: object) -> None:
        raise ProvisionError("could not be pushed", details="denied")

    monkeypatch.setattr(obtaining, "publish", publish)
    assert obtain(using(settings, engine), RESOLVED).origin == "build"
    assert "denied" in " ".join(notes)


def test_what_is_pushed_is_signed_where_there_is_a_key(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _engine(tmp_path, monkeypatch)
    monkeypatch.setattr(obtaining, "configured_signer", lambda _settings: b"signed ".__add__)
    registry = settings.config.registry.model_copy(update={"sign_key": "/etc/provision/fleet.key"})
    config = settings.config.model_copy(update={"registry": registry})
    obtain(using(replace(settings, config=config), engine), RESOLVED)
    assert engine.calls == ["build", f"push sha256:1 {_reference()} signed x"]


def test_an_image_that_is_there_is_taken(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _engine(tmp_path, monkeypatch)
    image = Image("sha256:1", (PIN.image,), labels={DIGEST_LABEL: PIN.digest})
    engine.have(image, tmp_path / "content")
    assert obtain(using(settings, engine), RESOLVED).origin == "engine"
    assert engine.calls == ["name"]


def test_a_damaged_entry_is_made_again(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _engine(tmp_path, monkeypatch)
    entry = obtain(using(settings, engine), RESOLVED).entry
    (entry / f"lib/modules/{KERNEL}/demo.ko").write_bytes(b"broken")
    found = obtain(using(settings, engine), RESOLVED)
    assert found.origin == "engine"
    assert verify_artifact(entry).findings == ()


@pytest.mark.parametrize(("insecure", "origin"), [(False, "engine"), (True, "store")])
def test_what_came_unsigned_serves_where_that_is_allowed(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    insecure: bool,
    origin: str,
) -> None:
    engine = _engine(tmp_path, monkeypatch)
    config = settings.config.model_copy(update={"trust": TrustConfig(insecure=insecure)})
    host = replace(settings, config=config)
    entry = obtain(using(host, engine), RESOLVED).entry
    record_admission(
        entry, Admission(image="registry.example/demo:1", repository="registry.example/demo")
    )
    assert obtain(using(host, engine), RESOLVED).origin == origin
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
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _engine(tmp_path, monkeypatch)
    obtain(using(settings, engine), RESOLVED)
    asked: list[Path] = []

    def is_signed_for_host(entry: Path, *_: object, **_more: object) -> bool:
        asked.append(entry)
        return False

    monkeypatch.setattr(obtaining, "is_signed_for_host", is_signed_for_host)
    engine.calls.clear()
    found = obtain(using(settings, engine), RESOLVED)
    assert asked == [found.entry]
    # The image is there: it only gets its name again.
    assert found.origin == "engine"
    assert engine.calls == ["name"]
