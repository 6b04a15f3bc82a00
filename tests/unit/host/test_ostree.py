"""Kernels of real deployments: what boots next, what may boot again, and when to look."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit.files import HostFiles
from kit.ostree import Sysroot
from provision.files import templates_dir
from provision.host.boot import boot_entries
from provision.host.kernels import find_kernels
from provision.store.units import filled

OLD, NEW = "6.1.0-47-amd64", "6.1.0-56-amd64"


def _tree(folder: Path, kernel: str) -> Path:
    """The least of a root that ostree deploys."""
    modules = folder / "usr/lib/modules" / kernel
    (folder / "usr/etc").mkdir(parents=True)
    modules.mkdir(parents=True)
    for name in ("vmlinuz", "initramfs.img"):
        (modules / name).write_text(f"{name} of {kernel}")
    (folder / "usr/lib/os-release").write_text("ID=fedora\nVERSION_ID=42\n")
    (folder / "usr/etc/os-release").symlink_to("../usr/lib/os-release")
    return folder


@pytest.fixture
def sysroot(tmp_path: Path) -> Sysroot:
    """A host that runs OLD."""
    made = Sysroot.here(tmp_path / "host")
    made.make()
    host = HostFiles(tmp_path / "host")
    host.write("run/ostree-booted")
    host.boot(OLD)
    made.deploy(made.commit(_tree(tmp_path / "old", OLD)))
    return made


def test_a_kernel_counts_as_long_as_a_deployment_has_it(sysroot: Sysroot, tmp_path: Path) -> None:
    host = tmp_path / "host"

    def found(booted: str) -> tuple[tuple[str, ...], set[str]]:
        said = {"rpm-ostree": sysroot.status(booted)}
        kernels = find_kernels(host, ask=lambda argv: said.get(argv[0]))
        assert (kernels.notes, kernels.warnings) == ((), ())
        return kernels.pending, set(kernels.bootable)

    (old,) = sysroot.deployments()
    assert found(old) == ((), {OLD})
    new = sysroot.commit(_tree(tmp_path / "new", NEW))
    assert found(old) == ((), {OLD})
    sysroot.deploy(new)
    assert found(old) == ((NEW,), {OLD, NEW})
    # The next boot.
    (host / "proc/sys/kernel/osrelease").write_text(f"{NEW}\n")
    assert found(new) == ((), {OLD, NEW})
    sysroot.undeploy(old)
    assert found(new) == ((), {NEW})


def test_a_deployment_changes_what_the_agents_unit_watches(
    sysroot: Sysroot, tmp_path: Path
) -> None:
    unit = filled("systemd/provision-kernel.path.j2", templates_dir(), documentation="file:///docs")
    (watched,) = re.findall(r"^PathChanged=/(ostree\S*)$", unit, re.MULTILINE)
    new = sysroot.commit(_tree(tmp_path / "new", NEW))
    before = (tmp_path / "host" / watched).stat().st_mtime_ns
    sysroot.deploy(new)
    assert (tmp_path / "host" / watched).stat().st_mtime_ns > before


def test_links_to_deployments_elsewhere_do_not_count(sysroot: Sysroot, tmp_path: Path) -> None:
    assert boot_entries(Path(sysroot.folder)).releases == (OLD,)
    other = tmp_path / "other"
    other.mkdir()
    for path in Path(sysroot.folder).iterdir():
        (other / path.name).symlink_to(path)
    assert boot_entries(other).releases == ()
