"""One host's life on Debian, as README.md promises it: from its packages to their removal.

The tests are stages in the life of one guest, in their order; the first failure ends it. Its engine
and the network are real. One driver has a real source; `duo` has a module and a library that fail
unless both are of one version; `lab` needs a module of the kernel's own out of its way. The next
kernel has a guest of its own: test_kernel_upgrade.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kit.guest import IMAGE
from kit.hosts import SMALL_DRIVER
from kit.released import EARLIER
from kit.two_part_driver import DUO, DUO_BROKEN, DUO_FAILS_HERE
from provision.errors import ExitCode
from vm.managed import (
    APT,
    APT_WITHIN_S,
    CONFLICT,
    ENGINES,
    FLAG,
    LIST_OURS,
    OPEN,
    ManagedGuest,
)

pytestmark = [pytest.mark.stages, pytest.mark.minutes(11)]

# What opens the device of the conflicting module, and that of duo.
_HOLD_CONFLICT = "modprobe i2c-dev; sleep 100000 </dev/i2c-0 >/dev/null 2>&1 & echo $!"
_HOLD_DUO = "sleep 100000 </dev/duo >/dev/null 2>&1 & echo $!"


@contextmanager
def _held(host: ManagedGuest, script: str) -> Iterator[str]:
    """Let a process hold a device open; yields its id."""
    process = host.guest(f"nohup sh -c '{script}'").stdout.strip()
    yield process
    host.guest(f"kill {process}; while kill -0 {process} 2>/dev/null; do sleep 0.1; done")


def test_packages_are_installed(host: ManagedGuest) -> None:
    host.guest(f"{APT} install /root/{EARLIER}/*.deb", timeout_s=APT_WITHIN_S)
    units = "provision-boot.service provision-kernel.path provision-apply.timer"
    assert host.guest(f"systemctl is-enabled {units}").stdout.split() == ["enabled"] * 3
    done = host.guest("provision status", check=False)
    assert done.returncode == ExitCode.NOT_FOUND, done.output


def test_what_is_configured_is_built_and_loaded(host: ManagedGuest) -> None:
    host.want(**{SMALL_DRIVER: "latest", DUO: "1.0"})
    drivers = host.apply().drivers
    assert drivers[SMALL_DRIVER]["state"] == drivers[DUO]["state"] == "ready"
    # From the store, with what it needs of the kernel's own.
    assert host.is_loaded("v4l2loopback")
    assert host.is_loaded("videodev")
    assert host.guest("find /lib/modules -name 'v4l2loopback*'").stdout == ""
    assert json.loads(host.guest("provision plan --json").stdout)["actions"] == []
    host.only_show("provision status --check")


def test_containers_have_the_driver_that_they_ask_for(host: ManagedGuest) -> None:
    host.configure_engines()
    for start in ENGINES.values():
        assert host.guest(f"{start} {FLAG} {IMAGE} {OPEN}").stdout == "opened\n"
    host.assert_serves("1.0")
    # Read-only.
    script = "sh -c ': >>/usr/bin/v4l2loopback-ctl'"
    done = host.guest(f"{ENGINES['podman']} {FLAG} {IMAGE} {script}", check=False)
    assert "Read-only file system" in done.stderr


def test_an_upgrade_of_the_programs_builds_and_unloads_nothing(host: ManagedGuest) -> None:
    drivers = (SMALL_DRIVER, DUO)
    # A module that is loaded again has another inode.
    loaded = f"stat -c %i /sys/module/v4l2loopback /sys/module/{DUO}"
    before = (
        {driver: host.entries(driver) for driver in drivers},
        host.guest(loaded).stdout,
    )
    host.guest(f"{APT} install /root/*.deb", timeout_s=APT_WITHIN_S)
    assert EARLIER not in host.guest("dpkg-query -W provision oci-decorator").stdout
    units = "provision-kernel.path provision-apply.timer"
    assert host.guest(f"systemctl is-active {units}").stdout.split() == ["active"] * 2
    stale = f"systemctl show -p NeedDaemonReload {units} provision-boot | grep -c yes"
    assert host.guest(stale, check=False).stdout == "0\n"
    assert json.loads(host.guest("provision plan --json").stdout)["actions"] == []
    host.apply()
    assert before == (
        {driver: host.entries(driver) for driver in drivers},
        host.guest(loaded).stdout,
    )
    host.assert_serves("1.0")


def test_containers_that_do_not_ask_have_no_device(host: ManagedGuest) -> None:
    """Not even by a node that they make: the cgroup denies it."""
    script = "sh -c 'test ! -e /dev/video0 && mknod /tmp/video0 c 81 0 && : <>/tmp/video0'"
    for start in ENGINES.values():
        done = host.guest(f"{start} --cap-add MKNOD {IMAGE} {script}", check=False)
        assert done.returncode != 0
        assert "Operation not permitted" in done.stderr, done.output


def test_a_device_outlives_a_reload_of_systemd(host: ManagedGuest) -> None:
    """Systemd then writes the device rules of its scopes again, cgroup v2's BPF programs."""
    assert host.guest("stat -f -c %T /sys/fs/cgroup").stdout == "cgroup2fs\n"
    host.guest(f"{ENGINES['docker']} -d --name kept {FLAG} {IMAGE} sleep 10000")
    host.guest("systemctl daemon-reload")
    assert host.guest(f"docker exec kept {OPEN}").stdout == "opened\n"
    host.guest("docker rm -f kept")


def test_what_is_in_use_waits_and_its_user_is_named(host: ManagedGuest) -> None:
    """A conflicting module of the kernel's own, and a version that is to be replaced."""
    old = host.artifact(DUO)
    with _held(host, _HOLD_CONFLICT), _held(host, _HOLD_DUO) as user:
        host.want(**{SMALL_DRIVER: "latest", DUO: DUO_BROKEN, "lab": "latest"})
        done = host.apply(status=ExitCode.IN_USE)
        assert CONFLICT in done.output
        for driver in (DUO, "lab"):
            assert done.drivers[driver]["state"] == "reboot-required", done.output
        assert any(user in one for one in done.drivers[DUO]["users"])
        # Both halves of the new version are prepared; those of the old one serve.
        assert len(host.entries(DUO)) == 2
        assert host.artifact(DUO) == old
        host.assert_serves("1.0")
        assert host.is_loaded(CONFLICT)
        assert not host.is_loaded("lab")


def test_what_is_idle_is_switched_with_both_halves(host: ManagedGuest) -> None:
    host.apply()
    host.assert_serves(DUO_BROKEN)
    assert host.is_loaded("lab")
    assert not host.is_loaded(CONFLICT)
    # It read its firmware, which lies in the store, and has a node.
    assert "lab: firmware has 8 bytes" in host.guest("dmesg").stdout
    assert host.guest("stat -c '%F %a' /dev/lab0").stdout == "character special file 666\n"


def test_a_version_whose_check_fails_returns_by_itself(host: ManagedGuest) -> None:
    """Module and library, and it is not tried again."""
    host.guest.write(DUO_FAILS_HERE, "2.0\n")
    host.want(**{SMALL_DRIVER: "latest", DUO: "2.0", "lab": "latest"})
    drivers = host.apply(status=ExitCode.FAILED).drivers
    (slot,) = drivers[DUO]["kernels"]
    assert (slot["version"], slot["failure"]["reason"]) == (DUO_BROKEN, "check"), slot
    host.assert_serves(DUO_BROKEN)
    assert json.loads(host.guest("provision plan --json").stdout)["actions"] == []


def test_what_is_purged_leaves_nothing(host: ManagedGuest) -> None:
    """As docs/how-to/upgrade-and-uninstall.md says."""
    guest = host.guest
    guest.write("/etc/provision/provision.toml", "# no drivers\n")
    host.apply()
    for module in ("v4l2loopback", DUO, "lab"):
        assert not host.is_loaded(module)
    for engine in ENGINES:
        guest(f"oci-decorator configure {engine} --remove")
    guest("systemctl reload docker && provision gc && rm -r /var/lib/provision")
    guest(f"{APT} purge provision oci-decorator", timeout_s=APT_WITHIN_S)
    left = guest(f"{LIST_OURS} | comm -13 /root/before -").stdout.split()
    # What the admin wrote.
    assert left == ["/etc/provision", "/etc/provision/provision.toml"]
    assert guest("systemctl list-unit-files 'provision-*' --no-legend", check=False).stdout == ""
    assert guest(f"docker run --rm --network none {IMAGE} echo works").stdout == "works\n"
