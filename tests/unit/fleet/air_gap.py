"""Bundles for an air gap, the engine that saves images for them, and the host on the other side."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest

from provision.engine.docker_api import Image
from provision.fleet.bundle import create
from provision.fleet.bundle_contents import Contents, Extras, Order, gather
from provision.fleet.bundle_index import (
    BundleIndex,
)
from provision.fleet.selection import ImageSelection, RegistryAccess
from provision.pin import ClosurePackage, Pin
from provision.pipeline.registries import Consent
from provision.pipeline.workspace import Settings
from unit.engine.fake_engine import FakeEngine
from unit.fleet.registries import Registries
from unit.fleet.test_selection import KEY, OLD, PIN, have
from unit.kmod.artifact import KERNEL, write
from unit.registry.memory import ECDSA, public_pem

DEFAULT = Consent()


PACKAGE = b"a package"


SHA256 = hashlib.sha256(PACKAGE).hexdigest()


INNER = "inner.example/drivers"


DEMO, NOTHING = ImageSelection(("demo",)), Extras()


def built(pin: Pin) -> Pin:
    """A Pin with a closure of one package."""
    package = ClosurePackage.model_validate(
        {
            "name": "gcc",
            "version": "1",
            "arch": "amd64",
            "sha256": SHA256,
            "size": len(PACKAGE),
            "repository": "main",
            "location": "pool/gcc.deb",
        }
    )
    return pin.model_copy(update={"closure": (package,)})


class SavingEngine(FakeEngine):
    """An engine with one base image, or none."""

    loaded: list[bytes]

    def __init__(self, *, has_base: bool = True) -> None:
        super().__init__()
        self.loaded = []
        if has_base:
            self.have(Image(PIN.base.digest, ("debian:bookworm",), size=10))

    def save(self, image_id: str) -> Iterator[bytes]:
        yield f"saved {image_id}".encode()

    def load(self, archive: BytesIO) -> None:  # type: ignore[override] # any stream
        self.loaded.append(archive.read())
        self.have(Image(PIN.base.digest, ("debian:bookworm",), size=10))


def signer(data: bytes) -> bytes:
    return KEY.sign(data, ECDSA)


Make = Callable[..., BundleIndex]


@pytest.fixture
def make(registries: Registries, settings: Settings, tmp_path: Path) -> Make:
    """Makes a bundle as the command does."""
    have(registries, settings, PIN)

    def made(
        output: Path = tmp_path / "bundle",
        *,
        selection: ImageSelection = DEMO,
        extras: Extras = NOTHING,
        builds: bool = False,
        key: bool = True,
        engine: FakeEngine | None = None,
    ) -> BundleIndex:
        order = Order(OLD, selection, extras, builds)
        one = engine or SavingEngine()
        access = RegistryAccess(settings, DEFAULT, registries.connect)
        contents: Contents = gather(access, order, lambda: one)
        return create(access, order, contents, output, signer if key else None)

    return made


def host_of(tmp_path: Path, kernel: str = KERNEL) -> Settings:
    """A host in the gap, which trusts the same key."""
    settings = settings_at(tmp_path / "inner")
    write(settings.root / f"lib/modules/{kernel}/modules.dep", b"")
    write(settings.root / f"boot/vmlinuz-{kernel}", b"")
    return settings


def settings_at(folder: Path, trust: str = '{"keys": "/etc/provision/trust.d"}') -> Settings:
    from provision.catalogue import Catalogue  # noqa: PLC0415 - beside its one use
    from provision.config import Config  # noqa: PLC0415 - as above

    write(folder / "host/etc/provision/trust.d/fleet.pub", public_pem(KEY))
    config = Config.model_validate_json(f'{{"trust": {trust}}}')
    return Settings(folder / "host", config, Catalogue([]), folder / "state")


def reaching(host: Settings, registries: Registries | None = None) -> RegistryAccess:
    return RegistryAccess(host, DEFAULT, (registries or Registries()).connect)
