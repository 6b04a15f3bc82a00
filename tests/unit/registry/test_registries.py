"""The registry of a host: its name, its settings, and the keys that count for a driver."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from kit.artifact import KERNEL, make_pin
from kit.memory_registry import (
    MemoryRegistry,
    public_pem,
)
from provision.build.workspace import Settings
from provision.config import RegistryConfig, TrustConfig, TrustRule
from provision.engine.docker_api import names_registry
from provision.errors import UntrustedError
from provision.registry import parse_reference
from provision.registry.find import (
    TrustOverride,
    examine,
    facts_of,
    host_reference,
    registry_of,
    tag_of,
)
from unit.registry.trusting_host import (
    ADDRESS,
    DEFAULT,
    KEY,
    OTHER,
    SOUGHT,
    configured,
    connected,
    found,
    have,
)
from unit.registry.trusting_host import registry as registry  # noqa: PLC0414 - a fixture
from unit.registry.trusting_host import settings as settings  # noqa: PLC0414 - a fixture


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


# The keys that sign


def test_rules_for_a_registry_or_driver_come_first() -> None:
    trust = TrustConfig(
        keys="/all",
        registries={
            "registry.example": TrustRule(keys="/registry"),
            "registry.example/drivers": TrustRule(keys="/drivers"),
        },
        drivers={"other": TrustRule(insecure=True)},
    )
    rules = {
        ("registry.example/drivers/demo", "demo"): "/drivers",
        ("registry.example/driversx/demo", "demo"): "/registry",
        ("registry.example:5000/demo", "demo"): "/all",
        ("registry.example/drivers/other", "other"): None,
    }
    for (repository, driver), keys in rules.items():
        assert trust.rule(repository, driver).keys == keys


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("name", ["toy", "demo"])
def test_the_rules_of_another_driver_do_not_count(
    registry: MemoryRegistry, tmp_path: Path, name: str
) -> None:
    """By its repository's name, the image is of a driver that everybody may sign for."""
    have(registry, tmp_path, tag="tested", signed=False)
    (tmp_path / "host/etc/provision/trust.d/demo.pub").write_bytes(public_pem(OTHER))
    trust = TrustConfig(
        keys="/etc/provision/trust.d",
        drivers={"toy": TrustRule(insecure=True), "demo": TrustRule(keys="/etc/demo.pub")},
    )
    host = configured(tmp_path, trust)
    (tmp_path / "host/etc/demo.pub").write_bytes(public_pem(OTHER))

    client = connected(registry)(host, parse_reference(f"{ADDRESS}/{name}:tested"))
    with pytest.raises(UntrustedError) as caught:
        examine(host, client, {}, DEFAULT)
    assert ("rules of 'demo'" in caught.value.message) == (name == "toy")
    if name == "toy":
        # Who says so himself decides.
        assert examine(host, client, {}, TrustOverride(insecure=True)).verified is None


@pytest.mark.usefixtures("settings")
def test_a_key_can_be_given(registry: MemoryRegistry, tmp_path: Path) -> None:
    have(registry, tmp_path)
    (tmp_path / "other.pub").write_bytes(public_pem(OTHER))
    (tmp_path / "own.pub").write_bytes(public_pem(KEY))
    host = configured(tmp_path, TrustConfig(insecure=True))
    found(host, registry, trust=TrustOverride(public_key=tmp_path / "own.pub"))
    with pytest.raises(UntrustedError):
        found(host, registry, trust=TrustOverride(public_key=tmp_path / "other.pub"))


def test_settings_of_a_registry_are_no_other_ones(tmp_path: Path) -> None:
    registry = RegistryConfig(address="registry.example/drivers", plain_http=True, ca="/etc/ca.pem")
    host = configured(tmp_path, None, registry)
    own = registry_of(host, parse_reference("registry.example/other:1"))
    assert (own.plain_http, own.ca) == (True, tmp_path / "host/etc/ca.pem")
    for name in ("evil.example/demo:1", "registry.example:5000/demo:1"):
        other = registry_of(host, parse_reference(name))
        assert (other.plain_http, other.ca) == (False, None)


def test_hosts_look_for_what_is_pushed(settings: Settings, tmp_path: Path) -> None:
    pin = make_pin()
    reference = f"{ADDRESS}/demo:1.2-open-{KERNEL}.debian12"
    assert host_reference(settings, pin) == reference
    assert SOUGHT.tag("1.2").text == tag_of(pin).text
    assert {**SOUGHT.facts(), "version": "1.2"}.items() <= asdict(facts_of(pin, 0)).items()
    assert host_reference(configured(tmp_path, None, RegistryConfig()), pin) is None
