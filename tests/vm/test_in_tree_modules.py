"""In-tree modules that have to make way for a driver: held ones, and copies of its own modules.

udev loads both at every boot, in the initramfs already: the SMBus controller's module, which the
driver conflicts with as nvidia does with nouveau, and that of the PC speaker, whose name the driver
uses as onload uses sfc's. The tests are steps of one scenario, in their order.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from kit.fileserver import served
from kit.guest import DEBIAN_12, guest_of
from kit.hosts import OLD_KERNEL
from kit.tarball import write_tarball
from vm.conftest import HOST
from vm.keeping import Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(6)]

TWIN = "twin"
HELD, SAME = "i2c_piix4", "pcspkr"
# What the in-tree modules write to the kernel's log when they find their hardware.
HELD_LOG, SAME_LOG = "SMBus Host Controller at", "input: PC Speaker"
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
    f"{SAME}.c": _MODULE,
    "Makefile": f"obj-m := {SAME}.o\nall:\n\t$(MAKE) -C $(KDIR) M=$(CURDIR) modules\n",
}
_RECIPE = f"""\
schema = 1
name = "{TWIN}"
summary = "A driver that exists only in tests"
vendor = "Example"
homepage = "https://example.org"

[source]
kind = "archive"
[[source.releases]]
version = "1.0"
url = "{{url}}"
sha256 = "{{sha256}}"

[[kernels]]
kernels = ">=6.1"

[flavours.only]
licences = ["GPL-2.0-only"]
[flavours.only.build]
command = ["make", "KDIR={{{{kernel_build}}}}"]
modules = ["{SAME}.ko"]

[host]
conflicts = ["{HELD}"]

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
manual_add_modules {HELD} {SAME}
"""


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("twin")
    tarball = write_tarball(folder / "files", f"{TWIN}-1.0", _SOURCE)
    recipe = folder / f"drivers/{TWIN}/driver.toml"
    recipe.parent.mkdir(parents=True)
    sha256 = hashlib.sha256(tarball.read_bytes()).hexdigest()
    with served(tarball.parent) as url:
        address = f"{url.replace('127.0.0.1', HOST)}/{tarball.name}"
        recipe.write_text(_RECIPE.format(url=address, sha256=sha256))
        yield recipe.parents[1]


@pytest.fixture(scope="module")
def keeper(bookworm_product: Path, engine_address: str, catalogue: Path) -> Iterator[Keeper]:
    """A guest that has booted with both in-tree modules, out of its initramfs."""
    with guest_of(DEBIAN_12) as guest:
        guest.install(bookworm_product)
        guest.write("/etc/initramfs-tools/hooks/twin", _HOOK)
        guest("chmod 755 /etc/initramfs-tools/hooks/twin && update-initramfs -u")
        guest.reboot()
        keeper = Keeper(guest, engine_address)
        keeper.put_catalogue(catalogue)
        yield keeper


def _kernel_log(keeper: Keeper) -> str:
    return keeper.guest("dmesg").stdout


def _has_own(keeper: Keeper) -> bool:
    return keeper.guest("test -c /dev/twin", check=False).returncode == 0


def test_the_kernel_loads_its_own_at_a_boot(keeper: Keeper) -> None:
    log = _kernel_log(keeper)
    assert HELD_LOG in log
    assert SAME_LOG in log
    assert keeper.is_loaded(HELD)
    assert keeper.is_loaded(SAME)


def test_the_first_apply_asks_for_a_reboot_because_one_is_held(keeper: Keeper) -> None:
    guest = keeper.guest
    guest("modprobe i2c-dev; sleep 100000 </dev/i2c-0 >/dev/null 2>&1 &")
    keeper.want(**{TWIN: "1.0"})
    done = keeper.apply(status=_REBOOT_REQUIRED)
    assert keeper.status(TWIN)["state"] == "reboot-required", done.output
    assert keeper.is_loaded(HELD)
    assert not _has_own(keeper)
    guest("provision units")
    # The initramfs knows it before the reboot, and so does the next apply.
    text = guest(
        "unmkinitramfs /initrd.img /root/tree && cat /root/tree/etc/modprobe.d/provision-*"
    )
    assert f"blacklist {HELD}\n" in text.stdout
    assert f"blacklist {SAME}\n" in text.stdout
    keeper.apply(status=_REBOOT_REQUIRED)


def test_after_the_reboot_the_host_is_ready(keeper: Keeper) -> None:
    keeper.guest.set_network(on=False)
    keeper.guest.reboot()
    said = keeper.boot_log()
    assert _has_own(keeper), said
    assert keeper.is_loaded(SAME)
    assert not keeper.is_loaded(HELD)
    # Neither was ever loaded.
    log = _kernel_log(keeper)
    assert HELD_LOG not in log
    assert SAME_LOG not in log
    assert keeper.status(TWIN)["state"] == "ready"
    keeper.guest("provision status --check")


def test_a_kernel_that_the_store_has_nothing_for_gets_its_own_copy(keeper: Keeper) -> None:
    guest = keeper.guest
    link = f"/var/lib/provision/{TWIN}/kernels/{OLD_KERNEL}"
    guest(f"systemctl disable provision-apply.timer provision-kernel.path; mv {link} /root/link")
    guest.reboot()
    said = keeper.boot_log()
    assert keeper.is_loaded(SAME), said
    assert SAME_LOG in _kernel_log(keeper)
    assert not _has_own(keeper)
    assert not keeper.is_loaded(HELD)
    guest(f"mv /root/link {link}")


def test_without_the_driver_all_of_that_is_taken_back(keeper: Keeper) -> None:
    guest = keeper.guest
    guest.set_network(on=True)
    keeper.want()
    guest("provision apply --json", check=False, timeout_s=_WITHIN_S)
    guest("test ! -e /etc/modprobe.d/provision-twin.conf")
    guest("rm -rf /root/tree && unmkinitramfs /initrd.img /root/tree")
    guest("test ! -e /root/tree/etc/modprobe.d/provision-twin.conf")
    guest.reboot()
    log = _kernel_log(keeper)
    assert HELD_LOG in log
    assert SAME_LOG in log
