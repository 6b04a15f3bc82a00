"""The whole path with a small real driver: resolve, build, verify, install, run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kit.engine import Engine
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER, Containers, Host
from kit.product import Provision
from kit.standins import ALLOWED, DENIED, OPEN_NODES, make_nodes

pytestmark = pytest.mark.tier(1)

_FLAG, _NODE = "OCI_V4L2LOOPBACK", "video0"
# A line for what a container has of the driver, and one for an attempt to open its device.
_USE = f"""
test -x /usr/bin/v4l2loopback-ctl && echo program
test -c /dev/{_NODE} && echo node
mknod own c {{major}} {{minor}}
set -- own; {OPEN_NODES}
"""
_TARGET = (SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO)


def test_the_image_is_named_by_the_pins_digest(
    provision: Provision, small_build: dict[str, Any]
) -> None:
    pin = provision.json("resolve", *_TARGET)
    assert small_build["digest"] == pin["digest"]
    digest12 = pin["digest"].removeprefix("sha256:")[:12]
    assert small_build["image"].startswith(f"provision/{SMALL_DRIVER}:")
    assert small_build["image"].endswith(f"-{OLD_KERNEL}-{digest12}")


def test_the_image_holds_modules_where_kubernetes_kmm_looks_for_them(
    engine: Engine, small_build: dict[str, Any], tmp_path: Path
) -> None:
    engine.copy_out(small_build["image"], "/opt/.", tmp_path)
    modules = tmp_path / "lib/modules" / OLD_KERNEL
    assert list(modules.rglob("v4l2loopback.ko*"))
    assert "v4l2loopback.ko" in (modules / "modules.dep").read_text()
    assert (tmp_path / "driver/manifest.json").is_file()


def test_building_again_builds_nothing(
    engine: Engine, provision: Provision, small_build: dict[str, Any]
) -> None:
    before = engine.layers()
    again = provision.build(*_TARGET)
    assert again["built"] is False
    assert again["image"] == small_build["image"]
    assert engine.layers() == before


def test_an_image_is_verified_installed_and_used_by_a_container(
    provision: Provision, containers: Containers, small_build: dict[str, Any], host: Host
) -> None:
    provision("verify", small_build["image"])
    provision("install", small_build["image"], "--root", host.root)
    entry = host.entry(SMALL_DRIVER)
    provision("verify", entry)
    assert list(entry.rglob("v4l2loopback.ko*"))
    assert entry.name == small_build["digest"].removeprefix("sha256:")[:12]

    # In place of the module, which this kernel may not load.
    make_nodes(host.root / "dev", [_NODE])
    number = (host.root / "dev" / _NODE).stat().st_rdev
    # By a name of its own, too: the cgroup denies what was not given.
    script = _USE.format(major=os.major(number), minor=os.minor(number))
    for start in (containers.docker, containers.in_podman):
        given, mknod = f"--env={_FLAG}=all", "--cap-add=MKNOD"
        done = start("sh", "-c", script, flags=(given, mknod))
        assert done.stdout.splitlines() == ["program", "node", f"own: {ALLOWED}"], done.output
        done = start("sh", "-c", script, flags=(mknod,))
        assert done.stdout.splitlines() == [f"own: {DENIED}"], done.output


def test_installing_again_changes_nothing(
    provision: Provision, small_build: dict[str, Any], host: Host
) -> None:
    provision("install", small_build["image"], "--root", host.root)
    before = _tree(host.root)
    provision("install", small_build["image"], "--root", host.root)
    assert _tree(host.root) == before


def _tree(root: Path) -> dict[str, tuple[int, int]]:
    """Every path with its inode and time of change: a rewritten file is another file."""
    paths = [path for path in root.rglob("*") if path.is_symlink() or not path.is_dir()]
    stats = {str(path.relative_to(root)): path.lstat() for path in paths}
    return {
        name: (stat.st_ino, stat.st_mtime_ns)
        for name, stat in stats.items()
        if not name.endswith(".lock")
    }
