"""Units as systemd reads them, and hooks as a shell does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.files import write
from kit.probe import need_programs
from kit.process import run, wait_for
from kit.systemd import SystemdContainer
from provision.files import templates_dir
from provision.manifest import ForeignRoot
from provision.store.activate import ready_service, root_mount
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
    apply_units(tmp_path, plan_units(tmp_path, files))
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


# What a unit's program does: it fails, after what holds it up is gone.
_PROGRAM = """#!/bin/sh
echo run >>/run/ran
while [ -e /run/hold ]; do sleep 0.05; done
exit 1
"""
# A path unit, and what happens to each path that it watches.
_EVENTS = [
    ("provision-kernel", "mkdir /lib/modules/9.$1"),
    ("provision-kernel", "mkdir /ostree/deploy/$1"),
    ("provision-cdi", "touch /etc/oci-decorator/oci-decorator.d/$1.json"),
    ("provision-cdi", "echo $1 >/run/provision/status.json"),
    ("provision-cdi", "touch /run/oci-decorator/devices/$1.json"),
    ("provision-cdi", "touch /etc/cdi/$1.yaml"),
    # The nodes of a partition; and as oci-decorator does.
    ("provision-devices", "mknod /dev/nvidia-caps/nvidia-cap$1 c 1 3"),
    ("provision-devices", ": >/run/oci-decorator/refresh"),
]
_FOLDERS = (
    "/etc/oci-decorator/oci-decorator.d /etc/cdi /run/provision /run/oci-decorator/devices"
    " /dev/nvidia-caps /ostree/deploy /lib/modules"
)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdContainer]:
    """A machine with the units, whose programs fail; only the path units run."""
    folder = tmp_path_factory.mktemp("units")
    settings = UnitSettings("/units/program", documentation="file:///", hooks=DEBIAN_HOOKS)
    for file in unit_files(templates_dir(), settings):
        write(folder / file.path.name, file.text)
    write(folder / "program", _PROGRAM, 0o755)
    with SystemdContainer(flags=(f"--volume={folder}:/units:ro",)) as machine:
        machine("sh", "-euc", f"cp /units/provision-* /etc/systemd/system; mkdir -p {_FOLDERS}")
        machine("cp", "/units/program", "/usr/local/bin/oci-decorator")
        machine("systemctl", "daemon-reload")
        machine("systemctl", "start", *sorted({f"{name}.path" for name, _event in _EVENTS}))
        yield machine


def _runs(machine: SystemdContainer) -> int:
    return int(machine("sh", "-c", "touch /run/ran; wc -l </run/ran").stdout)


def _state(machine: SystemdContainer, unit: str, name: str = "SubState") -> str:
    return machine("systemctl", "show", "--value", "-p", name, unit).stdout.strip()


def _comes(machine: SystemdContainer, event: str, argument: int) -> None:
    """Let something happen, and wait until a program has run once more."""
    before = _runs(machine)
    machine("sh", "-euc", event, "sh", str(argument))
    wait_for(event, lambda: _runs(machine) > before, within_s=60, pause_s=0.05)


@pytest.mark.parametrize(("name", "event"), _EVENTS)
def test_every_change_starts_a_service_that_fails_each_time(
    machine: SystemdContainer, name: str, event: str
) -> None:
    """More often than systemd lets a unit start, after which its trigger would fail too."""
    for number in range(8):
        _comes(machine, event, number)
        wait_for(
            f"{name}.path",
            lambda: _state(machine, f"{name}.path") == "waiting",
            within_s=60,
            pause_s=0.05,
            said=lambda: machine("systemctl", "status", f"{name}.*", check=False).stdout,
        )


@pytest.mark.parametrize(("name", "event"), _EVENTS)
def test_a_change_during_a_run_is_seen(machine: SystemdContainer, name: str, event: str) -> None:
    machine("touch", "/run/hold")
    _comes(machine, event, 100)
    machine("sh", "-euc", event, "sh", "101")
    before = _runs(machine)
    machine("rm", "/run/hold")
    wait_for(f"a run of {name}", lambda: _runs(machine) > before, within_s=30, pause_s=0.05)


def test_a_kernels_hook_starts_the_service_and_does_not_wait(machine: SystemdContainer) -> None:
    unit = "provision-kernel.service"
    machine("systemctl", "stop", "provision-kernel.path", unit)
    machine("touch", "/run/hold")
    # As the package manager runs it: with hardly an environment.
    _comes(machine, "env -i sh /units/provision 6.1.0-9$1-amd64 /boot/vmlinuz", 9)
    assert _state(machine, unit) == "start"
    machine("rm", "/run/hold")
    machine("systemctl", "stop", unit)


def test_a_broken_program_costs_no_driver_and_the_journal_says_how_to_repair_it(
    machine: SystemdContainer,
) -> None:
    """As an upgrade of the distro leaves it, when the Python of its environment is gone."""
    unit, folder = "provision-boot.service", "/var/lib/provision/x/kernels/$(uname -r)"
    machine("sh", "-euc", f'mkdir -p "{folder}"; echo "echo \\$1 >/run/verb" >"{folder}/load"')
    machine("systemctl", "start", unit, check=False)
    assert machine("cat", "/run/verb").stdout == "load\n"
    # What could not be seen is not green.
    assert _state(machine, unit, "Result") == "exit-code"
    assert "What to do: " in machine("journalctl", "--no-pager", "-u", unit).stdout


@pytest.mark.parametrize("name", ["apply", "boot", "cdi", "devices", "kernel"])
def test_a_service_that_is_stopped_has_not_failed(machine: SystemdContainer, name: str) -> None:
    unit = f"provision-{name}.service"
    machine("sh", "-euc", "touch /run/hold; mkdir -p /var/lib/provision/x")
    before = _runs(machine)
    machine("systemctl", "reset-failed")
    machine("systemctl", "start", "--no-block", unit)
    wait_for(unit, lambda: _runs(machine) > before, within_s=60, pause_s=0.05)
    machine("systemctl", "stop", unit)
    machine("rm", "/run/hold")
    assert _state(machine, unit, "Result") == "success"


def test_the_hourly_run_comes_without_a_run_after_the_boot(machine: SystemdContainer) -> None:
    machine("systemctl", "start", "provision-repeat.timer")
    assert _state(machine, "provision-repeat.timer") == "waiting"


def test_systemd_offers_the_root_of_the_entry_in_use(tmp_path: Path) -> None:
    ready = "/run/demo/validations/.ready"
    root = ForeignRoot(
        path="/run/demo/driver",
        libraries="/usr/lib64",
        ready_file=ready,
        ready_lines=("A: false", "B: false"),
    )
    layout = Layout(Path("/"), "demo")
    for unit, text in (
        (layout.mount_unit(root.path), root_mount(layout, root)),
        (layout.ready_unit, ready_service(layout, root)),
    ):
        (tmp_path / unit.name).write_text(text)
    use = """
        cd /var/lib/provision/demo && mkdir -p $1/driver && echo $1 >$1/driver/version
        ln -sfn $1 current && systemctl daemon-reload && systemctl restart run-demo-driver.mount
        cat /run/demo/driver/version
        ! touch /run/demo/driver/new 2>/dev/null"""
    with SystemdContainer(flags=(f"--volume={tmp_path}:/units:ro",)) as machine:
        machine("sh", "-c", "cp /units/* /etc/systemd/system")
        machine("mkdir", "-p", "/var/lib/provision/demo")
        for entry in ("one", "two"):
            # What has a file of it open keeps that, and does not stand in the way.
            machine("sh", "-c", "exec sleep 600 </run/demo/driver/version >/dev/null 2>&1 & :")
            assert machine("sh", "-euc", use, "sh", entry).stdout == f"{entry}\n"
            wait_for(
                ready,
                lambda: machine("test", "-s", ready, check=False).returncode == 0,
                within_s=60,
            )
            assert machine("cat", ready).stdout == "A: false\nB: false\n"
        machine("systemctl", "stop", "run-demo-driver.mount")
        wait_for(
            "its end",
            lambda: machine("test", "-e", ready, check=False).returncode == 1,
            within_s=60,
        )


def test_hooks_are_good_shell(root: Path) -> None:
    need_programs("shellcheck")
    hooks = sorted((root / "etc/kernel").glob("*/provision"))
    assert len(hooks) == 3
    run(["shellcheck", *map(str, hooks)])


def test_hooks_never_fail_whatever_becomes_of_systemctl(root: Path) -> None:
    for hook in sorted((root / "etc/kernel").glob("*/provision")):
        # As dpkg calls it in a chroot: an empty environment, and no systemd.
        assert run(["env", "-i", str(hook), "6.1.0-50-amd64", "/boot/vmlinuz"]).returncode == 0
