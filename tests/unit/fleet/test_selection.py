"""Which images of a registry a bundle takes, and which it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kit.artifact import KERNEL, make_artifact, make_pin, write
from kit.media import image_of
from kit.memory_registry import ECDSA, digest_of, layer_of, new_key, public_pem
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config
from provision.errors import NotFoundError
from provision.fleet.bundle import Chosen, ImageSelection, RegistryAccess, choose, require_all
from provision.pin import Pin
from provision.registry.artifact_images import facts_of
from provision.registry.find import TrustOverride, tag_of
from provision.registry.manifests import OCI_INDEX, OCI_MANIFEST
from provision.registry.names import parse_reference
from provision.registry.signatures import UntrustedError, sign
from unit.fleet.registries import Registries

OLD, NEW = "old.example/drivers", "new.example:5000/x/drivers"
KEY, OTHER = new_key(), new_key()
PIN = make_pin()
NEXT = make_pin(kernel="6.12.99+deb13-amd64")
SERIAL = 1_790_000_000
ALL = ImageSelection(("demo",))
DEFAULT = TrustOverride()


@pytest.fixture
def registries() -> Registries:
    return Registries()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A machine that trusts a key."""
    root = tmp_path / "host"
    write(root / "etc/provision/trust.d/fleet.pub", public_pem(KEY))
    config = Config.model_validate_json('{"trust": {"keys": "/etc/provision/trust.d"}}')
    write(tmp_path / "catalogue/demo/driver.toml", b"")
    return Settings(root, config, Catalogue([tmp_path / "catalogue"]), tmp_path / "state")


def have(
    registries: Registries,
    settings: Settings,
    pin: Pin,
    *tags: str,
    key: ec.EllipticCurvePrivateKey | None = KEY,
    **facts: Any,  # noqa: ANN401 - fields of Facts
) -> str:
    """Have an image in the old registry under the name that hosts look for, and others."""
    folder = settings.state / "artifacts" / pin.short_digest
    make_artifact(folder, pin=pin)
    image = image_of(pin, [layer_of(folder)])
    stored = registries.stored[f"{OLD}/demo"]
    stored.blobs |= {digest_of(blob): blob for blob in image.blobs}
    for name in (tag_of(pin).text, digest_of(image.manifest), *tags):
        stored.manifests[name] = image.manifest
    if key is not None:
        said = replace(facts_of(pin, SERIAL), **facts)
        put_signature(registries, settings, digest_of(image.manifest), said, key)
    return digest_of(image.manifest)


def put_signature(
    registries: Registries,
    settings: Settings,
    digest: str,
    facts: Any,  # noqa: ANN401 - Facts
    key: ec.EllipticCurvePrivateKey,
) -> None:
    client = registries.connect(settings, parse_reference(f"{OLD}/demo"))
    sign(client, digest, facts, lambda data: key.sign(data, ECDSA))


def chosen(
    registries: Registries,
    settings: Settings,
    selection: ImageSelection = ALL,
    consent: TrustOverride = DEFAULT,
) -> tuple[tuple[Chosen, ...], list[str]]:
    return choose(RegistryAccess(settings, consent, registries.connect), OLD, selection)


@pytest.mark.parametrize(
    ("selection", "kernels"),
    [
        (ImageSelection(("demo",), ("6.12.99+*",)), ["6.12.99+deb13-amd64"]),
        (ImageSelection(("demo",), (KERNEL,)), [KERNEL]),
        (ImageSelection(("demo",), distros=("debian:12",)), [KERNEL, NEXT.kernel.release]),
        (ImageSelection(("demo",), ("6.12.99+*", KERNEL)), [KERNEL, NEXT.kernel.release]),
        (ImageSelection(), [KERNEL, NEXT.kernel.release]),
    ],
)
def test_a_selection_is_by_driver_kernel_and_distro(
    registries: Registries, settings: Settings, selection: ImageSelection, kernels: list[str]
) -> None:
    have(registries, settings, PIN)
    have(registries, settings, NEXT)
    taken, _refused = chosen(registries, settings, selection)
    found = sorted(one.pin.kernel.release for each in taken for one in each.images)
    assert found == sorted(kernels)


@pytest.mark.parametrize(
    "selection",
    [ImageSelection(("demo",), ("5.*",)), ImageSelection(("demo",), distros=("debian:13",))],
)
def test_nothing_to_take_is_an_error(
    registries: Registries, settings: Settings, selection: ImageSelection
) -> None:
    have(registries, settings, PIN)
    with pytest.raises(NotFoundError):
        chosen(registries, settings, selection)


@pytest.mark.parametrize("case", ["unsigned", "other key", "other facts", "other name", "driver"])
def test_what_is_not_trusted_is_not_taken(
    registries: Registries, settings: Settings, case: str
) -> None:
    have(registries, settings, NEXT)
    if case == "unsigned":
        have(registries, settings, PIN, key=None)
    elif case == "other key":
        have(registries, settings, PIN, key=OTHER)
    elif case == "other facts":
        have(registries, settings, PIN, kernel="6.6.6")
    elif case == "other name":
        have(registries, settings, PIN, tag_of(make_pin(version="9.9")).text)
    else:
        have(registries, settings, make_pin(driver="other"))
    taken, refused = chosen(registries, settings)
    assert len(refused) == 1
    assert [one.tags for one in taken] == [(tag_of(NEXT).text,)]
    with pytest.raises(UntrustedError):
        require_all(refused)


def test_with_consent_unsigned_images_are_taken(registries: Registries, settings: Settings) -> None:
    have(registries, settings, PIN, key=None)
    taken, refused = chosen(registries, settings, consent=TrustOverride(insecure=True))
    assert (len(taken), refused) == (1, [])


def test_an_index_of_architectures_is_taken_whole(
    registries: Registries, settings: Settings
) -> None:
    digest = have(registries, settings, PIN)
    stored = registries.stored[f"{OLD}/demo"]
    size = len(stored.manifests[digest])
    platform = {"architecture": "amd64", "os": "linux"}
    entry = {"mediaType": OCI_MANIFEST, "digest": digest, "size": size, "platform": platform}
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}
    stored.manifests[tag_of(PIN).text] = json.dumps(index).encode()
    stored.manifests[digest_of(json.dumps(index).encode())] = json.dumps(index).encode()
    ((whole,), refused) = chosen(registries, settings)
    assert (whole.content.data, refused) == (stored.manifests[tag_of(PIN).text], [])
    assert [str(one.reference.digest) for one in whole.images] == [digest]
