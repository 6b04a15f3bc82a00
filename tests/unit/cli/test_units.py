"""The command units."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unit.cli.outcome import Outcome

Call = Callable[..., Outcome]


def test_units_come_and_go(call: Call, host: Path) -> None:
    dry = call("units", "--root", host, "--dry-run")
    assert dry.code == 0
    assert f"would write {host}/etc/systemd/system/provision-boot.service" in dry.out
    assert not (host / "etc/systemd").exists()
    outcome = call("units", "--root", host, "--json")
    assert outcome.document["changed"] is True
    assert {change["kind"] for change in outcome.document["changes"]} == {"write", "switch"}
    unit = host / "etc/systemd/system/provision-boot.service"
    page = "file:///opt/provision/venv/share/provision/docs/how-to/keep-drivers-loaded.md"
    assert f"Documentation={page}\n" in unit.read_text()
    assert call("units", "--root", host).out == "Nothing to do.\n"
    assert call("units", "--root", host, "--json").document["changed"] is False
    gone = call("units", "--root", host, "--remove", "--json")
    assert {change["kind"] for change in gone.document["changes"]} == {"remove"}
    assert not unit.exists()


def test_a_program_that_can_not_be_run_is_wrong_usage(call: Call, host: Path) -> None:
    outcome = call("units", "--root", host, "--program", "bin/provision")
    assert outcome.code == 2
    assert "--program" in outcome.err


def test_updates_are_held_on_flatcar_alone_and_where_it_is_asked_for(
    call: Call, host: Path
) -> None:
    gate = host / "oem/bin/oem-postinst"
    config = host / "etc/provision/provision.toml"
    config.parent.mkdir()
    config.write_text("[policy]\nhold_updates = true\n")
    assert call("units", "--root", host).code == 0
    assert not gate.exists()
    (host / "etc/os-release").write_text("ID=flatcar\nVERSION_ID=4081.2.0\n")
    assert call("units", "--root", host).code == 0
    assert gate.exists()
    config.write_text("")
    assert call("units", "--root", host).code == 0
    assert not gate.exists()
