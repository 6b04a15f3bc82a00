"""What a user of the host without rights makes root do: nothing.

Each attack is played by a real user, in a race where it needs one.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.fileserver import served
from kit.local_user import UID, as_user, attacking, public_folder
from provision.build import dkms_import
from provision.build.dkms_import import DkmsConf, import_dkms
from provision.build.unpack_source import unpack
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config
from provision.engine.scratch import scratch
from provision.pin import BasePin
from unit.engine.fake_engine import using


@pytest.fixture
def place() -> Iterator[Path]:
    with public_folder() as folder:
        yield folder


def _write_owned(archive: Path) -> None:
    """Write an archive whose files belong to the user."""
    with tarfile.open(archive, "w") as tar:
        for number in range(2000):
            entry = tarfile.TarInfo(f"tool/{number % 20}/{number}.c")
            entry.uid = entry.gid = UID
            entry.mode, entry.size = 0o666, 3
            tar.addfile(entry, io.BytesIO(b"abc"))


def test_an_archive_gives_no_user_a_file_that_root_uses(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vendor's archive names an ordinary user as the owner, who changes what root unpacks."""
    (place / "vendor").mkdir()
    _write_owned(place / "vendor/tool.tar")
    conf = DkmsConf("tool", "2.1", ())
    base = BasePin(image="debian:bookworm", digest=f"sha256:{'0' * 64}")
    monkeypatch.setattr(dkms_import, "inspect_source", lambda *_args, **_more: conf)
    monkeypatch.setattr(dkms_import, "ensure_distro_base", lambda *_args, **_more: base)
    root = place / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/os-release").write_text("ID=debian\nVERSION_ID=12\n")
    state = place / "state"
    state.mkdir()
    settings = Settings(root=root, config=Config(), catalogue=Catalogue([]), state=state)
    attack = """
for folder, _, names in os.walk(sys.argv[1]):
    for path in (os.path.join(folder, name) for name in names):
        if os.access(path, os.W_OK):
            open(path, "w").write("mine")
            print(path)
"""
    with served(place / "vendor") as url, attacking(attack, state) as changed:
        import_dkms(
            using(settings, lambda: None),  # type: ignore[arg-type, return-value]  # no engine
            f"{url}/tool.tar",
            kernel="6.1.0-56-amd64",
        )
    assert changed == []


def test_what_a_build_unpacks_belongs_to_root(place: Path) -> None:
    _write_owned(place / "tool.tar")
    (place / "source").mkdir()
    unpack(place / "tool.tar", place / "source", 1)
    assert {path.lstat().st_uid for path in place.rglob("*")} == {0}


def test_a_scratch_folder_is_closed_to_others(place: Path) -> None:
    with scratch(place / "state", "export") as folder:
        (folder / "file").touch()
        said = as_user("import os, sys; print(os.access(sys.argv[1], os.X_OK))", folder)
    assert said == "False\n"
