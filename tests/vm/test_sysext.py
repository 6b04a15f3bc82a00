"""A system extension with a driver, on a host that has nothing else of ours: merged, and loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.guest import DEBIAN_12, guest_of
from kit.hosts import OLD_KERNEL, SMALL_DRIVER
from kit.probe import need_programs
from kit.product import Provision

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.engine import Engine
    from kit.guest import Guest

pytestmark = [pytest.mark.xdist_group("bare guest"), pytest.mark.minutes(2)]

_NAME = f"provision-{SMALL_DRIVER}"
_PLACE = f"/var/lib/extensions/{_NAME}.raw"


@pytest.fixture(scope="module")
def host() -> Iterator[Guest]:
    need_programs("mksquashfs")
    with guest_of(DEBIAN_12) as guest:
        guest("mkdir -p /var/lib/extensions")
        yield guest


def _export(engine: Engine, image: str, output: Path, *words: str | Path) -> dict[str, Any]:
    target = ("export", "sysext", SMALL_DRIVER, "--image", image, "--output", output)
    found: dict[str, Any] = Provision(engine.host).json(*target, *words)
    return found


def _merge(guest: Guest) -> None:
    guest("systemd-sysext refresh && systemctl daemon-reload")


def test_merged_and_loaded(
    host: Guest, engine: Engine, first_small_build: dict[str, Any], tmp_path: Path
) -> None:
    made = _export(engine, first_small_build["image"], tmp_path / "out")
    again = _export(engine, first_small_build["image"], tmp_path / "again")
    assert (made["sha256"], made["kernels"]) == (again["sha256"], [OLD_KERNEL])
    host.put(tmp_path / "out" / f"{_NAME}.raw", _PLACE)
    _merge(host)
    assert _NAME in host("systemd-sysext status").stdout
    host(f"systemctl start {_NAME}.service")
    assert "v4l2loopback " in host("cat /proc/modules").stdout
    host("test -c /dev/video0")
    assert (
        SMALL_DRIVER in host(f"cat /etc/oci-decorator/oci-decorator.d/{SMALL_DRIVER}.json").stdout
    )
    host(f"systemctl stop {_NAME}.service")
    host("test ! -e /sys/module/v4l2loopback")
    host(f"test ! -e /etc/oci-decorator/oci-decorator.d/{SMALL_DRIVER}.json")
    # The unit asks for the kernel: another one's modules are left alone.
    kernels = f"/usr/lib/provision/{SMALL_DRIVER}/kernels"
    assert host(f"ls {kernels}").stdout.strip() == OLD_KERNEL
    host(f"systemd-sysext unmerge && test ! -e {kernels} && rm {_PLACE}")
