"""The parts of a .run in the package store: made once, and again where one is lost."""

import hashlib
import os
from pathlib import Path
from types import MethodType

import pytest

from kit.runfile import manifest, write_runfile
from provision.build import versions
from provision.build.context_files import ensure_parts
from provision.build.package_store import PackageStore
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config
from provision.errors import ProvisionError
from provision.pin import RunfileSource
from provision.sources.vendor_sums import SumRecord

VERSION = "580.95.05"
_ROWS = ("kernel-open/Makefile 0644 KERNEL_MODULE_SRC INHERIT_PATH_DEPTH:1 MODULE:rm",)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    files: dict[str, bytes | Path] = {
        ".manifest": manifest(VERSION, _ROWS).encode(),
        "kernel-open/Makefile": b"all:\n",
    }
    return write_runfile(tmp_path / "driver.run", VERSION, files)


@pytest.fixture
def source(run: Path) -> RunfileSource:
    return RunfileSource(
        url="http://127.0.0.1:9/driver.run",
        sha256=hashlib.sha256(run.read_bytes()).hexdigest(),
        version=VERSION,
        architecture="x86_64",
    )


@pytest.fixture
def store(tmp_path: Path, run: Path) -> PackageStore:
    """A store that has the file."""
    made = PackageStore(tmp_path / "state")
    made.add_bytes(run.read_bytes())
    return made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, Config(), Catalogue([]), tmp_path / "state")


def test_parts_are_made_once_and_lie_under_their_checksums(
    store: PackageStore, source: RunfileSource
) -> None:
    first = ensure_parts(store, source)
    assert sorted(first) == ["files", "kernel-open", "layer"]
    assert {path.parent for path in first.values()} == {store.files}
    (index,) = store.runfiles.iterdir()
    os.utime(index, (0, 0))
    store.path(source.sha256).unlink()
    assert ensure_parts(store, source) == first
    # Garbage collection goes by the time of use.
    assert index.stat().st_mtime > 0


@pytest.mark.parametrize("damaged", [True, False])
def test_a_part_that_is_lost_or_damaged_is_made_again(
    store: PackageStore, source: RunfileSource, *, damaged: bool
) -> None:
    first = ensure_parts(store, source)
    if damaged:
        first["layer"].write_bytes(b"something else")
    else:
        first["layer"].unlink()
    again = ensure_parts(store, source)
    assert again == first
    assert store.whole(again["layer"].name)


def test_other_rules_are_other_parts(store: PackageStore, source: RunfileSource) -> None:
    ensure_parts(store, source)
    ensure_parts(store, source.model_copy(update={"leave_out": ("CUDA_LIB",)}))
    assert len(list(store.runfiles.iterdir())) == 2


def test_a_file_that_is_refused_leaves_nothing(store: PackageStore, source: RunfileSource) -> None:
    before = set(store.files.iterdir())
    with pytest.raises(ProvisionError):
        ensure_parts(store, source.model_copy(update={"version": "1.0"}))
    assert set(store.files.iterdir()) == before
    assert not store.runfiles.exists()


def test_the_record_of_sums_lies_beside_the_store(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = settings.root / "var/lib/provision"
    for writable, place in ((True, beside), (False, settings.state)):
        monkeypatch.setattr(os, "access", lambda *_, answer=writable: answer)
        asks = versions.vendor_sums(settings, again=True)
        assert isinstance(asks, MethodType)
        assert asks.__self__ == SumRecord(place, again=True)
