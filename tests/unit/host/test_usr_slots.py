"""Which slot of Flatcar is the one that does not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.host.slots import other_slot


@pytest.mark.parametrize(
    ("booted", "other"),
    [
        ("BOOT_IMAGE=/flatcar/vmlinuz-a mount.usr=PARTUUID=7130 ro", "USR-B"),
        ("BOOT_IMAGE=/flatcar/vmlinuz-b mount.usr=PARTUUID=e03d ro", "USR-A"),
        ("root=/dev/vda9 ro", "USR-B"),
    ],
)
def test_the_other_slot_is_the_one_that_did_not_boot(
    tmp_path: Path, booted: str, other: str
) -> None:
    names = tmp_path / "dev/disk/by-partlabel"
    names.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text(f"{booted}\n")
    assert other_slot(tmp_path) is None
    for name in ("USR-A", "USR-B"):
        (names / name).touch()
    assert other_slot(tmp_path) == names / other


def test_other_hosts_have_no_slots(tmp_path: Path) -> None:
    assert other_slot(tmp_path) is None
