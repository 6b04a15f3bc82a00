"""One host's life on Debian, as README.md promises it: from its packages to their removal.

The tests are stages in the life of one guest, in their order; the first failure ends it. Its engine
and the network are real, and so are the kernels, which apt installs. One driver has a real source;
`duo` has a module and a library that fail unless both are of one version, and does not build for
the newer kernel until it has a patch; `lab` needs a module of the kernel's own out of its way.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from kit.demanding_driver import lab_catalogue
from kit.guest import DEBIAN_12, IMAGE, guest_of
from kit.guest.kernel_package import kernel_package
from kit.hosts import NEW_KERNEL, OLD_KERNEL, SMALL_DRIVER
from kit.released import EARLIER, earlier, make_debian_packages
from kit.screencast import Recording
from kit.two_part_driver import DUO, DUO_BROKEN, duo_catalogue, repair_duo
from provision.errors import ExitCode
from vm.conftest import HOST
from vm.managed import (
    APT,
    APT_WITHIN_S,
    OPEN,
    WITHIN_S,
    ManagedGuest,
    put_packages,
    slots_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = [pytest.mark.stages, pytest.mark.minutes(10)]

# An in-tree module that udev loads at every boot, and its line in the kernel's log.
CONFLICT, CONFLICT_LOG = "i2c_piix4", "SMBus Host Controller at"
# What opens its device.
_HOLD_CONFLICT = "modprobe i2c-dev; sleep 100000 </dev/i2c-0 >/dev/null 2>&1 & echo $!"
_HOLD_DUO = "sleep 100000 </dev/duo >/dev/null 2>&1 & echo $!"
_METRICS = "/var/lib/prometheus/node-exporter"
_COMPILER_SAYS = "too few arguments to function"

_FLAG = "-e OCI_V4L2LOOPBACK=all"
ENGINES = {
    "docker": "docker run --rm --network none --runtime oci-decorator",
    "podman": "podman --runtime oci-decorator run --rm --network none",
}
# What another guest's tests want to find, and an admin has not.
_UNUSUAL = "/opt/provision /etc/docker/daemon.json /etc/containers/containers.conf.d/kit.conf"
# Files whose names have to do with us, but for what systemd, dpkg and the tests themselves write.
_OURS = "provision|oci-decorator|v4l2loopback|duo|lab"
_ELSEWHERE = (
    *("/root", "/srv", "/usr/lib/modules", "/var/log", "/var/lib/apt", "/var/lib/docker"),
    *("/var/lib/dpkg", "/var/lib/systemd/timers"),
)
_LIST_OURS = f"""
find / -xdev {" ".join(f"-path {folder} -prune -o" for folder in _ELSEWHERE)} \\
    -regextype posix-extended -regex '.*/[^/]*({_OURS})[^/]*' -print \\
    | grep -v /systemd-private- | sort
"""


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A catalogue with both made-up drivers."""
    folder = tmp_path_factory.mktemp("life")
    with (
        duo_catalogue(folder, host=HOST) as drivers,
        lab_catalogue(folder, host=HOST, conflicts=[CONFLICT]),
    ):
        yield drivers


@pytest.fixture(scope="module")
def host(
    engine_address: str,
    drivers: Path,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Iterator[ManagedGuest]:
    """A Debian with engines, packages of two releases in /root, and nothing of ours installed."""
    packages = make_debian_packages(tmp_path_factory.mktemp("packages"))
    older = tmp_path_factory.mktemp("older")
    with guest_of(DEBIAN_12) as guest:
        guest(f"rm -r {_UNUSUAL}; mkdir -p {_METRICS}; systemctl try-reload-or-restart docker")
        guest(f"mkdir /root/{EARLIER}; {_LIST_OURS.strip()} >/root/before")
        put_packages(guest, packages, DEBIAN_12)
        for package in packages:
            guest.put(earlier(package, older), f"/root/{EARLIER}/{package.name}")
        host = ManagedGuest(guest, engine_address, Recording(pytestconfig.option.record))
        host.put_catalogue(drivers)
        yield host


@contextmanager
def _held(host: ManagedGuest, script: str) -> Iterator[str]:
    """Let a process hold a device open; yields its id."""
    process = host.guest(f"nohup sh -c '{script}'").stdout.strip()
    yield process
    host.guest(f"kill {process}; while kill -0 {process} 2>/dev/null; do sleep 0.1; done")


def _assert_serves(host: ManagedGuest, version: str) -> None:
    """The host and its containers have the driver, both halves of one version."""
    said = f"module {version} library {version}\n"
    assert f"{host.duo()}\n" == said, host.journal("provision-*")
    assert host.guest(f"{ENGINES['docker']} -e OCI_DUO=all {IMAGE} duo-version").stdout == said
    assert host.guest(f"{ENGINES['podman']} {_FLAG} {IMAGE} {OPEN}").stdout == "opened\n"


def test_packages_are_installed(host: ManagedGuest) -> None:
    host.guest(f"{APT} install /root/{EARLIER}/*.deb", timeout_s=APT_WITHIN_S)
    units = "provision-boot.service provision-kernel.path provision-apply.timer"
    assert host.guest(f"systemctl is-enabled {units}").stdout.split() == ["enabled"] * 3
    done = host.guest("provision status", check=False)
    assert done.returncode == ExitCode.NOT_FOUND, done.output


def test_what_is_configured_is_built_and_loaded(host: ManagedGuest) -> None:
    host.want(**{SMALL_DRIVER: "latest", DUO: "1.0"})
    host.apply()
    drivers = host.statuses(check=ExitCode.DONE)
    assert drivers[SMALL_DRIVER]["state"] == drivers[DUO]["state"] == "ready"
    # From the store, with what it needs of the kernel's own.
    assert host.is_loaded("v4l2loopback")
    assert host.is_loaded("videodev")
    assert host.guest("find /lib/modules -name 'v4l2loopback*'").stdout == ""
    assert json.loads(host.guest("provision plan --json").stdout)["actions"] == []
    host.only_show("provision status --check")


def test_containers_have_the_driver_that_they_ask_for(host: ManagedGuest) -> None:
    for engine in ENGINES:
        host.guest(f"oci-decorator configure {engine}")
    host.guest("systemctl reload docker")
    for start in ENGINES.values():
        assert host.guest(f"{start} {_FLAG} {IMAGE} {OPEN}").stdout == "opened\n"
    _assert_serves(host, "1.0")
    # Read-only.
    script = "sh -c ': >>/usr/bin/v4l2loopback-ctl'"
    done = host.guest(f"{ENGINES['podman']} {_FLAG} {IMAGE} {script}", check=False)
    assert "Read-only file system" in done.stderr


def test_an_upgrade_of_the_programs_builds_and_unloads_nothing(host: ManagedGuest) -> None:
    drivers = (SMALL_DRIVER, DUO)
    # A module that is loaded again has another inode.
    loaded = f"stat -c %i /sys/module/v4l2loopback /sys/module/{DUO}"
    before = {driver: host.entries(driver) for driver in drivers}, host.guest(loaded).stdout
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
    _assert_serves(host, "1.0")


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
    host.guest(f"{ENGINES['docker']} -d --name kept {_FLAG} {IMAGE} sleep 10000")
    host.guest("systemctl daemon-reload")
    assert host.guest(f"docker exec kept {OPEN}").stdout == "opened\n"
    host.guest("docker rm -f kept")


def test_what_is_in_use_waits_and_its_user_is_named(host: ManagedGuest) -> None:
    """A conflicting module of the kernel's own, and a version that is to be replaced."""
    old = host.artifact(DUO)
    with _held(host, _HOLD_CONFLICT), _held(host, _HOLD_DUO) as user:
        host.want(**{SMALL_DRIVER: "latest", DUO: DUO_BROKEN, "lab": "latest"})
        said = host.apply(status=ExitCode.IN_USE).output
        assert CONFLICT in said
        drivers = host.statuses(check=ExitCode.IN_USE)
        for driver in (DUO, "lab"):
            assert drivers[driver]["state"] == "reboot-required", said
        assert any(user in one for one in drivers[DUO]["users"])
        # Both halves of the new version are prepared; those of the old one serve.
        assert len(host.entries(DUO)) == 2
        assert host.artifact(DUO) == old
        _assert_serves(host, "1.0")
        assert host.is_loaded(CONFLICT)
        assert not host.is_loaded("lab")


def test_what_is_idle_is_switched_with_both_halves(host: ManagedGuest) -> None:
    host.apply()
    _assert_serves(host, DUO_BROKEN)
    assert host.is_loaded("lab")
    assert not host.is_loaded(CONFLICT)
    # It read its firmware, which lies in the store, and has a node.
    assert "lab: firmware has 8 bytes" in host.guest("dmesg").stdout
    assert host.guest("stat -c '%F %a' /dev/lab0").stdout == "character special file 666\n"


def test_modules_for_a_new_kernel_are_built_before_the_reboot(host: ManagedGuest) -> None:
    before = host.artifact(SMALL_DRIVER)
    package = f"/root/linux-image-{NEW_KERNEL}.deb"
    host.guest.put(kernel_package(NEW_KERNEL), package)
    host.only_show("uname -r")
    with host.kernel_service_runs():
        host.show(f"{APT} install {package}", timeout_s=APT_WITHIN_S, lines=5)
    host.only_show("journalctl --boot --output=cat --unit=provision-kernel")
    drivers = host.statuses(check=ExitCode.FAILED)
    for driver in (SMALL_DRIVER, "lab"):
        slot = slots_of(drivers[driver])[NEW_KERNEL]
        assert (slot["role"], slot["state"]) == ("next", "ready"), host.journal("provision-kernel")
    # What runs is as it was.
    assert host.guest.kernel() == OLD_KERNEL
    assert host.artifact(SMALL_DRIVER) == before


def test_what_does_not_build_is_said_before_the_reboot(host: ManagedGuest) -> None:
    status = host.statuses(check=ExitCode.FAILED)[DUO]
    assert (status["state"], status["is_ready"]) == ("next-kernel-not-ready", True)
    assert _COMPILER_SAYS in str(slots_of(status)[NEW_KERNEL]["failure"])
    host.only_show("provision status --check", lines=24)
    assert _COMPILER_SAYS in host.journal("provision-kernel")
    metrics = host.guest(f"cat {_METRICS}/provision.prom").stdout
    for kernel, role, ready in ((NEW_KERNEL, "next", 0.0), (OLD_KERNEL, "running", 1.0)):
        name = f'provision_driver_ready{{driver="{DUO}",kernel="{kernel}",role="{role}"}} '
        (value,) = (line for line in metrics.splitlines() if line.startswith(name))
        assert float(value.removeprefix(name)) == ready
    # The build is over, and nothing holds up a shutdown.
    assert "provision" not in host.guest("systemd-inhibit --list --no-pager").stdout


def test_with_a_patch_it_heals(host: ManagedGuest, drivers: Path) -> None:
    repair_duo(drivers)
    host.put_catalogue(drivers)
    host.show("provision apply", timeout_s=WITHIN_S)
    status = host.statuses(check=ExitCode.DONE)[DUO]
    assert {slot["state"] for slot in status["kernels"]} == {"ready"}
    host.only_show("provision status --check")


def test_after_a_reboot_without_a_network_everything_is_loaded(host: ManagedGuest) -> None:
    host.guest.set_network(on=False)
    host.reboot()
    assert host.show("uname -r").stdout == f"{NEW_KERNEL}\n"
    log = host.boot_log()
    assert host.guest("systemctl show --value -p Result provision-boot").stdout == "success\n", log
    _assert_serves(host, DUO_BROKEN)
    host.only_show("provision status --check")
    host.only_show(f"{ENGINES['podman']} {_FLAG} {IMAGE} {OPEN}")
    assert host.is_loaded("lab"), log
    assert CONFLICT_LOG not in host.guest("dmesg").stdout
    # Engines start after it; specifications of the Container Device Interface are there.
    assert "provision-boot" in host.guest("systemctl show -p After docker.service").stdout
    host.wait_for_services()
    names = host.guest("ls /run/cdi").stdout.split()
    assert set(names) >= {f"oci-decorator-{name}.json" for name in (SMALL_DRIVER, DUO)}
    # The way back: the kernel before finds its modules, too.
    for driver in (SMALL_DRIVER, DUO, "lab"):
        host.guest(f"provision verify /var/lib/provision/{driver}/kernels/{OLD_KERNEL}")


def test_rollback_brings_module_and_library_back_and_stays(host: ManagedGuest) -> None:
    host.guest.set_network(on=True)
    host.want(**{SMALL_DRIVER: "latest", DUO: "2.0", "lab": "latest"})
    host.apply()
    _assert_serves(host, "2.0")
    host.guest(f"provision rollback {DUO}")
    _assert_serves(host, DUO_BROKEN)
    host.apply()
    assert host.duo() == f"module {DUO_BROKEN} library {DUO_BROKEN}"


def test_what_only_a_removed_kernel_needed_goes(host: ManagedGuest) -> None:
    gone = host.artifact(DUO, f"kernels/{OLD_KERNEL}")
    host.guest(f"{APT} purge linux-image-{OLD_KERNEL}", timeout_s=APT_WITHIN_S)
    host.wait_for_services()
    host.guest("provision gc")
    assert gone not in host.entries(DUO)
    assert host.guest(f"ls /var/lib/provision/{DUO}/kernels").stdout.split() == [NEW_KERNEL]
    host.guest(f"provision verify /var/lib/provision/{DUO}/current && provision status --check")
    _assert_serves(host, DUO_BROKEN)


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
    left = guest(f"{_LIST_OURS.strip()} | comm -13 /root/before -").stdout.split()
    # What the admin wrote.
    assert left == ["/etc/provision", "/etc/provision/provision.toml"]
    assert guest("systemctl list-unit-files 'provision-*' --no-legend", check=False).stdout == ""
    assert guest(f"docker run --rm --network none {IMAGE} echo works").stdout == "works\n"
