"""A host in Flatcar's layout that runs a kernel of its own, and is updated to the next.

The kernels are compiled here from source, with a configuration of ours. Modules for the next slot's
kernel are built in the tree that this slot brings, before the reboot, and load after it; one of two
drivers does not build for it at first. The tests are steps of one scenario, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kit.cache import REPOSITORY
from kit.engine import Engine
from kit.guest import DEBIAN_12, Guest, guest_of
from kit.immutable import read_only_usr, recorded_updater
from kit.kernel_tree import BuiltKernel, built_kernels, make_compiler_image
from kit.made_up import MADE_UP
from kit.process import run
from kit.two_part_driver import DUO
from vm import next_kernel
from vm.conftest import HOST
from vm.managed import ManagedGuest

pytestmark = [pytest.mark.nightly, pytest.mark.stages, pytest.mark.minutes(8)]

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
# An agent in a pod has the host's root in a folder of its own root.
_IN_A_FOLDER = "mount --rbind / /mnt && exec provision apply --timer --root /mnt"
_READ_ONLY = "/etc/systemd/system/read-only.service"


@pytest.fixture(scope="module")
def kernels() -> tuple[BuiltKernel, BuiltKernel]:
    return built_kernels()


def _number(kernel: BuiltKernel) -> str:
    return kernel.release.partition("-")[0]


@pytest.fixture(scope="module")
def drivers(
    kernels: tuple[BuiltKernel, BuiltKernel], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A catalogue of two drivers, for the scenario to repair the one that is broken."""
    folder = tmp_path_factory.mktemp("flatcar-drivers")
    with next_kernel.next_kernel_catalogue(
        folder, since=_number(kernels[1]), host=HOST
    ) as catalogue:
        yield catalogue


@pytest.fixture(scope="module")
def image(engine: Engine) -> str:
    """What stands for Flatcar's developer container."""
    return make_compiler_image(engine)


@pytest.fixture(scope="module")
def host(
    bookworm_product: Path,
    image: str,
    engine_address: str,
    drivers: Path,
    kernels: tuple[BuiltKernel, BuiltKernel],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ManagedGuest]:
    """A guest in the layout of Flatcar that runs the older kernel."""
    folder = tmp_path_factory.mktemp("flatcar")
    with guest_of(DEBIAN_12) as guest:
        guest("rm -r /etc/apt /var/lib/apt /usr/bin/apt-get")
        guest.install(bookworm_product)
        guest.put(_DATA / "os-release/flatcar_3227.2.4", "/usr/lib/os-release")
        guest.write(
            "/usr/bin/update_engine_client", recorded_updater("-status", "/var/lib/updater")
        )
        guest("chmod +x /usr/bin/update_engine_client && mkdir /boot/flatcar")
        guest.put(_DATA / "updaters/update-engine_downloading.txt", "/var/lib/updater")
        _switch(guest, kernels[0], "a", folder)
        guest.write(_READ_ONLY, read_only_usr())
        guest("systemctl enable read-only.service")
        guest("rm -r /boot/vmlinuz* /boot/initrd* /usr/lib/modules/*-amd64")
        host = ManagedGuest(guest, engine_address)
        _want(host, image, **next_kernel.WANTED)
        host.put_catalogue(drivers)
        guest.reboot()
        # What starts the agent in this scenario are boots.
        guest(
            "provision units install && systemctl stop provision-apply.timer provision-kernel.path"
        )
        yield host


def _want(host: ManagedGuest, image: str, **versions: str) -> None:
    """Write provision.toml, with the image that compiles for this version of Flatcar."""
    host.want(**versions)
    settings = _IMAGE.format(version=_VERSION, image=image)
    host.guest("cat >>/etc/provision/provision.toml", stdin=settings)


def _switch(guest: Guest, kernel: BuiltKernel, slot: str, folder: Path) -> None:
    """Have a slot's kernel boot next, with its modules and its tree in /usr."""
    packed = folder / f"{slot}.tar.gz"
    run(["tar", "-czf", packed, "-C", kernel.modules, "."])
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
    host: ManagedGuest, kernels: tuple[BuiltKernel, BuiltKernel]
) -> None:
    assert host.guest.kernel() == kernels[0].release
    facts = json.loads(host.guest("provision facts --json").stdout)
    assert (facts["distro"]["id"], facts["immutable"]) == ("flatcar", "flatcar")
    assert "Read-only" in host.guest("touch /usr/x", check=False).stderr


def test_modules_are_built_in_the_tree_of_the_running_slot(
    host: ManagedGuest, kernels: tuple[BuiltKernel, BuiltKernel]
) -> None:
    host.apply()
    assert host.slots(DUO)[kernels[0].release]["state"] == "ready"
    assert host.duo() == next_kernel.LOADED
    assert host.is_loaded(MADE_UP)


def test_an_agent_in_a_pod_loads_them_too(host: ManagedGuest) -> None:
    guest = host.guest
    guest(f"provision unload {DUO}")
    assert not host.is_loaded(DUO)
    done = guest(f"unshare --mount sh -c '{_IN_A_FOLDER}'", check=False)
    assert done.returncode == 0, done.output
    assert host.is_loaded(DUO), done.output
    assert host.duo() == next_kernel.LOADED


def test_the_next_slots_kernel_is_prepared_and_a_failure_said_before_the_reboot(
    host: ManagedGuest,
    kernels: tuple[BuiltKernel, BuiltKernel],
    tmp_path: Path,
) -> None:
    guest, release = host.guest, kernels[1].release
    guest.machine.attach(_other_usr(kernels[1], tmp_path))
    # This kernel does not notice devices that are plugged in; the next machine starts without it.
    guest("echo 1 >/sys/bus/pci/rescan; udevadm settle; test -b /dev/vdb")
    # What udev makes of a partition's name: this disk has no partitions.
    names = "/dev/disk/by-partlabel"
    guest(f"mkdir -p {names} && ln -s ../../vdb {names}/USR-B")
    guest.put(kernels[1].folder / "vmlinuz", "/boot/flatcar/vmlinuz-b")
    guest.put(_DATA / "updaters/update-engine_need-reboot.txt", "/var/lib/updater")
    host.apply(status=1)
    next_kernel.check_failure_is_said(host, running=kernels[0].release, coming=release)
    assert guest(f"ls /usr/lib/modules/{release}", check=False).returncode != 0
    assert "USR-B" not in guest("cat /proc/mounts").stdout
    assert "provision-usr-" not in guest("cat /proc/mounts; ls /tmp").stdout


def test_with_a_patch_it_heals(
    host: ManagedGuest, drivers: Path, kernels: tuple[BuiltKernel, BuiltKernel]
) -> None:
    next_kernel.heal(host, drivers, since=_number(kernels[1]))
    assert host.slots(DUO)[kernels[1].release]["role"] == "next"


def test_they_load_after_the_reboot_without_a_network(
    host: ManagedGuest, kernels: tuple[BuiltKernel, BuiltKernel], tmp_path: Path
) -> None:
    guest = host.guest
    # What the switch of slots does to /usr.
    guest("mount -o remount,bind,rw /usr")
    _switch(guest, kernels[1], "b", tmp_path)
    guest(f"rm -r /usr/lib/modules/{kernels[0].release}")
    guest.put(_DATA / "updaters/update-engine_downloading.txt", "/var/lib/updater")
    guest.set_network(on=False)
    guest.reboot()
    assert guest.kernel() == kernels[1].release
    log = host.boot_log()
    assert host.duo() == next_kernel.LOADED, log
    assert host.is_loaded(MADE_UP), log
    assert host.slots(DUO)[kernels[1].release]["state"] == "ready"
    # The slot before can be booted again, and its kernel finds its modules.
    guest("provision gc")
    next_kernel.check_way_back(host, kernels[0].release)


def test_rollback_of_a_driver_brings_module_and_library_back(
    host: ManagedGuest, image: str
) -> None:
    host.guest.set_network(on=True)
    next_kernel.check_rollback(host, partial(_want, host, image))


def test_what_only_an_overwritten_slots_kernel_needed_goes(
    host: ManagedGuest, kernels: tuple[BuiltKernel, BuiltKernel]
) -> None:
    gone = host.artifact(MADE_UP, f"kernels/{kernels[0].release}")
    # A later update, which has the kernel that runs, is written over the slot before.
    host.guest.put(kernels[1].folder / "vmlinuz", "/boot/flatcar/vmlinuz-a")
    next_kernel.check_only_needed_stays(host, kernels[1].release)
    assert gone not in host.entries(MADE_UP)
