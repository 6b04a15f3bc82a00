"""Flatcar's developer container: which partition of its disk is the root."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.gpt import partitioned_disk
from kit.probe import need_programs
from provision.build.bootstrap import copy_root
from provision.errors import ProvisionError

pytestmark = pytest.mark.usefixtures("_programs")


@pytest.fixture
def _programs() -> None:
    need_programs("sfdisk", "mke2fs", "debugfs")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/usr/bin").mkdir(parents=True)
    (tmp_path / "root/usr/bin/gcc").write_text("#!/bin/sh\n")
    return tmp_path / "root"


@pytest.mark.parametrize(
    "layout",
    [
        (("EFI-SYSTEM", 20, False), ("ROOT", 9, True), ("USR-A", 12, False)),
        (("EFI-SYSTEM", 4, False), ("data", 9, True)),
    ],
    ids=["by its name", "the largest"],
)
def test_the_root_is_found(
    root: Path, tmp_path: Path, layout: tuple[tuple[str, int, bool], ...]
) -> None:
    disk = tmp_path / "disk"
    partitioned_disk(
        disk, [(name, size, root if is_root else None) for name, size, is_root in layout]
    )
    copy_root(disk, tmp_path / "copy")
    assert (tmp_path / "copy/usr/bin/gcc").read_text() == "#!/bin/sh\n"


def test_what_is_no_container_is_refused(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(1 << 20))
    with pytest.raises(ProvisionError):
        copy_root(disk, tmp_path / "a")
    partitioned_disk(disk, [("ROOT", 9, None)])
    with pytest.raises(ProvisionError):
        copy_root(disk, tmp_path / "b")
