"""Pulled artifacts: verified, stored, and never older than the newest one that was accepted."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kit.artifact import KERNEL, MODULE, make_artifact, make_module, make_pin, write
from kit.memory_registry import MemoryRegistry
from kit.module_key import module_key
from provision.build.request import VersionRequest
from provision.build.workspace import Settings
from provision.config import TrustConfig
from provision.errors import ProvisionError, UntrustedError
from provision.kmod.module_signatures import is_signed
from provision.kmod.verify import verify_artifact
from provision.pin import Pin
from provision.registry.find import TrustOverride
from provision.store.availability import known_serials
from provision.store.entries import unsigned_image
from provision.store.layout import Layout
from provision.store.obtain import store_pulled, unpacked_pull
from unit.registry.trusting_host import (
    DEFAULT,
    SERIAL,
    SOUGHT,
    configured,
    found,
    have,
)
from unit.registry.trusting_host import registry as registry  # noqa: PLC0414 - a fixture
from unit.registry.trusting_host import settings as settings  # noqa: PLC0414 - a fixture

# From a registry into the store


def test_what_is_signed_gets_into_the_store(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path)
    trusted = found(settings, registry)
    obtained = store_pulled(settings, trusted, DEFAULT)
    assert obtained.origin == "registry"
    assert verify_artifact(obtained.entry).findings == ()
    assert unsigned_image(obtained.entry) is None
    # What is there is not pulled again.
    registry.asked.clear()
    assert store_pulled(settings, trusted, DEFAULT).origin == "store"
    assert registry.asked == []
    assert store_pulled(settings, trusted, DEFAULT, replace=True).origin == "registry"


def test_what_is_unsigned_is_marked_where_it_is_allowed(
    registry: MemoryRegistry, tmp_path: Path, settings: Settings
) -> None:
    have(registry, tmp_path, signed=False)
    with pytest.raises(UntrustedError):
        found(settings, registry)
    open_host = configured(tmp_path, TrustConfig(insecure=True))
    for host, trust in ((open_host, DEFAULT), (settings, TrustOverride(insecure=True))):
        trusted = found(host, registry, trust=trust)
        entry = store_pulled(host, trusted, trust).entry
        assert unsigned_image(entry) == str(trusted.reference)
    # Once it is signed, it is pulled again, and the mark goes.
    have(registry, tmp_path)
    assert store_pulled(settings, found(settings, registry), DEFAULT).origin == "registry"
    assert unsigned_image(entry) is None


def test_the_hosts_key_signs_nothing_that_is_unsigned(
    registry: MemoryRegistry, tmp_path: Path, settings: Settings
) -> None:
    signing = module_key(settings.root)
    settings = replace(settings, config=settings.config.model_copy(update={"signing": signing}))
    have(registry, tmp_path, signed=False)
    trust = TrustOverride(insecure=True)
    entry = store_pulled(settings, found(settings, registry, trust=trust), trust).entry
    assert not is_signed(entry / MODULE)
    # Nor is it pulled again for the lack of a signature that it does not get.
    assert store_pulled(settings, found(settings, registry, trust=trust), trust).origin == "store"
    have(registry, tmp_path)
    store_pulled(settings, found(settings, registry), DEFAULT)
    assert is_signed(entry / MODULE)


@pytest.mark.parametrize(
    ("pin", "module"),
    [
        (make_pin(), b"another module"),
        # The label that is signed for is one Pin's, and the manifest inside another's.
        (make_pin(version="9"), make_module()),
    ],
)
def test_a_damaged_artifact_leaves_nothing(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path, pin: Pin, module: bytes
) -> None:
    content = tmp_path / f"content-{make_pin().short_digest}"
    make_artifact(content, pin=pin)
    (content / MODULE).write_bytes(module)
    have(registry, tmp_path)
    trusted = found(settings, registry)
    with pytest.raises(ProvisionError):
        store_pulled(settings, trusted, DEFAULT)
    layout = Layout(settings.root, "demo")
    assert [path.name for path in layout.folder.iterdir() if path.name != ".lock"] == []
    assert known_serials(layout) == {}
    with unpacked_pull(settings, trusted) as (_folder, report):
        pass
    assert report.findings


# Replay


def test_an_older_artifact_is_refused_unless_it_is_allowed(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    old, new = make_pin(version="1.2"), make_pin(version="1.3")
    have(registry, tmp_path, old, serial=SERIAL)
    before = found(settings, registry)
    have(registry, tmp_path, new, serial=SERIAL + 60)
    # The serial outlives the entry.
    shutil.rmtree(store_pulled(settings, found(settings, registry), DEFAULT).entry)
    with pytest.raises(UntrustedError):
        store_pulled(settings, before, DEFAULT)
    assert not Layout(settings.root, "demo").entry(old.short_digest).exists()
    store_pulled(settings, before, TrustOverride(allow_downgrade=True))
    # Who went back on purpose may do so again, without being asked.
    store_pulled(settings, before, DEFAULT, replace=True)


@pytest.mark.parametrize(
    ("name", "pin", "is_taken"),
    [
        ("1.2", make_pin(version="1.2"), True),
        ("1", make_pin(version="1.2"), True),
        (None, make_pin(version="1.2", flavour="closed"), True),
        (None, make_pin(kernel="6.1.0-99-amd64"), True),
        (None, make_pin(version="1.2"), False),
        ("2", make_pin(version="2.0"), False),
        ("2.1", make_pin(version="2.1", recipe="5" * 64), False),
    ],
    ids=["version", "branch", "flavour", "kernel", "latest", "branch-of-both", "same-version"],
)
def test_what_is_named_is_compared_with_what_the_name_gave_before(
    settings: Settings,
    registry: MemoryRegistry,
    tmp_path: Path,
    name: str | None,
    pin: Pin,
    *,
    is_taken: bool,
) -> None:
    """A host that had the newest is pointed to something that was signed earlier."""
    have(registry, tmp_path, make_pin(version="2.1"), serial=SERIAL + 60)
    store_pulled(settings, found(settings, registry), DEFAULT)
    registry.manifests.clear()
    have(registry, tmp_path, pin, serial=SERIAL)
    version, release = VersionRequest(name), pin.kernel.release
    sought = SOUGHT._replace(version=version, flavour=pin.driver.flavour, kernel=release)
    trusted = found(settings, registry, sought)
    if is_taken:
        assert store_pulled(settings, trusted, DEFAULT).origin == "registry"
        # That was trust to this name, and to nothing else.
        sought = SOUGHT._replace(version=VersionRequest())
        registry.manifests.clear()
        have(registry, tmp_path, make_pin(version="1.2"), serial=SERIAL)
        trusted = found(settings, registry, sought)
    with pytest.raises(UntrustedError):
        store_pulled(settings, trusted, DEFAULT)


def test_a_slower_pull_does_not_forget_the_newer_one(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path, serial=SERIAL)
    trusted = found(settings, registry)
    layout, target = Layout(settings.root, "demo"), f"debian:12 {KERNEL} x86_64 open 1.2"

    def meanwhile(_host: str, asked: str) -> None:
        # While it is downloaded, another command takes a newer artifact.
        if asked.startswith("fetch"):
            write(layout.serials, json.dumps({target: SERIAL + 60}).encode())

    registry.hooks.append(meanwhile)
    with pytest.raises(UntrustedError):
        store_pulled(settings, trusted, DEFAULT)
    assert known_serials(layout) == {target: SERIAL + 60}


@pytest.mark.parametrize("text", ["", "[]", '{"x": "1"}', '{"x": true}', "[" * 100_000])
def test_serials_that_can_not_be_read_stop_pulls(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path, text: str
) -> None:
    have(registry, tmp_path)
    layout = Layout(settings.root, "demo")
    layout.folder.mkdir(parents=True)
    layout.serials.write_text(text)
    with pytest.raises(ProvisionError):
        store_pulled(settings, found(settings, registry), DEFAULT)


def test_a_fresh_host_can_refuse_old_signatures(
    registry: MemoryRegistry, tmp_path: Path, settings: Settings
) -> None:
    have(registry, tmp_path)
    for day, is_good in (("2026-01-01", True), ("2030-01-01", False)):
        text = json.dumps({"keys": "/etc/provision/trust.d", "not_before": day})
        host = configured(tmp_path, TrustConfig.model_validate_json(text))
        if is_good:
            found(host, registry)
            continue
        with pytest.raises(UntrustedError) as caught:
            found(host, registry)
        assert "not_before" in (caught.value.details or "")
    del settings
