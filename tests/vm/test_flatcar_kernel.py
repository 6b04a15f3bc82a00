"""A host in Flatcar's layout that runs a kernel of its own, and is updated to the next.

The kernels are compiled here from source, with a configuration of ours. Modules for the next slot's
kernel are built in the tree that this slot brings, before the reboot, and load after it. The tests
are steps of one scenario, in their order.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kit.cache import REPOSITORY
from kit.duo import DUO
from kit.guest import DEBIAN_12, guest_of
from kit.immutable import read_only_usr, updater
from kit.kernel_tree import built_kernels, make_compiler_image
from kit.process import run
from vm.keeping import Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.engine import Engine
    from kit.guest import Guest
    from kit.kernel_tree import BuiltKernel

pytestmark = pytest.mark.nightly

_DATA = REPOSITORY / "tests/data"
_VERSION = "3227.2.4"
_IMAGE = """
[distros.flatcar.base_images]
"{version}" = "{image}"
"""
_MENU = """\
set default=0
set timeout=0
linux /boot/flatcar/vmlinuz-{slot} root=/dev/vda1 ro console=ttyS0 net.ifnames=0 mitigations=off
boot
"""
_READ_ONLY = "/etc/systemd/system/read-only.service"


@pytest.fixture(scope="module")
def kernels() -> tuple[BuiltKernel, BuiltKernel]:
    return built_kernels()


@pytest.fixture(scope="module")
def keeper(
    bookworm_product: Path,
    engine: Engine,
    engine_address: str,
    duo_drivers: Path,
    kernels: tuple[BuiltKernel, BuiltKernel],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Keeper]:
    """A guest in the layout of Flatcar that runs the older kernel."""
    image = make_compiler_image(engine)
    folder = tmp_path_factory.mktemp("flatcar")
    with guest_of(DEBIAN_12) as guest:
        guest("rm -r /etc/apt /var/lib/apt /usr/bin/apt-get")
        guest.install(bookworm_product)
        guest.put(_DATA / "os-release/flatcar_3227.2.4", "/usr/lib/os-release")
        guest.write("/usr/bin/update_engine_client", updater("-status", "/var/lib/updater"))
        guest("chmod +x /usr/bin/update_engine_client && mkdir /boot/flatcar")
        guest.put(_DATA / "updaters/update-engine_downloading.txt", "/var/lib/updater")
        _switch(guest, kernels[0], "a", folder, tree=True)
        guest.write(_READ_ONLY, read_only_usr())
        guest("systemctl enable read-only.service")
        guest("rm -r /boot/vmlinuz* /boot/initrd* /usr/lib/modules/*-amd64")
        keeper = Keeper(guest, engine_address)
        keeper.want(**{DUO: "1.0"})
        guest(
            "cat >>/etc/provision/provision.toml",
            stdin=_IMAGE.format(version=_VERSION, image=image),
        )
        keeper.put_catalogue(duo_drivers)
        guest.reboot()
        # What starts the agent in this scenario are boots.
        guest("provision units && systemctl stop provision-apply.timer provision-kernel.path")
        yield keeper


def _switch(guest: Guest, kernel: BuiltKernel, slot: str, folder: Path, *, tree: bool) -> None:
    """Have a slot's kernel boot next, with its modules in /usr."""
    packed = folder / f"{slot}.tar.gz"
    left_out = [] if tree else ["--exclude=./build"]
    run(["tar", "-czf", packed, "-C", kernel.modules, *left_out, "."])
    guest.put(packed, "/root/modules.tar.gz")
    target = f"/usr/lib/modules/{kernel.release}"
    guest(f"mkdir -p {target} && tar -C {target} -xf /root/modules.tar.gz")
    guest("rm /root/modules.tar.gz")
    guest.put(kernel.folder / "vmlinuz", f"/boot/flatcar/vmlinuz-{slot}")
    guest.write("/boot/grub/grub.cfg", _MENU.format(slot=slot))


def _other_usr(kernel: BuiltKernel, folder: Path) -> Path:
    """A disk that holds the /usr of the other slot, with the next kernel's tree."""
    usr, disk, image = folder / "usr", folder / "usr.raw", folder / "usr.qcow2"
    modules = usr / "lib/modules" / kernel.release
    modules.parent.mkdir(parents=True)
    run(["cp", "-a", kernel.modules, modules])
    run(["/sbin/mke2fs", "-q", "-t", "ext4", "-d", usr, disk, "400M"])
    run(["qemu-img", "convert", "-O", "qcow2", disk, image])
    disk.unlink()
    return image


def test_the_host_runs_its_own_kernel(
    keeper: Keeper, kernels: tuple[BuiltKernel, BuiltKernel]
) -> None:
    assert keeper.guest.kernel() == kernels[0].release
    facts = json.loads(keeper.guest("provision facts --json").stdout)
    assert (facts["distro"]["id"], facts["immutable"]) == ("flatcar", "flatcar")
    assert "Read-only" in keeper.guest("touch /usr/x", check=False).stderr


def test_modules_are_built_in_the_tree_of_the_running_slot(
    keeper: Keeper, kernels: tuple[BuiltKernel, BuiltKernel]
) -> None:
    keeper.apply()
    assert keeper.slots(DUO)[kernels[0].release]["state"] == "ready"
    assert keeper.guest("cat /dev/duo").stdout == "1.0\n"


def test_the_next_slots_kernel_is_prepared_before_the_reboot(
    keeper: Keeper,
    kernels: tuple[BuiltKernel, BuiltKernel],
    tmp_path: Path,
) -> None:
    guest, release = keeper.guest, kernels[1].release
    guest.machine.attach(_other_usr(kernels[1], tmp_path))
    # This kernel does not notice devices that are plugged in; the next machine starts without it.
    guest("echo 1 >/sys/bus/pci/rescan; udevadm settle; test -b /dev/vdb")
    # What udev makes of a partition's name: this disk has no partitions.
    names = "/dev/disk/by-partlabel"
    guest(f"mkdir -p {names} && ln -s ../../vdb {names}/USR-B")
    guest.put(kernels[1].folder / "vmlinuz", "/boot/flatcar/vmlinuz-b")
    guest.put(_DATA / "updaters/update-engine_need-reboot.txt", "/var/lib/updater")
    keeper.apply()
    slot = keeper.slots(DUO)[release]
    assert (slot["role"], slot["state"]) == ("next", "ready")
    assert guest(f"ls /usr/lib/modules/{release}", check=False).returncode != 0
    assert "USR-B" not in guest("cat /proc/mounts").stdout
    assert "provision-usr-" not in guest("cat /proc/mounts; ls /tmp").stdout


def test_they_load_after_the_reboot_without_a_network(
    keeper: Keeper, kernels: tuple[BuiltKernel, BuiltKernel], tmp_path: Path
) -> None:
    guest = keeper.guest
    # What the switch of slots does to /usr.
    guest("mount -o remount,bind,rw /usr")
    _switch(guest, kernels[1], "b", tmp_path, tree=False)
    guest(f"rm -r /usr/lib/modules/{kernels[0].release}")
    guest.put(_DATA / "updaters/update-engine_downloading.txt", "/var/lib/updater")
    guest.set_network(on=False)
    guest.reboot()
    assert guest.kernel() == kernels[1].release
    log = keeper.boot_log()
    assert guest("cat /dev/duo", check=False).stdout == "1.0\n", log
    assert keeper.slots(DUO)[kernels[1].release]["state"] == "ready"
