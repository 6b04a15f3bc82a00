"""What is exported for hosts that have nothing else of ours: a Module of KMM, a system extension.

KMM's own commands are replayed with a real kernel. Its worker runs modprobe where it sees what its
pod mounts: the shared folder as /tmp, and the host's /lib/modules, for what is only unloaded.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.demanding_driver import lab_catalogue
from kit.engine import Engine
from kit.guest import DEBIAN_12, Guest, guest_of
from kit.hosts import OLD_KERNEL, SMALL_DRIVER
from kit.kmm import PULL, SHARED, Node, kmm_node
from kit.probe import need_programs
from kit.product import BUILD_NETWORK, Provision

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(5)]

_SHARED = "/root/shared"
_EXTENSION = f"provision-{SMALL_DRIVER}"
_PLACE = f"/var/lib/extensions/{_EXTENSION}.raw"


@pytest.fixture(scope="module")
def node() -> Iterator[Guest]:
    """A guest that has an engine and nothing of ours."""
    with guest_of(DEBIAN_12) as guest:
        yield guest


@pytest.fixture(scope="module")
def lab_image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The made-up driver, with firmware and with what is to be unloaded for it."""
    with lab_catalogue(tmp_path_factory.mktemp("lab")) as catalogue:
        target = ("lab", "--kernel", OLD_KERNEL, "--distro", "debian:12", "--catalogue", catalogue)
        image: str = Provision(engine.host).build(*target, *BUILD_NETWORK)["image"]
        return image


def _exported(engine: Engine, driver: str, image: str) -> dict[str, Any]:
    words = ("export", "kmm", driver, "--image", image, "--registry", "registry.example/drivers")
    (module,) = Provision(engine.host).json(*words)["documents"]
    found: dict[str, Any] = module
    return found


def _give(guest: Guest, engine: Engine, image: str, name: str, folder: Path) -> None:
    """Have the guest's engine hold an image, by the name that its nodes pull."""
    archive = folder / "image.tar"
    engine.docker("save", "--output", archive, image)
    guest.put(archive, "/root/image.tar")
    archive.unlink()
    guest(f"docker load --quiet --input /root/image.tar && docker tag {image} {name}")


def _prepare(guest: Guest, node: Node) -> None:
    """The pull pod and the init container."""
    run = "docker run --rm --network none"
    guest(f"{run} {node.image} {shlex.join(PULL)}")
    guest(f"rm -rf {_SHARED} && mkdir {_SHARED}")
    guest(f"{run} -v {_SHARED}:/tmp {node.image} /bin/sh -c {shlex.quote(node.init)}")


def _worker(guest: Guest, node: Node, words: tuple[str, ...]) -> str:
    """Run modprobe as the worker's container does."""
    guest.write("/root/softdep.conf", node.softdep)
    script = (
        f"mount --bind {_SHARED} /tmp && mount -o remount,bind,ro /tmp && mount -t tmpfs none"
        " /etc/modprobe.d && cp /root/softdep.conf /etc/modprobe.d/ && exec modprobe "
        + shlex.join(words)
    )
    return guest(f"unshare --mount sh -c {shlex.quote(script)} 2>&1").stdout


def _loaded(guest: Guest) -> set[str]:
    return set(guest("cut -d' ' -f1 /proc/modules").stdout.split())


def test_a_module_that_needs_the_kernels_own(
    node: Guest, engine: Engine, first_small_build: dict[str, Any], tmp_path: Path
) -> None:
    image = first_small_build["image"]
    steps = kmm_node(_exported(engine, SMALL_DRIVER, image), OLD_KERNEL)
    _give(node, engine, image, steps.image, tmp_path)
    _prepare(node, steps)
    assert "videodev" not in _loaded(node)
    said = _worker(node, steps, steps.load)
    assert "v4l2loopback_needs.ko" in said
    assert {"v4l2loopback", "videodev", "v4l2loopback_needs"} <= _loaded(node)
    node("test -c /dev/video0")
    _worker(node, steps, steps.unload)
    assert not {"v4l2loopback", "v4l2loopback_needs"} & _loaded(node)


def test_firmware_and_modules_that_are_in_the_way(
    node: Guest, engine: Engine, lab_image: str, tmp_path: Path
) -> None:
    steps = kmm_node(_exported(engine, "lab", lab_image), OLD_KERNEL)
    assert steps.remove == ("dummy", "loop")
    _give(node, engine, lab_image, steps.image, tmp_path)
    _prepare(node, steps)
    node("modprobe dummy numdummies=0")
    _worker(node, steps, ("-rv", *steps.remove))
    assert "dummy" not in _loaded(node)
    # The worker's own copy, in place of Go's.
    assert steps.firmware is not None
    node(f"cp -R {steps.firmware.replace(SHARED, _SHARED, 1)}/. /lib/firmware/")
    _worker(node, steps, steps.load)
    assert "lab: firmware has 8 bytes" in node("dmesg").stdout
    _worker(node, steps, steps.unload)
    assert "lab" not in _loaded(node)
    # Its device node went with it, and what mounts an image looks for that.
    node("modprobe loop")


def test_a_system_extension_is_merged_and_loaded(
    node: Guest, engine: Engine, first_small_build: dict[str, Any], tmp_path: Path
) -> None:
    need_programs("mksquashfs")
    target = ("export", "sysext", SMALL_DRIVER, "--image", first_small_build["image"])
    provision = Provision(engine.host)
    made = provision.json(*target, "--output", tmp_path / "out")
    again = provision.json(*target, "--output", tmp_path / "again")
    assert (made["sha256"], made["kernels"]) == (again["sha256"], [OLD_KERNEL])
    node("mkdir -p /var/lib/extensions")
    node.put(tmp_path / "out" / f"{_EXTENSION}.raw", _PLACE)
    node("systemd-sysext refresh && systemctl daemon-reload")
    assert _EXTENSION in node("systemd-sysext status").stdout
    node(f"systemctl start {_EXTENSION}.service")
    assert "v4l2loopback " in node("cat /proc/modules").stdout
    node("test -c /dev/video0")
    assert (
        SMALL_DRIVER in node(f"cat /etc/oci-decorator/oci-decorator.d/{SMALL_DRIVER}.json").stdout
    )
    node(f"systemctl stop {_EXTENSION}.service")
    node("test ! -e /sys/module/v4l2loopback")
    node(f"test ! -e /etc/oci-decorator/oci-decorator.d/{SMALL_DRIVER}.json")
    # The unit asks for the kernel: another one's modules are left alone.
    kernels = f"/usr/lib/provision/{SMALL_DRIVER}/kernels"
    assert node(f"ls {kernels}").stdout.strip() == OLD_KERNEL
    node(f"systemd-sysext unmerge && test ! -e {kernels} && rm {_PLACE}")
