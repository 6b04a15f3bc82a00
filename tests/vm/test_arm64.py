"""A host of arm64: packages, a driver, containers, a kernel upgrade, a reboot.

What it installs is cross-compiled, and its modules are built on this machine by an emulator.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest

from kit.arm64 import run_foreign_programs
from kit.engine import Engine
from kit.guest import DEBIAN_12_ARM64, IMAGE, guest_of
from kit.guest.kernel_package import kernel_package
from kit.hosts import NEW_KERNEL, SMALL_DRIVER
from kit.probe import need, need_programs
from kit.product import base_archive
from kit.released import make_debian_packages
from kit.toolchains import load_toolchains
from vm.managed import APT, APT_WITHIN_S, OPEN, ManagedGuest, put_packages

pytestmark = [pytest.mark.nightly, pytest.mark.stages, pytest.mark.minutes(18)]

MACHINE = DEBIAN_12_ARM64.machine
NEXT_KERNEL = NEW_KERNEL.replace("amd64", "arm64")
_FLAG = "-e OCI_V4L2LOOPBACK=all"
_STARTS = (
    "docker run --rm --network none --runtime oci-decorator",
    "podman --runtime oci-decorator run --rm --network none",
)
_CONFIG = f"""\
[engine]
host = "{{engine}}"
network = "host"
[distros.debian]
base_images = {{{{ "12" = "arm64v8/debian:bookworm" }}}}
[drivers.{SMALL_DRIVER}]
version = "latest"
"""


@pytest.fixture(scope="module")
def host(
    engine: Engine, engine_address: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ManagedGuest]:
    """A Debian of arm64 with engines, and the release's packages in /root."""
    need(platform.machine() != MACHINE, "a machine that is no arm64", "run the other tests here")
    need_programs("qemu-system-aarch64")
    run_foreign_programs()
    packages = make_debian_packages(tmp_path_factory.mktemp("packages"), machine=MACHINE)
    engine.docker("load", "--quiet", "--input", base_archive(engine, "debian:12", machine=MACHINE))
    load_toolchains(engine, MACHINE)
    with guest_of(DEBIAN_12_ARM64) as guest:
        guest("rm /etc/docker/daemon.json /etc/containers/containers.conf.d/kit.conf")
        put_packages(guest, packages, DEBIAN_12_ARM64)
        yield ManagedGuest(guest, engine_address)


def _assert_serves(host: ManagedGuest) -> None:
    for start in _STARTS:
        assert host.guest(f"{start} {_FLAG} {IMAGE} {OPEN}").stdout == "opened\n"
        done = host.guest(f"{start} {IMAGE} {OPEN}", check=False)
        assert done.returncode != 0


def test_packages_are_installed(host: ManagedGuest) -> None:
    assert host.guest("uname -m").stdout == f"{MACHINE}\n"
    host.guest(f"{APT} install /root/*.deb", timeout_s=APT_WITHIN_S)
    host.guest("oci-decorator configure docker && oci-decorator configure podman")
    host.guest("systemctl try-reload-or-restart docker")


def test_what_is_configured_is_built_and_loaded(host: ManagedGuest) -> None:
    host.guest.write("/etc/provision/provision.toml", _CONFIG.format(engine=host.engine))
    host.apply()
    assert host.status(SMALL_DRIVER)["state"] == "ready"
    assert host.is_loaded("v4l2loopback")
    _assert_serves(host)


def test_modules_for_a_new_kernel_are_built_before_the_reboot(host: ManagedGuest) -> None:
    host.guest.put(kernel_package(NEXT_KERNEL), "/root/kernel.deb")
    with host.kernel_service_runs():
        host.guest(f"{APT} install /root/kernel.deb", timeout_s=APT_WITHIN_S)
    slot = host.slots(SMALL_DRIVER)[NEXT_KERNEL]
    assert (slot["role"], slot["state"]) == ("next", "ready"), host.journal("provision-kernel")


def test_after_a_reboot_everything_is_loaded(host: ManagedGuest) -> None:
    host.guest.reboot(within_s=900)
    assert host.guest.kernel() == NEXT_KERNEL
    assert host.is_loaded("v4l2loopback"), host.boot_log()
    _assert_serves(host)
