"""Names of images are local; what a registry serves needs a permission."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.catalogue import Catalogue
from provision.config import Config, RegistryConfig
from provision.errors import NotFoundError
from provision.image.engine import Image
from provision.image.references import names_registry
from provision.pipeline.registry import UnsignedError, usable_image
from provision.pipeline.settings import Settings
from unit.image.fake_engine import FakeEngine

ADDRESS = "registry.example:5000/drivers"
IN_REGISTRY = f"{ADDRESS}/demo:1"


def settings(tmp_path: Path, registry: RegistryConfig | None = None) -> Settings:
    config = Config(registry=registry or RegistryConfig())
    return Settings(tmp_path, config, Catalogue([]), tmp_path / "state")


def engine_before(reference: str) -> FakeEngine:
    """An engine whose registries have an image of one name."""
    engine = FakeEngine()
    engine.result = Image("sha256:1", (reference,))
    return engine


@pytest.mark.parametrize(
    ("reference", "is_registry"),
    [
        ("provision/demo:1", False),
        ("demo:1", False),
        ("debian", False),
        ("sha256:" + "0" * 64, False),
        ("localhost/provision/demo:1", False),
        ("docker.io/provision/demo:1", True),
        ("localhost:5000/demo", True),
        ("127.0.0.1:5000/demo@sha256:" + "0" * 64, True),
        ("registry.example/a/b:1", True),
    ],
)
def test_a_name_with_a_host_is_a_registrys(reference: str, *, is_registry: bool) -> None:
    assert names_registry(reference) is is_registry


@pytest.mark.parametrize("allow_unsigned", [False, True])
def test_a_local_name_is_never_pulled_from_a_public_hub(
    tmp_path: Path, *, allow_unsigned: bool
) -> None:
    engine = engine_before("provision/demo:1")
    name = usable_image(
        settings(tmp_path), engine, "provision/demo:1", allow_unsigned=allow_unsigned
    )
    assert name == "provision/demo:1"
    assert engine.calls == []


def test_what_the_engine_has_is_taken_whatever_the_registry_has(tmp_path: Path) -> None:
    engine = engine_before(IN_REGISTRY)
    engine.have(Image("sha256:2", ("provision/demo:1",)))
    with_registry = settings(tmp_path, RegistryConfig(address=ADDRESS, allow_unsigned=True))
    assert usable_image(with_registry, engine, "provision/demo:1") == "provision/demo:1"
    assert engine.calls == []


@pytest.mark.parametrize("reference", ["provision/demo:1", IN_REGISTRY])
@pytest.mark.parametrize("is_there", [False, True])
def test_what_is_not_signed_is_refused_and_it_is_said_why(
    tmp_path: Path, reference: str, *, is_there: bool
) -> None:
    engine = engine_before(IN_REGISTRY)
    if is_there and engine.result:
        engine.have(engine.result)
    with pytest.raises(UnsignedError, match=f"'{IN_REGISTRY}' is not signed") as caught:
        usable_image(settings(tmp_path, RegistryConfig(address=ADDRESS)), engine, reference)
    for way in ("--allow-unsigned", "allow_unsigned = true", "provision build"):
        assert way in (caught.value.resolution or "")
    assert engine.calls == []


@pytest.mark.parametrize("reference", ["provision/demo:1", IN_REGISTRY])
@pytest.mark.parametrize(("option", "setting"), [(True, False), (False, True)])
def test_it_is_pulled_where_that_is_allowed(
    tmp_path: Path, reference: str, *, option: bool, setting: bool
) -> None:
    engine = engine_before(IN_REGISTRY)
    host = settings(tmp_path, RegistryConfig(address=ADDRESS, allow_unsigned=setting))
    assert usable_image(host, engine, reference, allow_unsigned=option) == IN_REGISTRY
    assert engine.calls == [f"pull {IN_REGISTRY} None"]


@pytest.mark.parametrize(
    "reference", ["other.example/demo:1", "registry.example:5000/driversx/demo:1"]
)
def test_the_setting_is_for_the_hosts_own_registry_only(tmp_path: Path, reference: str) -> None:
    engine = engine_before(reference)
    host = settings(tmp_path, RegistryConfig(address=ADDRESS, allow_unsigned=True))
    with pytest.raises(UnsignedError):
        usable_image(host, engine, reference)
    assert usable_image(host, engine, reference, allow_unsigned=True) == reference


def test_what_the_registry_lacks_says_what_the_engine_said(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.conversation = [{"error": "no such host"}]
    with pytest.raises(NotFoundError, match=f"'{IN_REGISTRY}' could not be pulled") as caught:
        usable_image(settings(tmp_path), engine, IN_REGISTRY, allow_unsigned=True)
    assert caught.value.details == "no such host"
