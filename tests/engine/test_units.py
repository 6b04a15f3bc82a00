"""Units as systemd reads them, and hooks as a shell does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit.files import write
from kit.probe import need_programs
from kit.process import run
from kit.systemd import SystemdContainer
from provision.manifest import ForeignRoot
from provision.shipped import templates_dir
from provision.store.activate import root_mount
from provision.store.layout import Layout
from provision.store.units import DEBIAN_HOOKS, UnitSettings, apply_units, plan_units, unit_files

# What docs/how-to/keep-drivers-loaded.md says: 0 is best, 10 is an unconfined service.
EXPOSURE = {
    "provision-boot.service": 3.9,
    "provision-cdi.service": 1.7,
    "provision-devices.service": 2.5,
    "provision-kernel.service": 6.0,
    "provision-apply.service": 6.0,
}
_OVERALL = re.compile(r"Overall exposure level for \S+: ([\d.]+)")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with the units; their program is one that exists everywhere."""
    files = unit_files(
        templates_dir(),
        UnitSettings(program="/bin/true", documentation="file:///", hooks=DEBIAN_HOOKS),
    )
    apply_units(tmp_path, plan_units(tmp_path, files), on_change=lambda _change: None)
    return tmp_path


def test_systemd_finds_nothing_to_complain_about(root: Path) -> None:
    need_programs("systemd-analyze")
    units = sorted((root / "etc/systemd/system").glob("provision-*"))
    assert len(units) == 10
    done = run(["systemd-analyze", "verify", *map(str, units)])
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("unit", EXPOSURE)
def test_units_are_as_confined_as_documented(root: Path, unit: str) -> None:
    need_programs("systemd-analyze")
    path = root / "etc/systemd/system" / unit
    done = run(["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)])
    found = _OVERALL.search(done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) <= EXPOSURE[unit]
    page = Path(__file__).parents[2] / "docs/how-to/keep-drivers-loaded.md"
    assert str(EXPOSURE[unit]) in page.read_text()


def test_facts_are_written_again_when_a_gpu_is_divided_or_they_are_out_of_date(
    tmp_path: Path,
) -> None:
    settings = UnitSettings(program="/units/program", documentation="file:///")
    for file in unit_files(templates_dir(), settings):
        if file.path.name.startswith("provision-devices."):
            (tmp_path / file.path.name).write_text(file.text)
    write(tmp_path / "program", '#!/bin/sh\necho "$*" >>/run/ran\n', 0o755)
    with SystemdContainer(flags=(f"--volume={tmp_path}:/units:ro",)) as machine:
        machine("sh", "-c", "cp /units/provision-devices.* /etc/systemd/system")
        machine("mkdir", "/run/oci-decorator")
        machine("systemctl", "daemon-reload")
        machine("systemctl", "start", "provision-devices.path")
        for number, event in enumerate(
            (
                "mkdir /dev/nvidia-caps",
                # The nodes of a second partition.
                "mknod /dev/nvidia-caps/nvidia-cap3 c 1 3",
                # As oci-decorator does.
                ": >>/run/oci-decorator/refresh",
                ": >>/run/oci-decorator/refresh",
            )
        ):
            machine("sh", "-c", event)
            count = f'[ "$(grep -c "^devices --rescan$" /run/ran)" -gt {number} ]'
            machine("timeout", "60", "sh", "-c", f"until {count}; do sleep 0.2; done")
            idle = "until systemctl show -P SubState provision-devices.path | grep -qx waiting"
            machine("timeout", "60", "sh", "-c", f"{idle}; do sleep 0.2; done")


def test_systemd_offers_the_root_of_the_entry_in_use(tmp_path: Path) -> None:
    root = ForeignRoot(path="/run/demo/driver", libraries="/usr/lib64")
    (tmp_path / "run-demo-driver.mount").write_text(root_mount(Layout(Path("/"), "demo"), root))
    use = """
        cd /var/lib/provision/demo && mkdir -p $1/driver && echo $1 >$1/driver/version
        ln -sfn $1 current && systemctl daemon-reload && systemctl restart run-demo-driver.mount
        cat /run/demo/driver/version
        ! touch /run/demo/driver/new 2>/dev/null"""
    with SystemdContainer(flags=(f"--volume={tmp_path}:/units:ro",)) as machine:
        machine("cp", "/units/run-demo-driver.mount", "/etc/systemd/system")
        machine("mkdir", "-p", "/var/lib/provision/demo")
        for entry in ("one", "two"):
            # What has a file of it open keeps that, and does not stand in the way.
            machine("sh", "-c", "exec sleep 600 </run/demo/driver/version >/dev/null 2>&1 & :")
            assert machine("sh", "-euc", use, "sh", entry).stdout == f"{entry}\n"


def test_hooks_are_good_shell(root: Path) -> None:
    need_programs("shellcheck")
    hooks = sorted((root / "etc/kernel").glob("*/provision"))
    assert len(hooks) == 3
    run(["shellcheck", *map(str, hooks)])


def test_hooks_never_fail_whatever_becomes_of_systemctl(root: Path) -> None:
    for hook in sorted((root / "etc/kernel").glob("*/provision")):
        # As dpkg calls it in a chroot: an empty environment, and no systemd.
        assert run(["env", "-i", str(hook), "6.1.0-50-amd64", "/boot/vmlinuz"]).returncode == 0
