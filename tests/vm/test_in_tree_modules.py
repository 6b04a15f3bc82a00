"""In-tree modules that have to make way for a driver: conflicting ones in use, and namesakes.

udev loads both at every boot, in the initramfs already: the SMBus controller's module, which the
driver conflicts with as nvidia does with nouveau, and that of the PC speaker, whose name the driver
uses as onload uses sfc's. The tests are steps of one scenario, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.guest import DEBIAN_12, guest_of
from kit.hosts import OLD_KERNEL
from kit.upstream import published
from vm.conftest import HOST
from vm.managed import ManagedGuest

pytestmark = [pytest.mark.nightly, pytest.mark.stages, pytest.mark.minutes(6)]

TWIN = "twin"
CONFLICT, NAMESAKE = "i2c_piix4", "pcspkr"
# What the in-tree modules write to the kernel's log when they find their hardware.
CONFLICT_LOG, NAMESAKE_LOG = "SMBus Host Controller at", "input: PC Speaker"
_REBOOT_REQUIRED = 4
_WITHIN_S = 900
_MODULE = """\
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>

static const struct file_operations operations = { .owner = THIS_MODULE };
static struct miscdevice device = {
    .minor = MISC_DYNAMIC_MINOR, .name = "twin", .fops = &operations, .mode = 0444,
};

module_misc_device(device);
MODULE_ALIAS("platform:pcspkr");
MODULE_LICENSE("GPL");
MODULE_VERSION("1.0");
"""
_SOURCE = {
    f"{NAMESAKE}.c": _MODULE,
    "Makefile": f"obj-m := {NAMESAKE}.o\nall:\n\t$(MAKE) -C $(KDIR) M=$(CURDIR) modules\n",
}
_BUILD = f"""\
command = ["make", "KDIR={{kernel_build}}"]
modules = ["{NAMESAKE}.ko"]

[host]
conflicts = ["{CONFLICT}"]

[container]
activation_flag = "OCI_TWIN"
driver_feature = ["twin"]
[container.features.twin]
devices = ["twin"]
"""
# The guest's initramfs has little; real ones have these modules.
_HOOK = f"""\
#!/bin/sh
[ "$1" = prereqs ] && exit 0
. /usr/share/initramfs-tools/hook-functions
manual_add_modules {CONFLICT} {NAMESAKE}
"""


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("twin")
    with published(folder, TWIN, {"1.0": _SOURCE}, _BUILD, HOST) as drivers:
        yield drivers


@pytest.fixture(scope="module")
def host(bookworm_product: Path, engine_address: str, catalogue: Path) -> Iterator[ManagedGuest]:
    """A guest that has booted with both in-tree modules, out of its initramfs."""
    with guest_of(DEBIAN_12) as guest:
        guest.install(bookworm_product)
        guest.write("/etc/initramfs-tools/hooks/twin", _HOOK)
        guest("chmod 755 /etc/initramfs-tools/hooks/twin && update-initramfs -u")
        guest.reboot()
        host = ManagedGuest(guest, engine_address)
        host.put_catalogue(catalogue)
        yield host


def _kernel_log(host: ManagedGuest) -> str:
    return host.guest("dmesg").stdout


def _has_own(host: ManagedGuest) -> bool:
    return host.guest("test -c /dev/twin", check=False).returncode == 0


def test_the_kernel_loads_its_own_at_a_boot(host: ManagedGuest) -> None:
    log = _kernel_log(host)
    assert CONFLICT_LOG in log
    assert NAMESAKE_LOG in log
    assert host.is_loaded(CONFLICT)
    assert host.is_loaded(NAMESAKE)


def test_the_first_apply_asks_for_a_reboot_because_one_is_held(host: ManagedGuest) -> None:
    guest = host.guest
    guest("modprobe i2c-dev; sleep 100000 </dev/i2c-0 >/dev/null 2>&1 &")
    host.want(**{TWIN: "1.0"})
    done = host.apply(status=_REBOOT_REQUIRED)
    assert host.status(TWIN)["state"] == "reboot-required", done.output
    assert host.is_loaded(CONFLICT)
    assert not _has_own(host)
    guest("provision units install")
    # The initramfs knows it before the reboot, and so does the next apply.
    text = guest(
        "unmkinitramfs /initrd.img /root/tree && cat /root/tree/etc/modprobe.d/provision-*"
    )
    assert f"blacklist {CONFLICT}\n" in text.stdout
    assert f"blacklist {NAMESAKE}\n" in text.stdout
    host.apply(status=_REBOOT_REQUIRED)


def test_after_the_reboot_the_host_is_ready(host: ManagedGuest) -> None:
    host.guest.set_network(on=False)
    host.guest.reboot()
    said = host.boot_log()
    assert _has_own(host), said
    assert host.is_loaded(NAMESAKE)
    assert not host.is_loaded(CONFLICT)
    # Neither was ever loaded.
    log = _kernel_log(host)
    assert CONFLICT_LOG not in log
    assert NAMESAKE_LOG not in log
    assert host.status(TWIN)["state"] == "ready"
    host.guest("provision status --check")


def test_a_kernel_that_the_store_has_nothing_for_gets_its_own_copy(host: ManagedGuest) -> None:
    guest = host.guest
    link = f"/var/lib/provision/{TWIN}/kernels/{OLD_KERNEL}"
    guest(f"systemctl disable provision-apply.timer provision-kernel.path; mv {link} /root/link")
    guest.reboot()
    said = host.boot_log()
    assert host.is_loaded(NAMESAKE), said
    assert NAMESAKE_LOG in _kernel_log(host)
    assert not _has_own(host)
    assert not host.is_loaded(CONFLICT)
    guest(f"mv /root/link {link}")


def test_without_the_driver_all_of_that_is_taken_back(host: ManagedGuest) -> None:
    guest = host.guest
    guest.set_network(on=True)
    host.want()
    guest("provision apply --json", check=False, timeout_s=_WITHIN_S)
    guest("test ! -e /etc/modprobe.d/provision-twin.conf")
    guest("rm -rf /root/tree && unmkinitramfs /initrd.img /root/tree")
    guest("test ! -e /root/tree/etc/modprobe.d/provision-twin.conf")
    guest.reboot()
    log = _kernel_log(host)
    assert CONFLICT_LOG in log
    assert NAMESAKE_LOG in log
