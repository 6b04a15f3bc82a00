"""Every kernel that a host may boot counts, wherever the boot loader finds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kit.files import HostFiles
from kit.immutable import kernel_image
from provision.host.boot import boot_entries, other_slot
from provision.host.kernels import find_kernels

OLD, NEW = "6.1.0-47-amd64", "6.1.0-56-amd64"


def _flatcar(root: Path) -> None:
    HostFiles(root).write("boot/flatcar/vmlinuz-a", kernel_image(f"{NEW} (build@x) #1"))
    HostFiles(root).write("boot/flatcar/vmlinuz-b", kernel_image(f"{OLD} (build@x) #1"))


def _fedora(root: Path) -> None:
    for release in (NEW, OLD):
        HostFiles(root).write(f"boot/vmlinuz-{release}")


def _kernel_install(root: Path) -> None:
    """What kernel-install(8) lays out for systemd-boot: the release is a folder's name."""
    for release in (NEW, OLD):
        HostFiles(root).write(f"efi/1234/{release}/linux")


def _coreos_entries(root: Path) -> None:
    """The images of deployments lie in /boot, in a folder a deployment."""
    for name, release in (("ostree-2", NEW), ("ostree-1", OLD)):
        HostFiles(root).write(f"boot/ostree/fedora-coreos-{name}/vmlinuz-{release}")


def _folders_are_absolute_links(root: Path) -> None:
    """On the host itself they lead to folders of its own."""
    _fedora(root)
    (root / "sysroot").mkdir()
    (root / "boot").rename(root / "sysroot/boot")
    (root / "boot").symlink_to("/sysroot/boot")


def _unified(root: Path) -> None:
    for name in (f"1234-{NEW}.efi", f"1234-{OLD}+3-1.efi"):
        HostFiles(root).write(f"boot/efi/EFI/Linux/{name}")


@pytest.mark.parametrize(
    "make",
    [
        _flatcar,
        _fedora,
        _kernel_install,
        _coreos_entries,
        _folders_are_absolute_links,
        _unified,
    ],
)
def test_what_may_boot_again_is_found(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path)
    found = boot_entries(tmp_path)
    assert set(found.releases) == {OLD, NEW}
    assert found.notes == ()
    HostFiles(tmp_path).write("proc/sys/kernel/osrelease", f"{NEW}\n")
    kernels = find_kernels(tmp_path, ask=_answer(None))
    assert set(kernels.others) == {OLD}
    assert set(kernels.bootable) == {OLD, NEW}
    # It is made for what boots next; what may boot again keeps what it has.
    assert OLD not in kernels.relevant


def test_what_names_no_release_counts_for_nothing(tmp_path: Path) -> None:
    for name in ("vmlinuz-0-rescue-1234", "vmlinuz", "config-6.1.0-47-amd64", "memtest86+.bin"):
        HostFiles(tmp_path).write(f"boot/{name}")
    for name in ("EFI/Linux/shellx64.efi", "EFI/debian/grubx64.efi", "dumps/a/linux"):
        HostFiles(tmp_path).write(f"boot/efi/{name}")
    assert boot_entries(tmp_path).releases == ()


def test_what_cannot_be_read_leaves_a_doubt(tmp_path: Path) -> None:
    HostFiles(tmp_path).write("run/ostree-booted")
    HostFiles(tmp_path).write("boot/flatcar/vmlinuz-a", b"MZ" * 0x4000)
    found = boot_entries(tmp_path)
    assert found.releases == ()
    text = " ".join(found.notes)
    assert len(found.notes) == 2
    assert "deployment" in text
    assert "slot a" in text


@pytest.mark.parametrize("name", ["boot/efi", "boot/vmlinuz-1", "boot/ostree"])
def test_a_link_that_leads_in_a_circle_leaves_a_doubt(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).symlink_to(Path(name).name)
    boot_entries(tmp_path)
    HostFiles(tmp_path).write("boot/flatcar/vmlinuz-b", b"\x00" * 0x202 + b"HdrS" + b"\0\0")
    assert any("slot b" in doubt for doubt in boot_entries(tmp_path).notes)


@pytest.mark.parametrize("make", [_flatcar, _fedora, _kernel_install, _unified])
def test_what_the_running_host_boots_does_not_count_for_another_root(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    make(mine)
    other.mkdir()
    for path in mine.iterdir():
        (other / path.name).symlink_to(path)
    assert boot_entries(other).releases == ()


def _answer(text: str | None) -> Callable[[Sequence[str]], str | None]:
    return lambda _argv: text


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
