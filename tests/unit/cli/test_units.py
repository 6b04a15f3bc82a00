"""The command units."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.artifact import make_artifact, make_pin
from provision.errors import ExitCode
from provision.files import lock
from provision.store import units as store_units
from provision.store.layout import Layout
from unit.cli.outcome import Outcome

Call = Callable[..., Outcome]


def test_a_host_may_want_no_specifications(call: Call, host: Path) -> None:
    units = host / "etc/systemd/system"
    assert call("units", "install", "--root", host).code == 0
    assert (units / "provision-cdi.path").exists()
    settings = host / "etc/provision/provision.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("[cdi]\ngenerate = false\n")
    assert call("units", "install", "--root", host).code == 0
    assert not [*units.rglob("provision-cdi*")]
    assert (units / "provision-boot.service").exists()


@pytest.mark.parametrize(
    ("installed", "settings", "wanted"),
    [
        (["podman"], "", True),
        (["podman", "dockerd"], "", False),
        (["dockerd"], "", False),
        ([], "", False),
        (["podman", "dockerd"], "unix:///run/podman/podman.sock", True),
        (["podman"], "ssh://builder.example", False),
    ],
)
def test_units_that_build_start_podmans_socket_where_podman_builds(
    call: Call, host: Path, installed: list[str], settings: str, *, wanted: bool
) -> None:
    (host / "usr/bin").mkdir(parents=True, exist_ok=True)
    for name in installed:
        (host / "usr/bin" / name).touch()
    if settings:
        path = host / "etc/provision/provision.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'[engine]\nhost = "{settings}"\n')
    assert call("units", "install", "--root", host).code == 0
    for name in ("provision-apply.service", "provision-kernel.service"):
        text = (host / "etc/systemd/system" / name).read_text()
        assert ("Wants=podman.socket" in text.splitlines()) == wanted


def test_in_tree_copies_are_blacklisted_while_units_load_the_driver(call: Call, host: Path) -> None:
    layout = Layout(host, "demo")
    digest = make_pin().short_digest
    make_artifact(layout.entry(digest))
    layout.current.symlink_to(digest)
    assert call("units", "install", "--root", host).code == 0
    assert "blacklist demo\n" in layout.modprobe_config.read_text()
    assert call("units", "remove", "--root", host).code == 0
    assert not layout.modprobe_config.exists()


def test_two_at_once_are_not_waited_for_without_a_word_or_an_end(
    call: Call, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_units, "SWITCH_SECONDS", 0.1)
    with lock(host / "run/provision/units.lock"):
        outcome = call("units", "install", "--root", host)
    assert outcome.code == ExitCode.IN_USE
    assert not (host / "etc/systemd").exists()


def test_updates_are_held_only_on_flatcar_and_on_request(call: Call, host: Path) -> None:
    gate = host / "oem/bin/oem-postinst"
    config = host / "etc/provision/provision.toml"
    config.parent.mkdir()
    config.write_text("[policy]\nhold_kernels = true\n")
    assert call("units", "install", "--root", host).code == 0
    assert not gate.exists()
    (host / "etc/os-release").write_text("ID=flatcar\nVERSION_ID=4081.2.0\n")
    assert call("units", "install", "--root", host).code == 0
    assert gate.exists()
    config.write_text("")
    assert call("units", "install", "--root", host).code == 0
    assert not gate.exists()


def test_what_the_removal_of_a_package_runs_leaves_no_store(call: Call, host: Path) -> None:
    store = host / "var/lib/provision"
    for word, is_written in (("install", True), ("remove", False), ("remove", False)):
        assert call("units", word, "--root", host).code == 0
        assert any(path.is_file() for path in store.rglob("*")) is is_written
