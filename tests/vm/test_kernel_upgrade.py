"""A host's next kernel on Debian, as README.md promises it: drivers are there before the reboot.

The tests are stages in the life of one guest, in their order; the first failure ends it. Three
drivers are in use when apt installs the kernel: one loads there, one compiles and is refused until
it has a patch, and one needs a module of the kernel's own out of its way. The host has no QEMU: its
engine has one in a container.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from kit.cache import REPOSITORY
from kit.guest import IMAGE
from kit.guest.kernel_package import kernel_package
from kit.hosts import NEW_KERNEL, OLD_KERNEL, SMALL_DRIVER
from kit.two_part_driver import DUO, DUO_REFUSED, repair_duo
from provision.errors import ExitCode
from vm.managed import (
    APT,
    APT_WITHIN_S,
    ENGINES,
    FLAG,
    METRICS,
    OPEN,
    WITHIN_S,
    ManagedGuest,
    slots_of,
)

pytestmark = [pytest.mark.stages, pytest.mark.minutes(15)]

# What an in-tree module says in the kernel's log when it is loaded.
_CONFLICT_LOG = "SMBus Host Controller at"
_POLICY = "hold_kernels = true\ntrial = true"
_WANTED = {SMALL_DRIVER: "latest", DUO: DUO_REFUSED, "lab": "latest"}
_KERNEL_SAYS = "duo: this kernel lacks what the device needs"
_GATES = REPOSITORY / "docs/examples/gates"
# What Zincati asks, in the words of its protocol.
_ZINCATI_ASKS = """\
python3 - <<'END'
from http.client import HTTPConnection
asked = HTTPConnection("127.0.0.1", 3333, timeout=600)
body = '{"client_params": {"id": "0123456789abcdef", "group": "default"}}'
asked.request("POST", "/v1/pre-reboot", body, {"fleet-lock-protocol": "true"})
print(asked.getresponse().status)
END"""


def _default(host: ManagedGuest) -> str | None:
    """The kernel that GRUB boots by default, if its menu names one."""
    menu = host.guest("cat /boot/grub/grub.cfg").stdout
    found = re.search(r'(?m)^ *set default="[^"]*gnulinux-(\d.+)-advanced-[^"]*"$', menu)
    return found[1] if found else None


def _assert_gates(host: ManagedGuest, *, open_: bool) -> None:
    """What asks before a reboot, by the files of keep-drivers-loaded.md, is told whether it may."""
    values = (_GATES / "kured.yaml").read_text()
    command = yaml.safe_load(values)["configuration"]["rebootSentinelCommand"]
    # As kured runs it: without a shell of its own.
    words = shlex.join(["nsenter", "-m/proc/1/ns/mnt", "--", *shlex.split(command)])
    kured = host.guest(words, check=False)
    zincati = host.guest(_ZINCATI_ASKS).stdout.strip()
    assert (kured.returncode == 0, zincati) == (open_, "200" if open_ else "409")


def _put_gates(host: ManagedGuest) -> None:
    for file in _GATES.iterdir():
        folder = "/etc/systemd/system" if re.search(r"\.(service|socket|timer)$", file.name) else ""
        host.guest.put(file, f"{folder or '/etc/provision'}/{file.name}")
    host.guest("systemctl daemon-reload && systemctl start fleet-lock.socket")
    # unattended-upgrades' own hook of kernels makes this file.
    host.guest("touch /run/reboot-required")


def test_a_host_uses_three_drivers(host: ManagedGuest) -> None:
    host.guest(f"{APT} install /root/*.deb", timeout_s=APT_WITHIN_S)
    host.want(_POLICY, **_WANTED)
    host.apply()
    host.configure_engines()
    host.assert_serves(DUO_REFUSED)
    assert host.is_loaded("lab")
    host.only_show(
        "provision status --check",
        why="v4l2loopback is Debian's driver; duo and lab are made up for this test.",
    )


def test_modules_for_a_new_kernel_are_built_before_the_reboot(host: ManagedGuest) -> None:
    before = host.artifact(SMALL_DRIVER)
    package = f"/root/linux-image-{NEW_KERNEL}.deb"
    host.guest.put(kernel_package(NEW_KERNEL), package)
    with host.kernel_service_runs():
        host.show(f"{APT} install {package}", timeout_s=APT_WITHIN_S, lines=0)
    # What boots next has all of them: the kernel that is held.
    drivers = host.statuses(check=ExitCode.DONE)
    for driver in (SMALL_DRIVER, "lab"):
        slot = slots_of(drivers[driver])[NEW_KERNEL]
        assert (slot["role"], slot["state"]) == ("next", "ready"), host.journal("provision-kernel")
    # What runs is as it was.
    assert host.guest.kernel() == OLD_KERNEL
    assert host.artifact(SMALL_DRIVER) == before
    # What compiles and does not load is said before the reboot, too.
    status = drivers[DUO]
    assert (status["state"], status["is_ready"]) == ("next-kernel-not-ready", True)
    failure = slots_of(status)[NEW_KERNEL]["failure"]
    assert failure["reason"] == "does-not-load", failure
    assert _KERNEL_SAYS in failure["details"]
    assert _KERNEL_SAYS not in host.guest("dmesg").stdout
    host.only_show(
        "provision status --check", lines=24, why=f"Its hook built for {NEW_KERNEL}, and tried it."
    )
    assert _KERNEL_SAYS in host.journal("provision-kernel")
    # So this kernel does not boot by default.
    assert _default(host) == OLD_KERNEL, host.journal("provision-kernel")
    assert OLD_KERNEL in host.guest("cat /run/motd.d/provision").stdout
    metrics = host.guest(f"cat {METRICS}/provision.prom").stdout
    for kernel, role, ready in ((NEW_KERNEL, "next", 0.0), (OLD_KERNEL, "running", 1.0)):
        name = f'provision_driver_ready{{driver="{DUO}",kernel="{kernel}",role="{role}"}} '
        (value,) = (line for line in metrics.splitlines() if line.startswith(name))
        assert float(value.removeprefix(name)) == ready
    _put_gates(host)
    _assert_gates(host, open_=True)
    # The build is over, and nothing holds up a shutdown.
    assert "provision" not in host.guest("systemd-inhibit --list --no-pager").stdout


def test_nothing_that_asks_reboots_into_a_kernel_without_its_drivers(host: ManagedGuest) -> None:
    host.want("trial = true", **_WANTED)
    host.apply(status=ExitCode.FAILED)
    assert _default(host) is None
    _assert_gates(host, open_=False)
    boot = host.guest("cat /proc/sys/kernel/random/boot_id").stdout
    host.guest("systemctl start reboot-when-ready.service")
    assert host.guest("systemctl is-system-running", check=False).stdout.strip() != "stopping"
    assert host.guest("cat /proc/sys/kernel/random/boot_id").stdout == boot
    host.want(_POLICY, **_WANTED)
    host.apply(status=ExitCode.FAILED)
    assert _default(host) == OLD_KERNEL


def test_with_a_patch_it_heals(host: ManagedGuest, catalogue: Path) -> None:
    repair_duo(catalogue, refused_by=NEW_KERNEL)
    host.put_catalogue(catalogue)
    host.show(
        "provision apply", timeout_s=WITHIN_S, lines=2, why="A patch for duo is in its folder."
    )
    status = host.statuses(check=ExitCode.DONE)[DUO]
    assert {slot["state"] for slot in status["kernels"]} == {"ready"}
    assert _default(host) is None
    host.only_show("provision status --check")
    _assert_gates(host, open_=True)


def test_after_a_reboot_without_a_network_everything_is_loaded(host: ManagedGuest) -> None:
    host.guest.set_network(on=False)
    host.reboot("systemctl start reboot-when-ready.service")
    assert host.show("uname -r").stdout == f"{NEW_KERNEL}\n"
    log = host.boot_log()
    assert host.guest("systemctl show --value -p Result provision-boot").stdout == "success\n", log
    host.assert_serves(DUO_REFUSED)
    host.only_show("provision status --check")
    host.only_show(f"{ENGINES['podman']} {FLAG} {IMAGE} {OPEN}")
    assert host.is_loaded("lab"), log
    assert _CONFLICT_LOG not in host.guest("dmesg").stdout
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
    host.want(_POLICY, **{SMALL_DRIVER: "latest", DUO: "2.0", "lab": "latest"})
    host.apply()
    host.assert_serves("2.0")
    host.guest(f"provision rollback {DUO}")
    host.assert_serves(DUO_REFUSED)
    host.apply()
    assert host.duo() == f"module {DUO_REFUSED} library {DUO_REFUSED}"


def test_what_only_a_removed_kernel_needed_goes(host: ManagedGuest) -> None:
    gone = host.artifact(DUO, f"kernels/{OLD_KERNEL}")
    host.guest(f"{APT} purge linux-image-{OLD_KERNEL}", timeout_s=APT_WITHIN_S)
    host.wait_for_services()
    host.guest("provision gc")
    assert gone not in host.entries(DUO)
    assert host.guest(f"ls /var/lib/provision/{DUO}/kernels").stdout.split() == [NEW_KERNEL]
    host.guest(f"provision verify /var/lib/provision/{DUO}/current && provision status --check")
    host.assert_serves(DUO_REFUSED)
