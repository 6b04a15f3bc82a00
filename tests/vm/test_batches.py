"""A new version of a driver goes onto five hosts by Ansible, and works on two of the first three.

Each host is a guest with the version before in use. The play takes them one after the other, with
images that were built and signed here. The host whose check fails then has it fail in other ways.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from kit.guest import DEBIAN_12, Guest, guest_of
from kit.guest.guest import SNAPSHOT
from kit.hosts import DISTRO, OLD_KERNEL
from kit.playbooks import SITE, Ansible, Played
from kit.product import Provision
from kit.released import make_debian_packages
from kit.two_part_driver import DUO, DUO_CHECK, DUO_FAILS_HERE, DUO_VERSIONS, duo_catalogue
from provision.errors import ExitCode
from vm.managed import APT, APT_WITHIN_S, ManagedGuest, put_packages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.engine import Engine

pytestmark = [pytest.mark.nightly, pytest.mark.stages, pytest.mark.minutes(40)]

_OLD, _NEW = DUO_VERSIONS
_NAMES = ("h1", "h2", "h3", "h4", "h5")
_FAILS = "h3"
_PLAY_WITHIN_S = 5400
# What a controller that reads or changes a host leaves in its journal.
_LOGINS = "journalctl -b --no-pager -u ssh | grep -c 'Accepted publickey'"


def _wanted(version: str) -> dict[str, Any]:
    return {"drivers": {DUO: {"version": version}}, "policy": {"build": "never"}}


@dataclass(frozen=True, slots=True)
class Fleet:
    """The hosts by name, and how the play with the new version ended."""

    hosts: dict[str, ManagedGuest]
    played: Played
    # How often someone had logged in before.
    logins: dict[str, str]


@pytest.fixture(scope="module")
def fleet(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Hosts after the play; the driver's check fails on the third with the new version."""
    folder = tmp_path_factory.mktemp("batches")
    images, key = folder / "images", folder / "fleet"
    provision = Provision(engine.host)
    provision("registry", "key", "--no-password", "--output", key)
    with duo_catalogue(folder) as catalogue, ExitStack() as opened:
        with (catalogue / DUO / "driver.toml").open("a") as recipe:
            recipe.write(DUO_CHECK)
        target = ("--kernel", OLD_KERNEL, "--distro", DISTRO, "--catalogue", catalogue)
        signed = ("--push", f"oci:{images}", "--sign", "--key", f"{key}.key")
        for version in DUO_VERSIONS:
            provision.build(DUO, "--version", version, *target, *signed)
        variables = {
            "provision_host_engine": "none",
            "provision_driver_install": "package",
            "provision_driver_catalogue": str(catalogue),
            "provision_driver_folder": str(images),
            "provision_driver_trust_keys": [f"{key}.pub"],
            "provision_hook_engines": ["podman"],
        }
        disk = _first_host(folder, variables)
        base = guest_of(DEBIAN_12).base
        guests = [opened.enter_context(Guest(base, disk, name)) for name in _NAMES]
        hosts = {guest.name: ManagedGuest(guest, engine.host) for guest in guests}
        hosts[_FAILS].guest.write(DUO_FAILS_HERE, f"{_NEW}\n")
        logins = {name: host.guest(_LOGINS).stdout for name, host in hosts.items()}
        wanted = {**variables, "provision_driver_config": _wanted(_NEW)}
        # One after the other, and each in emulation.
        ansible = Ansible(folder, guests, wanted, timeout_s=_PLAY_WITHIN_S)
        played = ansible.play(SITE, "--extra-vars", "provision_serial=1", check=False)
        yield Fleet(hosts, played, logins)


def _first_host(folder: Path, variables: dict[str, Any]) -> Path:
    """The disk of a host that a play has brought the old version to, with a machine that runs."""
    with guest_of(DEBIAN_12) as guest:
        # Nothing that containers need takes time from the others.
        guest("systemctl disable --now docker.socket docker containerd")
        packages = folder / "packages"
        packages.mkdir()
        put_packages(guest, make_debian_packages(packages), DEBIAN_12)
        guest(f"{APT} install /root/*.deb", timeout_s=APT_WITHIN_S)
        ansible = Ansible(folder, [guest], {**variables, "provision_driver_config": _wanted(_OLD)})
        ansible.play(SITE)
        guest("sync")
        guest.machine.save(SNAPSHOT)
        guest.kill()
        disk = folder / "first.qcow2"
        shutil.copy(guest.disk, disk)
    return disk


def test_hosts_before_it_have_the_new_version(fleet: Fleet) -> None:
    for name in ("h1", "h2"):
        assert fleet.played.recap[name]["failed"] == 0, fleet.played.output
        assert fleet.hosts[name].duo() == f"module {_NEW} library {_NEW}"


def test_where_its_check_fails_both_halves_go_back_and_the_play_fails(fleet: Fleet) -> None:
    assert fleet.played.code != 0
    assert fleet.played.recap[_FAILS]["failed"] == 1, fleet.played.output
    assert "the card does not answer" in fleet.played.output
    host = fleet.hosts[_FAILS]
    assert host.duo() == f"module {_OLD} library {_OLD}"
    ((slot,),) = (driver["kernels"] for driver in host.statuses().values())
    assert (slot["version"], slot["failure"]["reason"]) == (_OLD, "check")


def test_no_host_after_it_is_touched(fleet: Fleet) -> None:
    for name in ("h4", "h5"):
        host = fleet.hosts[name]
        assert host.guest(_LOGINS).stdout == fleet.logins[name]
        assert fleet.played.recap[name]["changed"] == 0
        assert host.duo() == f"module {_OLD} library {_OLD}"
        assert f'"{_OLD}"' in host.guest("cat /etc/provision/provision.toml").stdout


@pytest.fixture(scope="module")
def failing(fleet: Fleet) -> ManagedGuest:
    """The host whose check fails; the others have ended."""
    for name in set(_NAMES) - {_FAILS}:
        fleet.hosts[name].guest.kill()
    return fleet.hosts[_FAILS]


def test_a_check_that_hangs_fails(failing: ManagedGuest) -> None:
    failing.guest.write(DUO_FAILS_HERE, f"{_NEW} sleep 600\n")
    slot = _retry(failing, status=ExitCode.FAILED)
    assert (slot["version"], slot["failure"]["reason"]) == (_OLD, "check")
    assert failing.duo() == f"module {_OLD} library {_OLD}"
    assert failing.guest("pgrep -f 'sleep 600'", check=False).returncode == 1


def test_one_that_fails_at_a_boot_fails_at_no_second(failing: ManagedGuest) -> None:
    failing.guest.write(DUO_FAILS_HERE, f"{_NEW}\n")
    # Modules in use stay until a reboot.
    failing.guest("systemd-run --quiet sh -c 'exec sleep infinity </dev/duo'")
    assert _retry(failing, status=ExitCode.IN_USE)["state"] == "reboot-required"
    for _ in range(2):
        failing.reboot()
        log = failing.boot_log()
        assert failing.duo() == f"module {_OLD} library {_OLD}", log
        (slot,) = failing.status(DUO)["kernels"]
        assert (slot["version"], slot["is_ready"]) == (_OLD, True)
    assert "the card does not answer" not in log


def test_one_that_passes_late_passes(failing: ManagedGuest) -> None:
    failing.guest.write(DUO_FAILS_HERE, f"{_NEW} sleep 10\n")
    slot = _retry(failing, status=ExitCode.DONE)
    assert (slot["version"], slot["failure"]) == (_NEW, None)
    assert failing.duo() == f"module {_NEW} library {_NEW}"


def _retry(host: ManagedGuest, *, status: int) -> dict[str, Any]:
    """Have the rejected version tried again; what is said of the running kernel."""
    ((slot,),) = (one["kernels"] for one in host.apply("--retry", status=status).drivers.values())
    found: dict[str, Any] = slot
    return found
