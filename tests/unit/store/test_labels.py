"""SELinux labels of the store, on trees: what is labelled as what, and where not at all."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from kit.artifact import make_artifact
from provision.store.layout import Layout
from provision.store.obtain import label_entry

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_policy_or_file_system_without_the_labels_is_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    monkeypatch.setattr(os, "setxattr", _refusing(number))
    manifest = make_artifact(tmp_path / "entry")
    label_entry(tmp_path / "entry", manifest, _configured(tmp_path / "host", "enforcing"))
    assert "container_ro_file_t" in caplog.text
    assert "modules_object_t" in caplog.text


def test_that_labels_may_not_be_set_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "setxattr", _refusing(errno.EPERM))
    manifest = make_artifact(tmp_path / "entry")
    with pytest.raises(PermissionError):
        label_entry(tmp_path / "entry", manifest, _configured(tmp_path / "host", "enforcing"))


def _refusing(number: int) -> object:
    def setxattr(*_args: object, **_words: object) -> None:
        raise OSError(number, os.strerror(number))

    return setxattr
