"""Units and kernel hooks under a real systemd: what starts them, and what they then do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.engine import Engine
from kit.guest import DEBIAN_12, Guest, guest_of
from kit.guest.tree import VENV
from kit.hosts import SMALL_DRIVER
from kit.process import wait_for
from kit.product import Provision
from vm.stored import Store

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(4)]

_WAIT_S = 600
_VENDOR = """
{"activation_flag": "OCI_ZERO", "driver_feature": [], "inventory": {"a": {"devices": ["zero"]}}}
"""
_HOOKS = "/etc/kernel/postinst.d /etc/kernel/postrm.d /etc/kernel/header_postinst.d"


@pytest.fixture(scope="module")
def guest(
    engine: Engine, bookworm_product: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guest]:
    """A guest with a driver in its store and the units, rebooted without a network."""
    store = Store(Provision(engine.host), tmp_path_factory.mktemp("units") / "root")
    store.apply(f"[drivers.{SMALL_DRIVER}]\n")
    with guest_of(DEBIAN_12) as guest:
        guest.install(bookworm_product)
        store.put(guest)
        guest("provision units install")
        guest("systemctl is-active provision-kernel.path provision-apply.timer")
        guest.set_network(on=False)
        guest.reboot()
        yield guest


def _property(guest: Guest, unit: str, name: str) -> str:
    return guest(f"systemctl show --value -p {name} {unit}").stdout.strip()


def _runs_again(guest: Guest, unit: str, since: str) -> None:
    """Wait until a unit has been started after a moment that the kernel's clock names."""

    def is_started() -> bool:
        return int(_property(guest, unit, "ExecMainStartTimestampMonotonic") or 0) > int(since)

    def log() -> str:
        asked = f"systemctl status {unit}; journalctl -b --no-pager -u {unit}"
        return guest(asked, check=False).output

    wait_for(f"the start of {unit}", is_started, within_s=_WAIT_S, pause_s=1, said=log)


def _settled(guest: Guest, unit: str) -> None:
    """Wait until a oneshot unit has ended."""

    def has_ended() -> bool:
        return _property(guest, unit, "ActiveState") not in {"activating", "deactivating"}

    wait_for(f"the end of {unit}", has_ended, within_s=_WAIT_S, pause_s=1)


def _now(guest: Guest) -> str:
    """The kernel's clock, in microseconds as systemd gives it."""
    seconds = guest("cut -d' ' -f1 /proc/uptime").stdout
    return str(int(float(seconds) * 1_000_000))


def test_specifications_are_those_of_this_boot_and_follow_the_vendor_files(guest: Guest) -> None:
    unit, folder = "provision-cdi.service", "/run/cdi"
    # It comes after the boot unit, and maybe after us.
    _runs_again(guest, unit, "0")
    _settled(guest, unit)
    log = guest(f"journalctl -b --no-pager -u {unit}").stdout
    assert _property(guest, unit, "Result") == "success", log
    written = f"{folder}/oci-decorator-{SMALL_DRIVER}.json"
    document = json.loads(guest(f"cat {written}").stdout)
    assert "video0" in [device["name"] for device in document["devices"]], log
    # Another vendor's file comes, as at an activation, and goes.
    vendors = "/etc/oci-decorator/oci-decorator.d"
    guest.write(f"{vendors}/.zero", _VENDOR)
    guest(f"mv {vendors}/.zero {vendors}/zero.json")
    names = [f"oci-decorator-{SMALL_DRIVER}.json", "oci-decorator-zero.json"]
    _has(guest, folder, names)
    _settled(guest, unit)
    guest(f"rm {vendors}/zero.json")
    _has(guest, folder, names[:1])


def _has(guest: Guest, folder: str, names: list[str]) -> None:
    """Wait until a folder has these files: a run that was under way may have seen the change."""

    def found() -> list[str]:
        return guest(f"ls {folder}").stdout.split()

    wait_for(folder, lambda: found() == names, within_s=_WAIT_S, pause_s=1, said=found)


def test_kernel_hooks_start_the_service_and_do_not_wait(guest: Guest) -> None:
    guest("systemctl stop provision-kernel.service")
    for hook in ("postinst.d", "postrm.d", "header_postinst.d"):
        since = _now(guest)
        # As the package manager runs them: with hardly an environment.
        guest(f"env -i /bin/sh -c '/etc/kernel/{hook}/provision 6.1.0-99-amd64 /boot/vmlinuz-x'")
        _runs_again(guest, "provision-kernel.service", since)
        guest("systemctl stop provision-kernel.service")
    # The package manager's own way: one that fails would stop it.
    guest(
        f"for folder in {_HOOKS}; do"
        " run-parts --exit-on-error --arg=6.1.0-99-amd64 --regex='^provision$' $folder || exit 1;"
        " done"
    )


def test_units_are_not_installed_from_where_systemd_would_not_see_them(guest: Guest) -> None:
    guest("cp -a /opt/provision /root/clone")
    program = "/root/clone/bin/provision"
    guest(f"sed 's,^#!/opt/provision/,#!/root/clone/,' /usr/local/bin/provision >{program}")
    guest(f"chmod +x {program} && {program} --version")
    before = guest("cat /etc/systemd/system/provision-*").stdout
    done = guest(f"{program} units install", check=False)
    assert done.returncode == 2, done.output
    assert program in done.stderr, done.output
    assert guest("cat /etc/systemd/system/provision-*").stdout == before
    # It would not have started.
    done = guest(f"systemd-run --quiet --wait -p ProtectHome=yes {program} --version", check=False)
    assert done.returncode != 0


def test_a_broken_python_costs_no_driver_and_the_journal_says_how_to_repair_it(
    guest: Guest,
) -> None:
    """As an upgrade of the distro leaves it: the Python of its environment is gone."""
    unit, python = "provision-boot.service", f"{VENV}/bin/python"
    guest(f"mv {python} {python}.gone")
    guest.reboot()
    _settled(guest, unit)
    log = guest(f"journalctl -b --no-pager -u {unit}").stdout
    assert "v4l2loopback " in guest("cat /proc/modules").stdout, log
    guest("test -c /dev/video0")
    # What could not be seen is not green.
    assert _property(guest, unit, "Result") == "exit-code", log
    assert "What to do: install provision again" in log
    guest(f"mv {python}.gone {python} && systemctl restart {unit}")
    log = guest(f"journalctl -b --no-pager -u {unit}").stdout
    assert _property(guest, unit, "Result") == "success", log
    assert json.loads(guest("provision status --json").stdout)["drivers"][0]["is_ready"]


def test_a_host_without_units_is_as_before(guest: Guest) -> None:
    guest("provision units remove")
    units = guest("systemctl list-unit-files 'provision-*' --no-legend", check=False).stdout
    assert units.strip() == ""
    assert guest(f"find {_HOOKS} -name provision").stdout == ""
    assert "v4l2loopback" in guest("cat /proc/modules").stdout
