"""The folder that is served."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from provision.errors import UsageError
from provision.export.ignition.served_folder import (
    BUTANE_FILE,
    CONFIG,
    Written,
    check_output,
    prepare,
    write,
)
from unit.export.ignition.archives import make_options, write_toml


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where to."""
    return tmp_path / "out"


def _write(tmp_path: Path, folder: Path, **changes: object) -> Written:
    return write(prepare(make_options(tmp_path, **changes)), folder)


def test_everything_that_the_configuration_names_is_there(tmp_path: Path, folder: Path) -> None:
    written = _write(tmp_path, folder)
    document = json.loads((folder / CONFIG).read_text())
    contents = [file["contents"] for file in document["storage"]["files"]]
    fetched = {c["source"]: c["verification"]["hash"] for c in contents if "verification" in c}
    assert fetched == {served.url: f"sha512-{served.sha512}" for served in written.files}
    for served in written.files:
        content = (folder / served.name).read_bytes()
        assert hashlib.sha512(content).hexdigest() == served.sha512
        assert served.sha512[:12] in served.name
        assert served.url == f"https://files.example/provision/{served.name}"
    names = {CONFIG, BUTANE_FILE, *(served.name for served in written.files)}
    assert {path.name for path in folder.iterdir()} == names
    assert written.config.sha512 in (folder / BUTANE_FILE).read_text()


def test_the_same_again_changes_nothing(tmp_path: Path, folder: Path) -> None:
    assert _write(tmp_path, folder).changed
    inodes = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert not _write(tmp_path, folder).changed
    assert {path.name: path.stat().st_ino for path in folder.iterdir()} == inodes


def test_what_an_earlier_configuration_names_stays(tmp_path: Path, folder: Path) -> None:
    first = _write(tmp_path, folder)
    wish = make_options(tmp_path)
    (tmp_path / "oci-decorator").write_bytes((tmp_path / "oci-decorator").read_bytes() + b"newer")
    second = write(prepare(wish), folder)
    assert second.changed
    assert second.config.sha512 != first.config.sha512
    assert all((folder / served.name).is_file() for served in (*first.files, *second.files))


def test_a_damaged_copy_is_replaced(tmp_path: Path, folder: Path) -> None:
    served = _write(tmp_path, folder).files[0]
    (folder / served.name).write_bytes(b"half")
    _write(tmp_path, folder)
    assert (folder / served.name).stat().st_size == served.size


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    write_toml(tmp_path)
    with pytest.raises(UsageError):
        check_output(tmp_path)
    (tmp_path / CONFIG).write_text("{}")
    check_output(tmp_path)
    check_output(tmp_path / "new")
