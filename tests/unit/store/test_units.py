"""Units and kernel hooks on a host's root."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from kit.artifact import write
from provision.errors import ProvisionError, UsageError
from provision.files import templates_dir
from provision.manifest import ForeignRoot
from provision.store.activate import modprobe_config, root_mount
from provision.store.layout import Layout
from provision.store.managed_files import Change
from provision.store.units import (
    DEBIAN_HOOKS,
    KERNEL_INSTALL_HOOKS,
    UnitFile,
    UnitSettings,
    apply_units,
    filled,
    kernel_hooks,
    own_program,
    plan_units,
    unit_files,
)

PROGRAM = "/opt/provision/bin/provision"


def _files(
    *,
    program: str = PROGRAM,
    hooks: tuple[PurePosixPath, ...] = DEBIAN_HOOKS,
    with_gate: bool = False,
    with_cdi: bool = True,
) -> list[UnitFile]:
    settings = UnitSettings(
        program=program,
        documentation="file:///docs",
        hooks=hooks,
        with_gate=with_gate,
        with_cdi=with_cdi,
    )
    return unit_files(templates_dir(), settings)


def _install(root: Path, files: list[UnitFile], *, replace: bool = False) -> list[Change]:
    changes = plan_units(root, files, replace=replace)
    apply_units(root, changes)
    return changes


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
    write(tmp_path / "bin/modprobe", b'#!/bin/sh\necho "$*" >>log\n', 0o755)
    write(tmp_path / "log", b"")
    texts = {file.path.name: file.text for file in _files()}
    (line,) = re.findall(r"(?m)^ExecStartPost=-(.*)", texts["provision-boot.service"])
    assert f"ExecStopPost=-{line}\n" in texts["provision-boot.service"]
    words = shlex.split(line.replace("$$", "$"))
    words[-1] = re.sub("/(?=etc/modprobe.d|sys/module)", "", words[-1])
    path = f"{tmp_path}/bin:/usr/bin:/bin"
    subprocess.run(words, env={"PATH": path}, cwd=tmp_path, check=True, timeout=60)
    assert sorted((tmp_path / "log").read_text().splitlines()) == sorted(asked)


def test_a_program_that_systemd_would_misread_is_refused() -> None:
    for program in ("provision", "/opt/my programs/provision", "/opt/%i/provision"):
        with pytest.raises(UsageError):
            _files(program=program)


_STARTS_CONTAINERS = (
    *("docker", "containerd", "crio", "podman", "kubelet", "k3s", "k3s-agent"),
    *("rke2-server", "rke2-agent", "k0sworker", "snap.microk8s.daemon-kubelite", "slurmd"),
)
_USES_THE_DRIVER = ("nvidia-persistenced", "nvidia-fabricmanager", "nvidia-dcgm")


def _names(text: str, key: str) -> set[str]:
    lines = [line for line in text.splitlines() if line.startswith(f"{key}=")]
    return {name for line in lines for name in line.partition("=")[2].split()}


def _texts() -> dict[str, str]:
    """Return every unit that comes before engines, or that another starts, by its name."""
    extension = filled("sysext/provision.service.j2", templates_dir(), driver="demo", version="1")
    root = ForeignRoot(path="/run/demo", libraries="/usr/lib64")
    return {
        **{file.path.name: file.text for file in _files()},
        "extension": extension,
        "mount": root_mount(Layout(Path("/"), "demo"), root),
    }


@pytest.mark.parametrize(
    "unit",
    [*(f"provision-{name}.service" for name in ("boot", "cdi", "devices")), "extension", "mount"],
)
def test_what_uses_a_driver_waits_for_it(unit: str) -> None:
    before = _names(_texts()[unit], "Before")
    assert {f"{name}.service" for name in _STARTS_CONTAINERS} <= before
    loads = unit in {"provision-boot.service", "extension"}
    assert ({f"{name}.service" for name in _USES_THE_DRIVER} <= before) == loads
    # A socket is started earlier than any ordinary service: that would be a cycle.
    assert not [name for name in before if name.endswith(".socket")]


def test_the_boot_unit_waits_for_no_network() -> None:
    assert "network-online" not in _texts()["provision-boot.service"]


def test_no_unit_that_another_starts_can_run_out_of_starts() -> None:
    texts = _texts()
    started = {name for text in texts.values() for name in _names(text, "Unit")}
    started |= {"provision-apply.service"}
    assert len(started) == 4
    for name in started:
        assert "StartLimitIntervalSec=0" in texts[name].splitlines(), name


@pytest.mark.parametrize(
    ("there", "hooks"),
    [
        ([], ()),
        (["var/lib/dpkg/status"], DEBIAN_HOOKS),
        (["var/lib/rpm/x"], ()),
        (["var/lib/rpm/x", "usr/bin/kernel-install"], KERNEL_INSTALL_HOOKS),
        (["usr/lib/sysimage/rpm/x", "usr/bin/kernel-install"], KERNEL_INSTALL_HOOKS),
        # Debian has both, and its kernels do not run kernel-install.
        (["var/lib/dpkg/status", "var/lib/rpm/x", "usr/bin/kernel-install"], DEBIAN_HOOKS),
        # An image is updated as a whole.
        (["run/ostree-booted", "usr/lib/sysimage/rpm/x", "usr/bin/kernel-install"], ()),
    ],
)
def test_a_host_gets_the_hooks_that_its_kernels_run(
    tmp_path: Path, there: list[str], hooks: tuple[PurePosixPath, ...]
) -> None:
    for name in there:
        write(tmp_path / name, b"")
    assert kernel_hooks(tmp_path) == hooks
    _install(tmp_path, _files(hooks=hooks))
    for hook in hooks:
        path = tmp_path / hook
        assert path.stat().st_mode & 0o777 == 0o755
        # A hook that fails would fail the installation of a kernel.
        assert path.read_text().endswith("exit 0\n")
    _install(tmp_path, [])
    assert not [path for path in (tmp_path / "etc").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "name", ["etc/systemd/system/provision-apply.timer", "oem/bin/oem-postinst"]
)
@pytest.mark.parametrize("masked", [False, True])
def test_what_others_put_there_stays(tmp_path: Path, name: str, *, masked: bool) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    if masked:
        path.symlink_to("/dev/null")
    else:
        path.write_text("mine")
    with pytest.raises(ProvisionError):
        _install(tmp_path, _files(with_gate=True))
    assert path.is_symlink() if masked else path.read_text() == "mine"


def test_what_a_host_asks_for_comes_and_goes(tmp_path: Path) -> None:
    gate = tmp_path / "oem/bin/oem-postinst"
    units = tmp_path / "etc/systemd/system"
    _install(tmp_path, _files(with_gate=True))
    assert gate.stat().st_mode & 0o777 == 0o755
    assert f"program={PROGRAM}\n" in gate.read_text()
    assert list(units.rglob("provision-cdi.*"))
    _install(tmp_path, _files(with_cdi=False))
    assert not gate.exists()
    assert not list(units.rglob("provision-cdi.*"))


def test_a_newer_provision_replaces_its_own_units(tmp_path: Path) -> None:
    _install(tmp_path, _files(program="/old/provision"))
    changes = _install(tmp_path, _files(hooks=()))
    assert {change.kind for change in changes} == {"write", "remove"}
    hook = tmp_path / "etc/kernel/postinst.d/provision"
    assert not hook.exists()
    # From now on it is whoever's.
    hook.write_text("mine")
    assert _install(tmp_path, _files(hooks=())) == []
    unit = (tmp_path / "etc/systemd/system/provision-apply.service").read_text()
    assert f"ExecStart={PROGRAM} apply" in unit


def test_a_changed_unit_stays(tmp_path: Path) -> None:
    _install(tmp_path, _files())
    unit = tmp_path / "etc/systemd/system/provision-boot.service"
    unit.write_text("mine")
    for files in (_files(), []):
        with pytest.raises(ProvisionError) as error:
            _install(tmp_path, files)
        assert str(unit) in str(error.value.details)
    assert unit.read_text() == "mine"
    _install(tmp_path, _files(), replace=True)
    (copy,) = (tmp_path / "var/lib/provision/.units").glob("provision-boot.service.*")
    assert copy.read_text() == "mine"
    assert "ExecStart" in unit.read_text()


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
    apply_units(tmp_path, changes[:3])
    rest = _install(tmp_path, _files())
    assert [change.path for change in rest] == [change.path for change in changes[3:]]


def test_another_root_has_its_own_program(tmp_path: Path) -> None:
    assert own_program(tmp_path, "/usr/bin/env") == "/opt/provision/bin/provision"
    assert own_program(Path("/"), "/usr/bin/env") == "/usr/bin/env"


def test_a_module_that_was_started_by_python_is_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_as = str(tmp_path / "__main__.py")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError):
        own_program(Path("/"), started_as)
    program = tmp_path / "provision"
    program.touch(mode=0o755)
    assert own_program(Path("/"), started_as) == str(program)
