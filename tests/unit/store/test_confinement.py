"""Whether units see the program that they start, and the store's labels for SELinux."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from kit.artifact import make_artifact, write
from provision.errors import UsageError
from provision.store.entries import label_entry
from provision.store.layout import Layout
from provision.store.units import require_label, require_visible

PROGRAM = "/opt/provision/bin/provision"
LONG = f"/root/{'x' * 200}/bin/python3"
# By path: the texts of files, and the targets of links that begin with ->.
TREES: dict[str, tuple[dict[str, str], str, str | None]] = {
    "packaged": ({}, "/usr/bin/provision", None),
    "similar names": ({}, "/homes/me/srv/home/x/provision", None),
    "environment": (
        {
            "/opt/provision/venv": "->venv-0",
            PROGRAM: "->../venv/bin/provision",
            "/opt/provision/venv-0/bin/provision": "#!/opt/provision/venv-0/bin/python3\n",
            "/opt/provision/venv-0/bin/python3": "->/usr/bin/python3",
        },
        PROGRAM,
        None,
    ),
    "clone": ({}, "/root/clone/.venv/bin/provision", "/root"),
    "home": ({}, "/home/me/clone/.venv/bin/provision", "/home"),
    "run": ({}, "/run/user/0/provision", "/run/user"),
    "tmp": ({}, "/tmp/provision", "/tmp"),  # noqa: S108 - nothing is written there
    "var-tmp": ({}, "/var/tmp/provision", "/var/tmp"),  # noqa: S108 - as above
    "python": (
        {PROGRAM: "#!/opt/bin/python3\n", "/opt/bin/python3": "->/root/python/bin/python3"},
        PROGRAM,
        "/root",
    ),
    "python with a long path": (
        {PROGRAM: f"#!/bin/sh\n'''exec' {LONG} \"$0\" \"$@\"\n' '''\nimport sys\n"},
        PROGRAM,
        "/root",
    ),
    "link": ({"/usr/local/bin/provision": "->/home/me/p"}, "/usr/local/bin/provision", "/home"),
    "linked folder": ({"/usr/local/bin": "->../../home/bin"}, "/usr/local/bin/p", "/home"),
    # As on Fedora CoreOS.
    "linked home": ({"/root": "->var/roothome"}, "/var/roothome/provision", "/root"),
    "link out of the root": ({PROGRAM: "->../../../../../home/provision"}, PROGRAM, "/home"),
    **{
        f"no script {number}": ({PROGRAM: text}, PROGRAM, None)
        for number, text in enumerate(["", "#!\n", "#!python3\n", "\x7fELF", "#!/usr/bin/env x\n"])
    },
}


def _make(root: Path, tree: dict[str, str]) -> None:
    for name, text in tree.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("->"):
            path.symlink_to(text[2:])
        else:
            path.write_text(text)


@pytest.mark.parametrize("name", TREES)
def test_units_see_neither_homes_nor_temporary_files(tmp_path: Path, name: str) -> None:
    tree, program, hidden = TREES[name]
    root = tmp_path / "root"
    root.mkdir()
    _make(root, tree)
    if hidden is None:
        require_visible(root, program, checkout=None)
        return
    with pytest.raises(UsageError):
        require_visible(root, program, checkout=None)


def test_a_python_of_its_own_is_needed_beside_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host that runs, what this process has imported counts too."""
    monkeypatch.setattr(sys, "prefix", "/home")
    with pytest.raises(UsageError) as caught:
        require_visible(Path("/"), "/home/x/provision", checkout=None)
    assert "/home/x/provision" in str(caught.value.details)


@pytest.mark.parametrize(
    ("script", "python", "refused"),
    [
        ("bin_t", "bin_t", None),
        ("provision_exec_t", "bin_t", None),
        (None, None, None),
        ("lib_t", "bin_t", "/opt/provision/venv-0/bin/provision has the label"),
        ("usr_t", "bin_t", "/opt/provision/venv-0/bin/provision has the label"),
        ("bin_t", "usr_t", "/usr/bin/python3 has the label"),
    ],
)
def test_selinux_has_to_know_what_units_execute_as_programs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    python: str | None,
    refused: str | None,
) -> None:
    _make(tmp_path, {**TREES["environment"][0], "/usr/bin/python3": ""})
    labels = {
        (tmp_path / path).resolve(): f"system_u:object_r:{kind}:s0\0".encode()
        for path, kind in ((PROGRAM.lstrip("/"), script), ("usr/bin/python3", python))
        if kind
    }

    def label_of(path: Path, name: str) -> bytes:
        assert name == "security.selinux"
        if path.resolve() in labels:
            return labels[path.resolve()]
        raise OSError

    # Only root can set labels; vm/test_selinux.py has real ones.
    monkeypatch.setattr(os, "getxattr", label_of)
    # Without SELinux, no label matters.
    require_label(tmp_path, PROGRAM, checkout=None)
    write(tmp_path / "sys/fs/selinux/enforce", b"1")
    if refused is None:
        require_label(tmp_path, PROGRAM, checkout=None)
        return
    with pytest.raises(UsageError) as caught:
        require_label(tmp_path, PROGRAM, checkout=None)
    assert refused in str(caught.value.details)


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What was labelled; the file systems of test machines need not know labels."""
    found: dict[str, bytes] = {}

    def setxattr(path: Path, name: str, value: bytes, *, follow_symlinks: bool) -> None:
        assert (name, follow_symlinks) == ("security.selinux", False)
        found[str(path)] = value

    monkeypatch.setattr(os, "setxattr", setxattr)
    return found


def _configured(root: Path, state: str) -> Layout:
    config = root / "etc/selinux/config"
    config.parent.mkdir(parents=True)
    config.write_text(f"SELINUX={state}\nSELINUXTYPE=targeted\n")
    return Layout(root, "demo")


@pytest.mark.parametrize("state", ["enforcing", "permissive"])
def test_containers_may_read_the_user_space_and_begin_with_its_programs(
    tmp_path: Path, labels: dict[str, bytes], state: str
) -> None:
    layout = _configured(tmp_path / "host", state)
    folder = layout.folder
    manifest = make_artifact(folder / ".partial-1/entry")
    label_entry(folder / ".partial-1/entry", manifest, layout)
    types = {path: label.decode() for path, label in labels.items()}
    entry = folder / ".partial-1/entry"
    everything = {str(path) for path in (folder, entry, *entry.rglob("*"))}
    modules = {path for path in everything if "/lib/modules" in path}
    program = str(entry / "driver/usr/bin/democtl")
    assert modules
    assert types.pop(program) == "system_u:object_r:container_file_t:s0\0"
    for path in modules:
        assert types.pop(path) == "system_u:object_r:modules_object_t:s0\0"
    assert set(types) == everything - modules - {program}
    assert set(types.values()) == {"system_u:object_r:container_ro_file_t:s0\0"}


def test_a_host_without_selinux_gets_no_labels(tmp_path: Path, labels: dict[str, bytes]) -> None:
    manifest = make_artifact(tmp_path / "entry")
    label_entry(tmp_path / "entry", manifest, Layout(tmp_path / "host", "demo"))
    label_entry(tmp_path / "entry", manifest, _configured(tmp_path / "off", "disabled"))
    assert labels == {}


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EPERM])
def test_a_policy_or_file_system_without_the_labels_is_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    def setxattr(*_args: object, **_words: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "setxattr", setxattr)
    manifest = make_artifact(tmp_path / "entry")
    layout = _configured(tmp_path / "host", "enforcing")
    if number == errno.EPERM:
        # That labels may not be set is an error.
        with pytest.raises(PermissionError):
            label_entry(tmp_path / "entry", manifest, layout)
        return
    label_entry(tmp_path / "entry", manifest, layout)
    assert "container_ro_file_t" in caplog.text
    assert "modules_object_t" in caplog.text
