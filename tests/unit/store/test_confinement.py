"""Whether units see the program that they start, on trees of hosts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.probe import is_root, need
from provision.errors import UsageError
from provision.shipped import templates_dir
from provision.store.confinement import Hidden, hidden, require_label, require_visible
from provision.store.units import UNITS, UnitSettings, unit_files

PROGRAM = "/opt/provision/bin/provision"
SERVICES = (
    "provision-apply.service",
    "provision-boot.service",
    "provision-devices.service",
    "provision-kernel.service",
)
BOOT = ("provision-boot.service", "provision-devices.service")
# Units that build have ProtectHome=read-only: the engine's credentials are root's.
HOMES = ("/home", "/root", "/run/user")
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - no file is made there
FOLDERS = dict.fromkeys(HOMES, BOOT) | dict.fromkeys(TEMPORARY, SERVICES)


def _units(program: str) -> list[tuple[str, str]]:
    files = unit_files(templates_dir(), UnitSettings(program=program, documentation=""))
    return [(file.path.name, file.text) for file in files if file.path.parent == UNITS]


def _hidden(root: Path, program: str = PROGRAM) -> list[Hidden]:
    return list(hidden(root, program, _units(program)))


def _link(root: Path, path: str, target: str) -> None:
    link = root / path.lstrip("/")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


def _write(root: Path, path: str, text: str = "") -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _environment(root: Path, folder: str, *, home: str = "/usr/bin", editable: str = "") -> None:
    """A virtual environment as ``python -m venv`` and pip make it."""
    _write(root, f"{folder}/bin/provision", f"#!{folder}/bin/python3\n")
    _write(root, f"{folder}/pyvenv.cfg", f"home = {home}\nversion = 3.11.2\n")
    _link(root, f"{folder}/bin/python3", f"{home}/python3")
    packages = f"{folder}/lib/python3.11/site-packages"
    _write(root, f"{packages}/distutils-precedence.pth", "import os; var = '/root'\n")
    if editable:
        _write(root, f"{packages}/__editable__.provision-0.1.0.pth", f"{editable}\n")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_program_in_a_folder_that_units_hide_is_found(tmp_path: Path, folder: str) -> None:
    found = _hidden(tmp_path, f"{folder}/me/clone/.venv/bin/provision")
    assert tuple(item.unit for item in found) == FOLDERS[folder]
    assert {item.folder for item in found} == {folder}


@pytest.mark.parametrize(
    "program", ["/usr/bin/provision", PROGRAM, "/srv/home/x/provision", "/homes/me/provision"]
)
def test_others_are_seen(tmp_path: Path, program: str) -> None:
    assert _hidden(tmp_path, program) == []


def test_an_environment_elsewhere_is_seen(tmp_path: Path) -> None:
    _environment(tmp_path, "/opt/provision/venv-0")
    _link(tmp_path, "/opt/provision/venv", "venv-0")
    _link(tmp_path, PROGRAM, "../venv/bin/provision")
    assert _hidden(tmp_path) == []


@pytest.mark.parametrize(
    ("home", "editable", "file"),
    [
        ("/root/python/bin", "", "/root/python/bin/python3"),
        ("/usr/bin", "/root/clone/src", "/root/clone/src"),
    ],
)
def test_its_python_and_its_package_count_too(
    tmp_path: Path, home: str, editable: str, file: str
) -> None:
    _environment(tmp_path, "/opt/venv", home=home, editable=editable)
    found, _also = _hidden(tmp_path, "/opt/venv/bin/provision")
    assert (found.unit, str(found.file), found.folder) == (BOOT[0], file, "/root")
    assert str(found) == f"{BOOT[0]}: {file} (ProtectHome=yes hides /root)"


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("/usr/local/bin/provision", "/home/me/clone/.venv/bin/provision"),
        ("/usr/local/bin", "../../home/me/bin"),
        # On the way only.
        ("/usr/local/bin/provision", "/home/me/provision"),
    ],
)
def test_links_are_followed(tmp_path: Path, link: str, target: str) -> None:
    _link(tmp_path, link, target)
    _link(tmp_path, "/home/me/provision", "/usr/lib/provision")
    found, _also = _hidden(tmp_path, "/usr/local/bin/provision")
    assert found.folder == "/home"


def test_a_python_with_a_long_path_is_found_where_pip_puts_it(tmp_path: Path) -> None:
    python = f"/root/{'x' * 200}/bin/python3"
    text = f"#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\nimport sys\n"
    _write(tmp_path, "/opt/bin/provision", text)
    found, _also = _hidden(tmp_path, "/opt/bin/provision")
    assert (str(found.file), found.folder) == (python, "/root")


def test_homes_that_are_links_are_homes(tmp_path: Path) -> None:
    # As on Fedora CoreOS.
    _link(tmp_path, "/root", "var/roothome")
    for program in ("/var/roothome/bin/provision", "/root/bin/provision"):
        assert {item.folder for item in _hidden(tmp_path, program)} == {"/root"}


def test_links_lead_nowhere_out_of_the_root_and_end(tmp_path: Path) -> None:
    root = tmp_path / "root"
    _write(tmp_path, "home/provision", "#!/home/python\n")
    _link(root, PROGRAM, "../../../../../home/provision")
    found, _also = _hidden(root)
    assert str(found.file) == "/home/provision"
    _link(root, "/srv/a", "b")
    _link(root, "/srv/b", "a")
    assert _hidden(root, "/srv/a") == []


@pytest.mark.parametrize(
    "first", ["", "#!\n", "#!python3\n", "\x7fELF", "#!/usr/bin/env python3\n"]
)
def test_programs_that_are_no_scripts_of_an_environment(tmp_path: Path, first: str) -> None:
    _write(tmp_path, PROGRAM, first)
    assert _hidden(tmp_path) == []


def test_the_error_says_what_to_do(tmp_path: Path) -> None:
    program = "/root/clone/.venv/bin/provision"
    with pytest.raises(UsageError, match=f"Units can't run '{program}'") as caught:
        require_visible(tmp_path, program, _units(program), checkout=Path("/root/clone"))
    assert "pip install /root/clone &&" in str(caught.value.resolution)
    assert "provision-boot.service" in str(caught.value.details)
    require_visible(tmp_path, PROGRAM, _units(PROGRAM), checkout=None)


@pytest.mark.parametrize(
    ("script", "python", "refused"),
    [
        ("bin_t", "bin_t", None),
        ("provision_exec_t", "bin_t", None),
        (None, None, None),
        ("lib_t", "bin_t", "/opt/provision/bin/provision has the label"),
        ("usr_t", "bin_t", "/opt/provision/bin/provision has the label"),
        ("bin_t", "usr_t", "/usr/bin/python3 has the label"),
    ],
)
def test_selinux_has_to_know_what_units_execute_as_programs(
    tmp_path: Path, script: str | None, python: str | None, refused: str | None
) -> None:
    need(is_root(), "root", "only root can set labels")
    _environment(tmp_path, "/opt/provision")
    _write(tmp_path, "/usr/bin/python3")
    for path, kind in ((PROGRAM, script), ("/usr/bin/python3", python)):
        if kind:
            label = f"system_u:object_r:{kind}:s0\0".encode()
            os.setxattr(tmp_path / path.lstrip("/"), "security.selinux", label)
    # Without SELinux, no label matters.
    require_label(tmp_path, PROGRAM, checkout=None)
    _write(tmp_path, "sys/fs/selinux/enforce", "1")
    if refused is None:
        require_label(tmp_path, PROGRAM, checkout=None)
        return
    with pytest.raises(UsageError, match="SELinux") as caught:
        require_label(tmp_path, PROGRAM, checkout=None)
    assert refused in str(caught.value.details)
