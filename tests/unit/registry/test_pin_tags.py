"""The tag of a Pin: it leads to one image, and hosts pull by it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kit.artifact import make_pin
from kit.memory_registry import MemoryRegistry, copy_to_layout
from provision.build.dockerfile import OPERATOR_LABEL
from provision.build.resolve import Resolved
from provision.build.workspace import Settings
from provision.config import RegistryConfig
from provision.engine.docker_api import Engine
from provision.errors import NotFoundError, UntrustedError
from provision.registry import Reference, pin_tag
from provision.registry.find import find_pin_in_registries
from provision.registry.publish import (
    PinTagConflictError,
    set_operator_tags,
    set_pin_tag,
)
from provision.registry.repositories import writable_layout
from provision.store.obtain import obtain
from unit.engine.fake_engine import using
from unit.registry.trusting_host import ADDRESS, configured, have, options
from unit.registry.trusting_host import registry as registry  # noqa: PLC0414 - a fixture
from unit.registry.trusting_host import settings as settings  # noqa: PLC0414 - a fixture


def test_a_pin_leads_to_its_image_whatever_that_is_called(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    pin = make_pin()
    have(registry, tmp_path, pin, tag=pin_tag(pin.digest))
    trusted = find_pin_in_registries(settings, pin, options(registry))
    assert trusted is not None
    assert trusted.pin == pin
    assert find_pin_in_registries(settings, make_pin(version="9"), options(registry)) is None


def test_the_tag_of_a_pin_that_leads_to_another_image_is_refused(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    pin, other = make_pin(), make_pin(version="9")
    have(registry, tmp_path, other, tag=pin_tag(pin.digest))
    with pytest.raises(UntrustedError):
        find_pin_in_registries(settings, pin, options(registry))


def test_the_tag_of_a_pin_is_never_moved(registry: MemoryRegistry, tmp_path: Path) -> None:
    pin = make_pin()
    have(registry, tmp_path, pin, tag="first")
    have(registry, tmp_path, make_pin(version="9"), tag="second")
    client = registry.client(f"{ADDRESS}/demo:again")
    first, second = client.manifest("first"), client.manifest("second")
    tag = set_pin_tag(client, pin, first.digest)
    assert set_pin_tag(client, pin, first.digest) == tag == pin_tag(pin.digest)
    with pytest.raises(PinTagConflictError):
        set_pin_tag(client, pin, second.digest)
    assert client.manifest(tag).digest == first.digest
    # Another may set it at the same time.
    del registry.manifests[tag]
    registry.after.append(lambda _tag: registry.manifests.update({tag: second.data}))
    with pytest.raises(PinTagConflictError):
        set_pin_tag(client, pin, first.digest)


def test_the_tag_of_a_branch_leads_to_its_newest_version(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    client = registry.client(f"{ADDRESS}/demo:x")
    end = f"-{make_pin().kernel.release}-debian12"
    for version in ("5.9", "5.10", "5.2"):
        pin = make_pin(version=version)
        have(registry, tmp_path, pin, tag=version)
        labels = {OPERATOR_LABEL: version}
        set_operator_tags(client, pin, labels, client.manifest(version).digest)
    for tag, version in {"5.9": "5.9", "5.2": "5.2", "5": "5.10"}.items():
        assert client.manifest(f"{tag}{end}").digest == client.manifest(version).digest


def test_what_would_be_built_is_pulled_by_its_pin(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    pin = make_pin()
    have(registry, tmp_path, pin, tag=pin_tag(pin.digest))
    copy_to_layout(registry, writable_layout(settings.root / "images/demo", Reference("", "demo")))
    host = configured(tmp_path, registry=RegistryConfig(folders=("/images",)))
    resolved = cast("Resolved", SimpleNamespace(pin=pin))

    def no_engine() -> Engine:
        raise NotFoundError("no engine")

    done = obtain(using(host, no_engine), resolved)
    assert (done.origin, done.entry.name) == ("registry", pin.short_digest)
    assert obtain(using(host, no_engine), resolved).origin == "store"
