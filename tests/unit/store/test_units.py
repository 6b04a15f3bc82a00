"""Units and kernel hooks on a host's root."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from provision.errors import ProvisionError, UsageError
from provision.shipped import templates_dir
from provision.store.activate import modprobe_config
from provision.store.managed_files import Change
from provision.store.units import (
    DEBIAN_HOOKS,
    KERNEL_INSTALL_HOOKS,
    UnitFile,
    UnitSettings,
    apply_units,
    enabling_links,
    kernel_hooks,
    own_program,
    plan_units,
    unit_files,
)
from unit.kmod.artifact import write

PROGRAM = "/opt/provision/bin/provision"


def _files(
    *, program: str = PROGRAM, hooks: tuple[PurePosixPath, ...] = DEBIAN_HOOKS
) -> list[UnitFile]:
    return unit_files(
        templates_dir(), UnitSettings(program=program, documentation="file:///docs", hooks=hooks)
    )


def _install(root: Path, files: list[UnitFile], *, replace: bool = False) -> list[Change]:
    changes = plan_units(root, files, replace=replace)
    apply_units(root, changes, on_change=lambda _change: None)
    return changes


def test_units_run_the_program_that_is_given() -> None:
    texts = {file.path.name: file.text for file in _files(program="/usr/bin/provision")}
    assert "ExecStart=/usr/bin/provision apply --boot\n" in texts["provision-boot.service"]
    assert "ExecStart=/usr/bin/provision apply --wait-kernel\n" in texts["provision-kernel.service"]
    assert "ExecStart=/usr/bin/provision apply --timer\n" in texts["provision-apply.service"]
    for name, text in texts.items():
        assert ("Documentation=file:///docs\n" in text) == name.startswith("provision-")
        assert not {"{{", "{%", "{#"} & {text[at : at + 2] for at in range(len(text))}


@pytest.mark.parametrize(
    ("loaded", "asked"),
    [
        # Nothing of either driver is loaded: the kernel's own copies serve.
        ([], ["-qa onload sfc", "-qa nvidia"]),
        (["sfc"], ["-qa nvidia"]),
        (["sfc", "nvidia"], []),
    ],
)
def test_where_no_module_of_a_driver_is_loaded_the_boot_unit_loads_the_in_tree_copies(
    tmp_path: Path, loaded: list[str], asked: list[str]
) -> None:
    configs = tmp_path / "etc/modprobe.d"
    for driver, own in {"nvidia": ["nvidia"], "onload": ["onload", "sfc"]}.items():
        text = modprobe_config(driver, conflicts=["nouveau"], own=own) or ""
        write(configs / f"provision-{driver}.conf", text.encode())
    # A file of the Ansible role.
    write(configs / "provision-host.conf", b"blacklist pcspkr\n")
    for name in loaded:
        write(tmp_path / f"sys/module/{name}/initstate", b"live\n")
    write(tmp_path / "bin/modprobe", f'#!/bin/sh\necho "$*" >>{tmp_path}/log\n'.encode(), 0o755)
    write(tmp_path / "log", b"")
    texts = {file.path.name: file.text for file in _files()}
    (line,) = re.findall(r"(?m)^ExecStartPost=-(.*)", texts["provision-boot.service"])
    assert f"ExecStopPost=-{line}\n" in texts["provision-boot.service"]
    words = shlex.split(line.replace("$$", "$"))
    words[-1] = re.sub("/(?=etc/modprobe.d|sys/module)", f"{tmp_path}/", words[-1])
    path = f"{tmp_path}/bin:/usr/bin:/bin"
    subprocess.run(words, env={"PATH": path}, check=True, timeout=60)
    assert sorted((tmp_path / "log").read_text().splitlines()) == sorted(asked)


def test_a_program_that_systemd_would_misread_is_refused() -> None:
    for program in ("provision", "/opt/my programs/provision", "/opt/%i/provision"):
        with pytest.raises(UsageError, match="can't be run by a unit"):
            _files(program=program)


def test_units_are_enabled_by_the_links_that_systemctl_makes(tmp_path: Path) -> None:
    _install(tmp_path, _files())
    folder = tmp_path / "etc/systemd/system"
    links = {
        str(path.relative_to(folder)): str(path.readlink())
        for path in folder.rglob("*")
        if path.is_symlink()
    }
    assert links == {
        f"{wants}/{name}": f"/etc/systemd/system/{name}"
        for wants, name in [
            ("multi-user.target.wants", "provision-boot.service"),
            ("multi-user.target.wants", "provision-cdi.service"),
            ("multi-user.target.wants", "provision-devices.service"),
            ("paths.target.wants", "provision-cdi.path"),
            ("paths.target.wants", "provision-devices.path"),
            ("paths.target.wants", "provision-kernel.path"),
            ("timers.target.wants", "provision-apply.timer"),
            ("timers.target.wants", "provision-repeat.timer"),
        ]
    }


def test_engines_wait_for_the_boot_unit_and_it_waits_for_no_network() -> None:
    (boot,) = [f.text for f in _files() if f.path.name == "provision-boot.service"]
    before = {
        name
        for line in boot.splitlines()
        if line.startswith("Before=")
        for name in line.removeprefix("Before=").split()
    }
    assert {"docker.service", "containerd.service", "crio.service", "kubelet.service"} <= before
    # A socket is started earlier than any ordinary service: that would be a cycle.
    assert not [name for name in before if name.endswith(".socket")]
    assert "network-online" not in boot


def test_hooks_are_executable_and_those_of_dpkg_only_where_it_is(tmp_path: Path) -> None:
    assert kernel_hooks(tmp_path) == ()
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    assert kernel_hooks(tmp_path) == DEBIAN_HOOKS
    _install(tmp_path, _files())
    for folder in ("postinst.d", "postrm.d", "header_postinst.d"):
        hook = tmp_path / "etc/kernel" / folder / "provision"
        assert hook.stat().st_mode & 0o777 == 0o755
        assert hook.read_text().endswith("exit 0\n")
    assert not any(f.path.parts[1] == "kernel" for f in _files(hooks=()))


@pytest.mark.parametrize("database", ["var/lib/rpm", "usr/lib/sysimage/rpm"])
def test_hosts_of_rpm_have_a_plugin_of_kernel_install(tmp_path: Path, database: str) -> None:
    (tmp_path / database).mkdir(parents=True)
    assert kernel_hooks(tmp_path) == ()
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/kernel-install").touch()
    assert kernel_hooks(tmp_path) == KERNEL_INSTALL_HOOKS
    _install(tmp_path, _files(hooks=kernel_hooks(tmp_path)))
    plugin = tmp_path / "etc/kernel/install.d/95-provision.install"
    assert plugin.stat().st_mode & 0o777 == 0o755
    assert plugin.read_text().endswith("exit 0\n")
    assert not (tmp_path / "etc/kernel/postinst.d").exists()
    _install(tmp_path, [])
    assert not plugin.exists()


def test_debian_has_kernel_install_and_its_kernels_do_not_run_it(tmp_path: Path) -> None:
    for folder in ("var/lib/dpkg", "var/lib/rpm", "usr/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "usr/bin/kernel-install").touch()
    assert kernel_hooks(tmp_path) == DEBIAN_HOOKS


def test_an_image_gets_no_plugin(tmp_path: Path) -> None:
    for name in ("usr/bin/kernel-install", "run/ostree-booted"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "usr/lib/sysimage/rpm").mkdir(parents=True)
    assert kernel_hooks(tmp_path) == ()


def test_the_second_time_nothing_changes(tmp_path: Path) -> None:
    assert _install(tmp_path, _files())
    assert _install(tmp_path, _files()) == []


def test_a_newer_provision_replaces_its_own_units(tmp_path: Path) -> None:
    _install(tmp_path, _files(program="/old/provision"))
    changes = _install(tmp_path, _files(hooks=()))
    assert {change.kind for change in changes} == {"write", "remove"}
    assert not (tmp_path / "etc/kernel/postinst.d/provision").exists()
    unit = (tmp_path / "etc/systemd/system/provision-apply.service").read_text()
    assert f"ExecStart={PROGRAM} apply" in unit


def test_a_changed_unit_stays(tmp_path: Path) -> None:
    _install(tmp_path, _files())
    unit = tmp_path / "etc/systemd/system/provision-boot.service"
    unit.write_text("mine")
    for files in (_files(), []):
        with pytest.raises(ProvisionError, match="written or changed by someone else") as error:
            _install(tmp_path, files)
        assert str(unit) in str(error.value.details)
    assert unit.read_text() == "mine"
    _install(tmp_path, _files(), replace=True)
    (copy,) = (tmp_path / "var/lib/provision/.units").glob("provision-boot.service.*")
    assert copy.read_text() == "mine"
    assert "ExecStart" in unit.read_text()


def test_a_masked_unit_stays_masked(tmp_path: Path) -> None:
    unit = tmp_path / "etc/systemd/system/provision-apply.timer"
    unit.parent.mkdir(parents=True)
    unit.symlink_to("/dev/null")
    with pytest.raises(ProvisionError, match="someone else"):
        _install(tmp_path, _files())


def test_removing_leaves_nothing_but_what_others_wrote(tmp_path: Path) -> None:
    _install(tmp_path, _files())
    other = tmp_path / "etc/systemd/system/multi-user.target.wants/ssh.service"
    other.symlink_to("/lib/systemd/system/ssh.service")
    drop_in = tmp_path / "etc/systemd/system/provision-boot.service.d/override.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Unit]\n")
    _install(tmp_path, [])
    left = {path for path in tmp_path.rglob("*") if path.is_file() or path.is_symlink()}
    assert left == {other, drop_in}
    assert _install(tmp_path, []) == []


def test_a_run_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    changes = plan_units(tmp_path, _files())
    apply_units(tmp_path, changes[:3], on_change=lambda _change: None)
    rest = _install(tmp_path, _files())
    assert [change.path for change in rest] == [change.path for change in changes[3:]]


def test_links_come_from_the_install_sections() -> None:
    assert {link.name for link in enabling_links(_files())} == {
        "provision-boot.service",
        "provision-kernel.path",
        "provision-apply.timer",
        "provision-repeat.timer",
        "provision-cdi.service",
        "provision-cdi.path",
        "provision-devices.path",
        "provision-devices.service",
    }


def test_devices_that_come_and_go_are_looked_at_by_a_unit_and_not_by_udev(tmp_path: Path) -> None:
    _install(tmp_path, _files())
    rule = tmp_path / "etc/udev/rules.d/71-provision-devices.rules"
    assert rule.stat().st_mode & 0o777 == 0o644
    lines = [line for line in rule.read_text().splitlines() if line and not line.startswith("#")]
    started = '"/usr/bin/systemctl --no-block restart provision-devices.service"'
    assert [line.partition("RUN+=")[2] for line in lines] == [started] * 2
    service = (tmp_path / "etc/systemd/system/provision-devices.service").read_text()
    assert f"ExecStart={PROGRAM} devices refresh\n" in service
    # GPUs are opened there: nothing may take them away.
    assert "PrivateDevices" not in service
    assert "\nProtectClock" not in service
    _install(tmp_path, [])
    assert not rule.exists()


def test_specifications_are_written_unless_the_host_does_not_want_them(tmp_path: Path) -> None:
    _install(tmp_path, _files())
    units = tmp_path / "etc/systemd/system"
    service = (units / "provision-cdi.service").read_text()
    # After the drivers of this boot, before those who start containers by themselves.
    assert "After=local-fs.target provision-boot.service\n" in service
    assert "Before=docker.service containerd.service" in service
    assert "cdi generate --output-dir /run/cdi'" in service
    watched = (units / "provision-cdi.path").read_text()
    assert "PathChanged=/etc/oci-decorator/oci-decorator.d\n" in watched
    assert "PathChanged=/run/provision/status.json\n" in watched
    # Not /run/cdi, which the service itself writes.
    assert "PathChanged=/etc/cdi\n" in watched
    assert "/run/cdi" not in watched
    without = unit_files(
        templates_dir(),
        UnitSettings(
            program=PROGRAM, documentation="file:///docs", hooks=DEBIAN_HOOKS, with_cdi=False
        ),
    )
    _install(tmp_path, without)
    assert not list(units.rglob("provision-cdi.*"))
    assert len(without) == len(_files()) - 2


def test_another_root_has_its_own_program(tmp_path: Path) -> None:
    assert own_program(tmp_path, "/usr/bin/env") == "/opt/provision/bin/provision"
    assert own_program(Path("/"), "/usr/bin/env") == "/usr/bin/env"


def test_a_module_that_was_started_by_python_is_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_as = str(tmp_path / "__main__.py")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="was not found"):
        own_program(Path("/"), started_as)
    program = tmp_path / "provision"
    program.touch(mode=0o755)
    assert own_program(Path("/"), started_as) == str(program)


def test_a_gate_for_updates_comes_where_it_is_asked_for_and_goes(tmp_path: Path) -> None:
    with_gate = unit_files(
        templates_dir(),
        UnitSettings(program=PROGRAM, documentation="file:///docs", with_gate=True),
    )
    gate = tmp_path / "oem/bin/oem-postinst"
    _install(tmp_path, with_gate)
    assert gate.stat().st_mode & 0o777 == 0o755
    assert f"program={PROGRAM}\n" in gate.read_text()
    # It says how long it may take, and fails for no other reason than that it is for.
    assert 'timeout --kill-after=60 3600 "$program" prepare --usr' in gate.read_text()
    _install(tmp_path, _files(hooks=()))
    assert not gate.exists()


def test_a_foreign_gate_is_not_replaced(tmp_path: Path) -> None:
    gate = tmp_path / "oem/bin/oem-postinst"
    gate.parent.mkdir(parents=True)
    gate.write_text("#!/bin/sh\n# of the vendor\n")
    files = unit_files(
        templates_dir(), UnitSettings(program=PROGRAM, documentation="", with_gate=True)
    )
    with pytest.raises(ProvisionError):
        _install(tmp_path, files)
    assert "of the vendor" in gate.read_text()


def test_the_first_run_after_a_boot_is_prompt_and_later_ones_are_spread() -> None:
    texts = {file.path.name: file.text for file in _files()}
    assert "OnBootSec=20s\n" in texts["provision-apply.timer"]
    assert "Randomized" not in texts["provision-apply.timer"]
    repeat = texts["provision-repeat.timer"]
    for line in (
        "Unit=provision-apply.service",
        "OnUnitInactiveSec=1h",
        "RandomizedDelaySec=10min",
    ):
        assert f"\n{line}\n" in repeat
