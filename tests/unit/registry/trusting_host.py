"""A host that trusts one key, and a registry with artifacts that this key has signed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.artifact import KERNEL, VERMAGIC, make_artifact, make_module, make_pin
from kit.memory_registry import (
    MemoryRegistry,
    MemoryRepository,
    layer_of,
    new_key,
    public_pem,
)
from provision.build.request import VersionRequest
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config, RegistryConfig, TrustConfig
from provision.pin import Pin
from provision.registry import Reference
from provision.registry.find import (
    ArtifactImage,
    ArtifactQuery,
    TrustOverride,
    facts_of,
    find_in_registries,
    tag_of,
)

ADDRESS = "registry.example/drivers"


KEY, OTHER = new_key(), new_key()


SERIAL = 1_790_000_000


SOUGHT = ArtifactQuery("demo", VersionRequest(), "open", KERNEL, "debian:12", "x86_64")


DEFAULT = TrustOverride()


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A host that trusts one key."""
    keys = tmp_path / "host/etc/provision/trust.d"
    keys.mkdir(parents=True)
    (keys / "fleet.pub").write_bytes(public_pem(KEY))
    (tmp_path / "host/etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    return configured(tmp_path)


def configured(
    tmp_path: Path, trust: TrustConfig | None = None, registry: RegistryConfig | None = None
) -> Settings:
    config = Config(
        registry=registry or RegistryConfig(address=ADDRESS),
        trust=trust or TrustConfig(keys="/etc/provision/trust.d"),
    )
    return Settings(tmp_path / "host", config, Catalogue([]), tmp_path / "state")


def have(
    registry: MemoryRegistry,
    folder: Path,
    pin: Pin | None = None,
    *,
    serial: int = SERIAL,
    tag: str | None = None,
    signed: bool = True,
) -> str:
    """Have the artifact of a Pin in the registry, as 'provision build --push --sign' leaves it."""
    pin = pin or make_pin()
    content = folder / f"content-{pin.short_digest}"
    if not content.exists():
        vermagic = VERMAGIC.replace(KERNEL, pin.kernel.release)
        make_artifact(content, pin=pin, module=make_module(vermagic))
    digest = registry.have_image(pin, [layer_of(content)], tag or tag_of(pin).text)
    if signed:
        registry.sign(digest, facts_of(pin, serial), KEY)
    registry.asked.clear()
    return digest


def connected(registry: MemoryRegistry) -> Callable[[Settings, Reference], MemoryRepository]:
    return lambda _settings, reference: MemoryRepository(registry, reference)


def found(
    settings: Settings,
    registry: MemoryRegistry,
    sought: ArtifactQuery = SOUGHT,
    trust: TrustOverride = DEFAULT,
) -> ArtifactImage:
    trusted = find_in_registries(settings, sought, trust, connected=connected(registry))
    assert trusted is not None
    return trusted
