"""Which kernels have an in-tree copy of a module, and whose initramfs is made again for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.errors import NotFoundError, ProvisionError
from provision.host.boot import in_tree, make_again, module_name

OLD, NEW = "6.1.0-47-amd64", "6.1.0-56-amd64"
# Stand for what lists an initramfs and what makes one, and note how they were called.
LISTS = """#!/bin/sh
case "$*" in
*{old}*) echo "-rw-r--r-- 1 root root 9 Jan 1 00:00 usr/lib/modules/{old}/kernel/net/sfc.ko.xz" ;;
*) echo usr/lib/modules/x/kernel/fs/ext4.ko ;;
esac
"""
MAKES = '#!/bin/sh\necho "${0##*/} $*" >>"{log}"\n'


def test_copies_are_found_however_they_are_written(tmp_path: Path) -> None:
    for release, line in {
        OLD: "kernel/drivers/net/sfc.ko.zst: kernel/drivers/mtd/mtd.ko.zst",
        NEW: "updates/dkms/nvidia-uvm.ko.xz:\nkernel/other.ko:",
    }.items():
        folder = tmp_path / f"lib/modules/{release}"
        folder.mkdir(parents=True)
        (folder / "modules.dep").write_text(f"{line}\n")
    names = ("sfc", "nvidia-uvm", "mtd", "nouveau")
    assert in_tree(tmp_path, names) == {OLD: {"sfc"}, NEW: {"nvidia_uvm"}}
    assert module_name("/a/snd-hda-intel.ko.gz") == "snd_hda_intel"


@pytest.mark.parametrize(
    ("programs", "without", "made"),
    [
        (("lsinitrd", "dracut"), ["sfc"], [f"dracut --force --kver {OLD}"]),
        (("lsinitramfs", "update-initramfs"), ["sfc"], [f"update-initramfs -u -k {OLD}"]),
        (("lsinitrd", "dracut"), ["nouveau"], []),
        # What is allowed again may be missing in each.
        (
            ("lsinitrd", "dracut"),
            [],
            [f"dracut --force --kver {OLD}", f"dracut --force --kver {NEW}"],
        ),
    ],
)
def test_what_has_the_module_is_made_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    programs: tuple[str, str],
    without: list[str],
    made: list[str],
) -> None:
    log = _programs(tmp_path, monkeypatch, programs)
    make_again([OLD, NEW], without)
    assert log.read_text().splitlines() == made


def test_a_host_that_can_not_make_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_given, **_more: None)
    with pytest.raises(NotFoundError):
        make_again([OLD], ["sfc"])


def test_a_program_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _programs(tmp_path, monkeypatch, ("lsinitrd", "dracut"))
    (tmp_path / "bin/dracut").write_text("#!/bin/sh\necho no space >&2; exit 1\n")
    with pytest.raises(ProvisionError):
        make_again([OLD], ["sfc"])


def _programs(folder: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]) -> Path:
    log = folder / "log"
    log.touch()
    (folder / "bin").mkdir()
    for name, text in zip(names, (LISTS, MAKES), strict=True):
        (folder / "bin" / name).write_text(text.replace("{old}", OLD).replace("{log}", str(log)))
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")
    return log
