"""SELinux labels of store entries, on trees: what is labelled as what, and where not at all."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from provision.install.labels import label_entry
from provision.install.layout import Layout
from provision.install.store import add

if TYPE_CHECKING:
    from pathlib import Path

_SHORT = "0123456789ab"


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What was labelled; the file systems of test machines need not know labels."""
    found: dict[str, bytes] = {}

    def setxattr(path: Path, name: str, value: bytes, *, follow_symlinks: bool) -> None:
        assert (name, follow_symlinks) == ("security.selinux", False)
        found[str(path)] = value

    monkeypatch.setattr(os, "setxattr", setxattr)
    return found


def _fill(folder: Path) -> None:
    (folder / "driver/usr/lib").mkdir(parents=True)
    (folder / "driver/usr/lib/libx.so.1").touch()
    (folder / "driver/usr/lib/libx.so").symlink_to("libx.so.1")
    (folder / "lib/modules/6.1.0").mkdir(parents=True)
    (folder / "lib/modules/6.1.0/x.ko").touch()
    (folder / "manifest.json").touch()


def _entry(folder: Path) -> Path:
    _fill(folder)
    return folder


def _configured(root: Path, state: str) -> Path:
    config = root / "etc/selinux/config"
    config.parent.mkdir(parents=True)
    config.write_text(f"SELINUX={state}\nSELINUXTYPE=targeted\n")
    return root


@pytest.mark.parametrize("state", ["enforcing", "permissive"])
def test_containers_may_read_the_user_space_and_the_kernel_the_modules(
    tmp_path: Path, labels: dict[str, bytes], state: str
) -> None:
    entry = _entry(tmp_path / "entry")
    label_entry(entry, _configured(tmp_path / "host", state))
    readable = b"system_u:object_r:container_ro_file_t:s0\0"
    modules = b"system_u:object_r:modules_object_t:s0\0"
    below = ("", "/usr", "/usr/lib", "/usr/lib/libx.so", "/usr/lib/libx.so.1")
    assert labels == {
        **{f"{entry}/driver{name}": readable for name in below},
        **{f"{entry}/lib/modules{name}": modules for name in ("", "/6.1.0", "/6.1.0/x.ko")},
    }


def test_a_host_without_selinux_gets_no_labels(tmp_path: Path, labels: dict[str, bytes]) -> None:
    label_entry(_entry(tmp_path / "a"), tmp_path / "host")
    label_entry(_entry(tmp_path / "b"), _configured(tmp_path / "off", "disabled"))
    assert labels == {}


def test_an_entry_is_labelled_before_it_has_its_name(
    tmp_path: Path, labels: dict[str, bytes]
) -> None:
    layout = Layout(_configured(tmp_path / "host", "enforcing"), "x")
    add(layout, _SHORT, _fill)
    assert labels
    assert not [path for path in labels if path.startswith(str(layout.entry(_SHORT)))]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_policy_or_file_system_without_the_labels_is_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    monkeypatch.setattr(os, "setxattr", _refusing(number))
    label_entry(_entry(tmp_path / "entry"), _configured(tmp_path / "host", "enforcing"))
    assert "container_ro_file_t" in caplog.text
    assert "modules_object_t" in caplog.text


def test_that_labels_may_not_be_set_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "setxattr", _refusing(errno.EPERM))
    with pytest.raises(PermissionError):
        label_entry(_entry(tmp_path / "entry"), _configured(tmp_path / "host", "enforcing"))


def _refusing(number: int) -> object:
    def setxattr(*_args: object, **_words: object) -> None:
        raise OSError(number, os.strerror(number))

    return setxattr
