"""Flatcar's developer container: which partition of its disk is the root."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.gpt import partitioned_disk
from kit.probe import need_programs
from kit.process import run
from provision.build.base_image import copy_root
from provision.errors import ProvisionError

pytestmark = pytest.mark.usefixtures("_programs")


@pytest.fixture
def _programs() -> None:
    need_programs("sfdisk", "mke2fs", "debugfs", "bzip2")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/usr/bin").mkdir(parents=True)
    (tmp_path / "root/usr/bin/gcc").write_text("#!/bin/sh\n")
    return tmp_path / "root"


def _packed(disk: Path) -> Path:
    run(["bzip2", disk])
    return disk.with_name(f"{disk.name}.bz2")


def test_the_root_is_the_largest_partition(root: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    partitioned_disk(disk, [("EFI-SYSTEM", 4, None), ("ROOT", 9, root), ("OEM", 5, None)])
    copy_root(_packed(disk), tmp_path / "copy")
    assert (tmp_path / "copy/usr/bin/gcc").read_text() == "#!/bin/sh\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "disk.bz2", "root"]


def test_what_is_no_container_is_refused(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(1 << 20))
    with pytest.raises(ProvisionError):
        copy_root(_packed(disk), tmp_path / "a")
    partitioned_disk(disk, [("ROOT", 9, None)])
    disk.with_name("disk.bz2").unlink()
    with pytest.raises(ProvisionError):
        copy_root(_packed(disk), tmp_path / "b")
