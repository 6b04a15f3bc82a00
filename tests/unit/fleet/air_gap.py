"""A bundle for an air gap, made by hand from a registry in memory, and a host that reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.artifact import KERNEL, write
from kit.memory_registry import ECDSA, copy_to_layout, public_pem
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config
from provision.fleet.bundle import RegistryAccess, seal
from provision.registry.find import TrustOverride
from provision.registry.image_layout import writable_layout
from provision.registry.names import Reference
from unit.fleet.registries import Registries
from unit.fleet.test_selection import KEY, OLD, PIN, have

DEFAULT = TrustOverride()


def signer(data: bytes) -> bytes:
    return KEY.sign(data, ECDSA)


Make = Callable[..., Path]


@pytest.fixture
def make(registries: Registries, settings: Settings, tmp_path: Path) -> Make:
    """Writes a bundle with all images of the registry, as skopeo copies them."""
    have(registries, settings, PIN)

    def made(folder: Path = tmp_path / "bundle", *, key: bool = True) -> Path:
        stored = registries.stored[f"{OLD}/demo"]
        writer = writable_layout(folder / "images/demo", Reference(OLD, "demo"))
        copy_to_layout(stored, writer)
        seal(folder, signer if key else None)
        return folder

    return made


def host_of(tmp_path: Path, kernel: str = KERNEL) -> Settings:
    """A host in the gap, which trusts the same key."""
    settings = settings_at(tmp_path / "inner")
    write(settings.root / f"lib/modules/{kernel}/modules.dep", b"")
    write(settings.root / f"boot/vmlinuz-{kernel}", b"")
    return settings


def settings_at(folder: Path, trust: str = '{"keys": "/etc/provision/trust.d"}') -> Settings:
    write(folder / "host/etc/provision/trust.d/fleet.pub", public_pem(KEY))
    config = Config.model_validate_json(f'{{"trust": {trust}}}')
    return Settings(folder / "host", config, Catalogue([]), folder / "state")


def reaching(host: Settings) -> RegistryAccess:
    return RegistryAccess(host, DEFAULT, Registries().connect)
