"""Prebuilding: what the registry lacks is built, pushed and signed, each cell once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kit.memory_registry import (
    MemoryRegistry,
    new_key,
    public,
    public_pem,
    wanted_of,
)
from provision.build.dockerfile import OPERATOR_LABEL
from provision.config import Config, RegistryConfig, TrustConfig
from provision.engine.docker_api import Engine
from provision.errors import ProvisionError
from provision.fetch import UnreachableError
from provision.fleet.matrix.cells import Planned, Selection
from provision.fleet.matrix.results import Outcome as RunOutcome
from provision.fleet.matrix.results import result_of
from provision.fleet.prebuild import Fleet, fleet_registry, pushed_rows, split_present
from provision.pin import PIN_LABEL, Pin
from provision.registry import publish
from provision.registry.artifact_images import facts_of
from provision.registry.find import registry_of, tag_of
from provision.registry.manifests import find_digest
from provision.registry.names import operator_tags, pin_tag
from provision.registry.signatures import signature_tag, verify_signature
from unit.fleet.matrix.test_runner import KERNELS, Lab, cell, cells, compile_error
from unit.fleet.prebuild_lab import (
    ADDRESS,
    KEY,
    PINS,
    publisher,
    run,
)
from unit.fleet.prebuild_lab import lab as lab  # noqa: PLC0414 - a fixture
from unit.fleet.prebuild_lab import registry as registry  # noqa: PLC0414 - a fixture


@pytest.mark.parametrize("jobs", [1, 3])
def test_what_is_lacking_is_pushed_and_signed(
    lab: Lab, registry: MemoryRegistry, jobs: int
) -> None:
    place = publisher(lab, registry)
    done = run(lab, place, jobs=jobs)
    assert (len(done.built), done.troubles) == (6, [])
    assert set(place.pushed) == {one.cell for one in cells()}
    for pin in PINS.values():
        client = registry.client(f"{ADDRESS}/demo:{tag_of(pin).text}")
        digest = find_digest(client, tag_of(pin).text)
        assert digest
        assert verify_signature(client, digest, [public(KEY)], wanted_of(pin))
    # Neither images nor names are left in the engine.
    assert len([call for call in lab.removed if call.startswith(ADDRESS)]) == 6
    lacking, present = split_present(place, cells())
    assert (lacking, len(present)) == ([], 6)


def test_a_second_run_asks_and_builds_nothing(lab: Lab, registry: MemoryRegistry) -> None:
    run(lab, publisher(lab, registry))
    lab.builds.clear()
    registry.asked.clear()
    again = run(lab, publisher(lab, registry))
    assert (lab.builds, len(again.unchanged)) == ([], 6)
    assert not any(asked.startswith("put") for asked in registry.asked)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_copied_image_gets_the_tags_of_an_operator_if_it_is_signed(
    lab: Lab, registry: MemoryRegistry, *, is_ours: bool
) -> None:
    """Copies, such as those of a bundle, have the tags that hosts look for."""
    one = cell("2.0", KERNELS[0])
    pin = PINS["2.0", KERNELS[0]]
    labels = {PIN_LABEL: pin.canonical_json(), OPERATOR_LABEL: "2.0"}
    digest = registry.have_image(pin, [b"theirs"], tag_of(pin).text, labels=labels)
    registry.sign(digest, facts_of(pin, 1), KEY if is_ours else new_key())
    (lab.settings.root / "etc/fleet.pub").write_bytes(public_pem(KEY))
    trust = TrustConfig(keys="/etc/fleet.pub")
    lab.settings = replace(lab.settings, config=Config(trust=trust))
    place = publisher(lab, registry)
    _, present = split_present(place, [Planned(one)])
    place.add_operator_tags(present)
    client = registry.client(f"{ADDRESS}/demo:x")
    for tag in operator_tags("2.0", KERNELS[0], "debian:12"):
        assert find_digest(client, tag) == (digest if is_ours else None)


def test_an_image_without_a_signature_is_made_again(lab: Lab, registry: MemoryRegistry) -> None:
    place = publisher(lab, registry)
    run(lab, place, Planned(cell("2.0", KERNELS[0])))
    digest = place.pushed[cell("2.0", KERNELS[0])].rpartition("@")[2]
    del registry.manifests[signature_tag(digest)]
    lab.builds.clear()
    run(lab, publisher(lab, registry), Planned(cell("2.0", KERNELS[0])))
    assert lab.builds == [f"2.0 {KERNELS[0]}"]
    assert publisher(lab, registry).has(cell("2.0", KERNELS[0]))


def another_build(registry: MemoryRegistry, pin: Pin, tag: str | None = None) -> str:
    """Have another build of a Pin in a registry, with the tag of the Pin, and unsigned."""
    digest = registry.have_image(pin, [b"others"], tag or tag_of(pin).text)
    registry.manifests[pin_tag(pin.digest)] = registry.manifests[digest]
    return digest


def test_what_came_to_no_end_is_not_reported_as_there(lab: Lab, registry: MemoryRegistry) -> None:
    one, other = cell("2.0", KERNELS[0]), cell("2.0", KERNELS[1])
    lab.results.write(result_of(other, "built"))
    rows = pushed_rows(publisher(lab, registry), [one, other], [], RunOutcome(), lab.results)
    assert [row["state"] for row in rows] == ["left", "left"]


def test_an_unsigned_build_of_the_same_pin_gives_way(lab: Lab, registry: MemoryRegistry) -> None:
    """Another machine ended between the tag of the Pin and the signature."""
    one = cell("2.0", KERNELS[0])
    pin = PINS["2.0", KERNELS[0]]
    theirs = another_build(registry, pin)
    place = publisher(lab, registry)
    done = run(lab, place, Planned(one))
    assert (done.troubles, place.has(one)) == ([], True)
    client = registry.client(f"{ADDRESS}/demo:{tag_of(pin).text}")
    digests = {find_digest(client, tag) for tag in (pin_tag(pin.digest), tag_of(pin).text)}
    assert digests == {place.pushed[one].rpartition("@")[2]}
    assert digests != {theirs}


def test_what_another_machine_pushed_meanwhile_stays(lab: Lab, registry: MemoryRegistry) -> None:
    """This one stood still during its build, while another one built the cell."""
    one = cell("2.0", KERNELS[0])
    pin = PINS["2.0", KERNELS[0]]
    theirs: list[str] = []

    def finish(_name: str) -> None:
        theirs.append(another_build(registry, pin))
        registry.sign(theirs[0], facts_of(pin, 1), KEY)

    lab.hold = finish
    place = publisher(lab, registry)
    done = run(lab, place, Planned(one))
    assert (done.troubles, place.pushed) == ([], {})
    assert find_digest(registry.client(f"{ADDRESS}/demo:x"), tag_of(pin).text) == theirs[0]


@pytest.mark.parametrize("signs", [True, False])
def test_a_build_of_the_same_pin_that_is_called_otherwise_gets_the_name(
    lab: Lab, registry: MemoryRegistry, *, signs: bool
) -> None:
    one = cell("2.0", KERNELS[0])
    pin = PINS["2.0", KERNELS[0]]
    theirs = another_build(registry, pin, "by-hand")
    if signs:
        registry.sign(theirs, facts_of(pin, 1), KEY)
    (lab.settings.root / "etc/fleet.pub").write_bytes(public_pem(KEY))
    trust = TrustConfig(keys="/etc/fleet.pub")
    lab.settings = replace(lab.settings, config=Config(trust=trust))
    place = publisher(lab, registry)
    place.is_signed, place.signer = signs, place.signer if signs else None
    done = run(lab, place, Planned(one))
    assert (done.troubles, place.pushed) == ([], {})
    assert pushed_rows(place, [one], [], done, lab.results)[0]["state"] == "present"
    assert find_digest(registry.client(f"{ADDRESS}/demo:x"), tag_of(pin).text) == theirs


def test_a_build_of_the_same_pin_that_a_stranger_signed_is_trouble(
    lab: Lab, registry: MemoryRegistry
) -> None:
    pin = PINS["2.0", KERNELS[0]]
    theirs = another_build(registry, pin, "by-hand")
    registry.sign(theirs, facts_of(pin, 1), new_key())
    done = run(lab, publisher(lab, registry), Planned(cell("2.0", KERNELS[0])))
    assert "has another image of the Pin" in done.troubles[0][1].message
    assert find_digest(registry.client(f"{ADDRESS}/demo:x"), tag_of(pin).text) is None


def test_what_another_registry_lacks_is_built_although_it_was_built_here(
    lab: Lab, registry: MemoryRegistry
) -> None:
    run(lab, publisher(lab, registry))
    registry.manifests.clear()
    lab.builds.clear()
    assert len(run(lab, publisher(lab, registry)).built) == 6


def test_a_failure_is_remembered_and_pushes_nothing(lab: Lab, registry: MemoryRegistry) -> None:
    lab.broken["2.0"] = compile_error()
    one = Planned(cell("2.0", KERNELS[0]))
    run(lab, publisher(lab, registry), one)
    run(lab, publisher(lab, registry), one)
    assert lab.builds == [f"2.0 {KERNELS[0]}"]
    assert registry.manifests == {}
    run(lab, publisher(lab, registry), one, retry="failed")
    assert len(lab.builds) == 2


def test_a_registry_in_trouble_ends_the_run_and_the_image_stays(
    lab: Lab, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object, **_more: object) -> None:
        raise UnreachableError("gone")

    monkeypatch.setattr(publish, "_sign", refuse)
    done = run(lab, publisher(lab, registry))
    assert len(done.troubles) == 1
    assert len(done.left) == 5
    assert not any(call.startswith("sha256:") for call in lab.removed)


def test_what_is_called_otherwise_is_not_pushed(lab: Lab, registry: MemoryRegistry) -> None:
    place = publisher(lab, registry)
    built = lab.build(None, _resolved("1.2"), None)  # type: ignore[arg-type] # not read
    engine: Engine = lab.engine
    with pytest.raises(ProvisionError):
        place.publish(cell("2.0", KERNELS[0]), engine, built, PINS["1.2", KERNELS[0]])
    assert registry.manifests == {}


def _resolved(version: str) -> Any:  # noqa: ANN401 - stands for a Resolved
    return type("Resolved", (), {"pin": PINS[version, KERNELS[0]]})


@pytest.mark.parametrize(
    ("address", "expected"), [(None, "/etc/ca.pem"), ("other.example/x", None)]
)
def test_the_fleets_registry_is_the_builders_own_unless_it_has_another(
    lab: Lab, address: str | None, expected: str | None
) -> None:
    """Else the file of authorities that an error asks for would change nothing."""
    config = Config(registry=RegistryConfig(address=address, ca="/etc/ca.pem"))
    build = Selection(drivers=("demo",))
    fleet = Fleet(registry=ADDRESS, unsigned=True, builds=(build,))
    place = fleet_registry(replace(lab.settings, config=config), fleet, None)
    found = registry_of(place.settings, place.reference(cell("2.0", KERNELS[0]))).ca
    assert found == (lab.settings.root / expected.lstrip("/") if expected else None)
