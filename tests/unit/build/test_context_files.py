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


class Vendor:
    """Where the file comes from, and how often it was asked for."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.asked = 0

    def fetch(self) -> Path:
        self.asked += 1
        return self.run

    @property
    def source(self) -> RunfileSource:
        return RunfileSource(
            url="https://driver.example/driver.run",
            sha256=hashlib.sha256(self.run.read_bytes()).hexdigest(),
            version=VERSION,
            architecture="x86_64",
        )


@pytest.fixture
def vendor(tmp_path: Path) -> Vendor:
    files: dict[str, bytes | Path] = {
        ".manifest": manifest(VERSION, _ROWS).encode(),
        "kernel-open/Makefile": b"all:\n",
    }
    return Vendor(write_runfile(tmp_path / "driver.run", VERSION, files))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, Config(), Catalogue([]), tmp_path / "state")


def test_parts_are_made_once_and_lie_under_their_checksums(
    settings: Settings, vendor: Vendor
) -> None:
    first = ensure_parts(settings, vendor.source, vendor.fetch)
    assert sorted(first) == ["files", "kernel-open", "layer"]
    assert {path.parent for path in first.values()} == {PackageStore(settings.state).files}
    (index,) = PackageStore(settings.state).runfiles.iterdir()
    os.utime(index, (0, 0))
    assert ensure_parts(settings, vendor.source, vendor.fetch) == first
    assert vendor.asked == 1
    # Garbage collection goes by the time of use.
    assert index.stat().st_mtime > 0


@pytest.mark.parametrize("damaged", [True, False])
def test_a_part_that_is_lost_or_damaged_is_made_again(
    settings: Settings, vendor: Vendor, *, damaged: bool
) -> None:
    first = ensure_parts(settings, vendor.source, vendor.fetch)
    if damaged:
        first["layer"].write_bytes(b"something else")
    else:
        first["layer"].unlink()
    again = ensure_parts(settings, vendor.source, vendor.fetch)
    assert again == first
    assert PackageStore(settings.state).whole(again["layer"].name)
    assert vendor.asked == 2


def test_other_rules_are_other_parts(settings: Settings, vendor: Vendor) -> None:
    ensure_parts(settings, vendor.source, vendor.fetch)
    other = vendor.source.model_copy(update={"leave_out": ("CUDA_LIB",)})
    ensure_parts(settings, other, vendor.fetch)
    assert vendor.asked == 2


def test_a_file_that_is_refused_leaves_nothing(settings: Settings, vendor: Vendor) -> None:
    wrong = vendor.source.model_copy(update={"version": "1.0"})
    with pytest.raises(ProvisionError):
        ensure_parts(settings, wrong, vendor.fetch)
    store = PackageStore(settings.state)
    assert not store.files.is_dir() or not list(store.files.iterdir())
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
