"""The command ``provision matrix --push``: its list, its report, and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.build.workspace import Settings
from provision.cli import matrix
from provision.fleet import fleet_file
from provision.fleet.fleet_file import cell_id
from provision.fleet.matrix.cells import Offer, Offers
from provision.fleet.prebuild import FleetRegistry
from provision.registry import publish
from provision.registry.registries import connect
from unit.cli.outcome import Outcome
from unit.fleet.matrix.test_runner import KERNELS, Lab, cell, compile_error
from unit.fleet.prebuild_lab import ADDRESS
from unit.fleet.prebuild_lab import lab as lab  # noqa: PLC0414 - a fixture
from unit.fleet.prebuild_lab import registry as registry  # noqa: PLC0414 - a fixture
from unit.recipes import recipe
from unit.registry.memory import MemoryRegistry
from unit.registry.trusting_host import connected

Call = Callable[..., Outcome]


# The command


@pytest.fixture
def fleet(
    lab: Lab, registry: MemoryRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    offer = Offer("v4l2loopback", "open", "debian:12", ("2.0",), recipe=recipe())
    offers = Offers((offer,), {"debian:12": KERNELS})
    monkeypatch.setattr(fleet_file, "find_offers", lambda *_given, **_more: offers)
    monkeypatch.setattr(matrix, "ensure_base_images", lambda *_given, **_more: None)
    monkeypatch.setattr(matrix, "open_engine", lambda _settings: lab.engine)

    def made(settings: Settings, address: str, signer: object, **more: Any) -> FleetRegistry:  # noqa: ANN401 - its own fields
        given = {"connected": connected(registry), **more}
        return FleetRegistry(settings, address, signer, **given)  # type: ignore[arg-type] # as given

    monkeypatch.setattr(matrix, "FleetRegistry", made)
    monkeypatch.setattr(publish, "connect", connected(registry))
    file = tmp_path / "fleet.toml"
    file.write_text(
        f'registry = "{ADDRESS}"\nunsigned = true\ndistros = ["debian:12"]\n'
        '[[builds]]\ndrivers = ["v4l2loopback"]\nforce = true\n'
    )
    return file


def words(lab: Lab, fleet: Path, *more: object) -> tuple[object, ...]:
    return ("matrix", fleet, "--push", "--root", lab.settings.root, *more)


def test_the_list_is_a_command_a_line(lab: Lab, fleet: Path, call: Call) -> None:
    listed = call(*words(lab, fleet, "--list")).out.splitlines()
    assert listed[0] == (
        f"provision matrix {fleet} --push --cell v4l2loopback/2.0/open/debian:12/{KERNELS[0]}"
    )
    assert len(listed) == 3
    document = call(*words(lab, fleet, "--list", "--missing", "--json")).document
    one = document["cells"][0]
    assert one["command"][-1] == one["id"]
    assert one["reference"] == f"{ADDRESS}/v4l2loopback:2.0-open-{KERNELS[0]}.debian12"


def test_a_run_is_a_line_a_cell_and_a_document(lab: Lab, fleet: Path, call: Call) -> None:
    lab.broken[KERNELS[1]] = compile_error()
    names = [cell_id(cell("2.0", kernel)) for kernel in KERNELS[:2]]
    given = [word for name in names for word in ("--cell", name)]
    done = call(*words(lab, fleet, *given, "--state", lab.results.folder))
    assert done.code == 1
    assert "/source/a.c:7: no member" in done.out
    assert "1 pushed, 1 failed" in done.out
    document = call(*words(lab, fleet, *given, "--json", "--state", lab.results.folder)).document
    assert document["counts"] == {"present": 1, "failed": 1}
    assert document["cells"][1]["first_error"]["line"] == 7


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--missing",), "--missing works with --list"),
        (("--cell", "x"), "is not a cell"),
        (("--list", "--key", "/k"), "nothing is to be signed"),
        (("--key", "/k"), "nothing is to be signed"),
    ],
)
def test_what_makes_no_sense_is_refused(
    lab: Lab, fleet: Path, call: Call, more: tuple[str, ...], said: str
) -> None:
    done = call(*words(lab, fleet, *more))
    assert done.code == 2
    assert said in done.err


def test_a_fleet_without_a_key_fails_before_anything_is_built(
    lab: Lab, fleet: Path, call: Call
) -> None:
    fleet.write_text(fleet.read_text().replace("unsigned = true\n", ""))
    done = call(*words(lab, fleet))
    assert done.code == 1
    assert "names no key" in done.err
    assert lab.builds == []


@pytest.mark.parametrize(
    ("address", "expected"), [("", "/etc/ca.pem"), ('address = "other.example/x"\n', None)]
)
def test_the_fleets_registry_is_the_builders_own_unless_it_has_another(
    lab: Lab,
    fleet: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    expected: str | None,
) -> None:
    """Else the file of authorities that an error asks for would change nothing."""
    given: list[Path | None] = []

    def made(settings: Settings, address: str, signer: object, **_more: object) -> FleetRegistry:
        place = FleetRegistry(settings, address, signer)  # type: ignore[arg-type] # as given
        given.append(connect(settings, place.reference(cell("2.0", KERNELS[0]))).ca)
        return place

    monkeypatch.setattr(matrix, "FleetRegistry", made)
    toml = lab.settings.root / "etc/provision/provision.toml"
    toml.parent.mkdir(parents=True)
    toml.write_text(f'[registry]\n{address}ca = "/etc/ca.pem"\n')
    call(*words(lab, fleet, "--list"))
    assert given == [lab.settings.root / "etc/ca.pem" if expected else None]
