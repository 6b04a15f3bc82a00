"""Which kernels a host has, which of them boots next, wherever its boot loader finds it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kit.files import HostFiles, write_all
from kit.immutable import kernel_image
from kit.ostree import Sysroot
from provision.errors import NotFoundError
from provision.files import templates_dir
from provision.host.boot import (
    boot_entries,
    image_release,
    in_tree,
    make_again,
    module_name,
    other_slot,
)
from provision.host.kernels import (
    Kernels,
    find_kernels,
    is_running_host,
    kernel_flavour,
    kernel_release,
)
from provision.store.units import filled

DATA = Path(__file__).parents[2] / "data/updaters"
OLD, NEW = "6.1.0-47-amd64", "6.1.0-56-amd64"


def _says(text: str | None) -> Callable[[Sequence[str]], str | None]:
    return lambda _argv: text


def test_the_newest_complete_kernel_boots_next(tmp_path: Path) -> None:
    HostFiles(tmp_path).boot(OLD)
    for release in ("6.1.0-9-amd64", OLD, NEW):
        HostFiles(tmp_path).add_kernel(release)
    kernels = find_kernels(tmp_path)
    assert (kernels.running, kernels.pending) == (OLD, (NEW,))
    assert kernels.installed == (NEW, OLD, "6.1.0-9-amd64")
    assert kernels.relevant == (OLD, NEW)
    assert kernels.bootable == (OLD, NEW, "6.1.0-9-amd64")


def test_a_kernel_that_is_being_unpacked_does_not(tmp_path: Path) -> None:
    HostFiles(tmp_path).boot(OLD)
    HostFiles(tmp_path).add_kernel(OLD)
    HostFiles(tmp_path).write("lib/modules/6.1.0-57-amd64/modules.dep")
    HostFiles(tmp_path).write(f"boot/vmlinuz-{NEW}")
    (tmp_path / "lib/modules" / NEW).mkdir()
    kernels = find_kernels(tmp_path)
    assert kernels.pending == ()
    assert kernels.incomplete == ("6.1.0-57-amd64", NEW)


def test_the_running_kernel_counts_although_its_package_is_gone(tmp_path: Path) -> None:
    HostFiles(tmp_path).boot(OLD)
    HostFiles(tmp_path).add_kernel(NEW)
    assert find_kernels(tmp_path).relevant == (OLD, NEW)


def test_a_root_without_kernels(tmp_path: Path) -> None:
    assert find_kernels(tmp_path) == Kernels(None)
    assert find_kernels(tmp_path).relevant == ()


EL = [
    "5.14.0-427.40.1.el9_4.x86_64",
    "5.14.0-503.11.1.el9_5.x86_64",
    "5.14.0-503.11.1.el9_5.x86_64+rt",
    "5.14.0-503.11.1.el9_5.x86_64+debug",
]


@pytest.mark.parametrize(
    ("releases", "flavours"),
    [
        (EL, {"x86", "x86 debug", "x86 rt"}),
        (
            [
                "5.14.0-427.el9.aarch64+64k",
                "5.14.0-503.el9.aarch64",
                "5.14.0-503.el9.aarch64+64k",
                "5.14.0-503.el9.aarch64+64k-debug",
                "5.14.0-503.el9.aarch64+rt-64k",
            ],
            {"aarch64", "aarch64 64k", "aarch64 64k debug", "aarch64 rt 64k"},
        ),
        (["5.15.0-300.163.el9uek.x86_64", "5.15.0-1.el9_5.x86_64"], {"uek x86", "x86"}),
        (["4.18.0-553.rt7.342.el8_10.x86_64", "4.18.0-553.el8_10.x86_64"], {"rt7 x86", "x86"}),
        (["6.11.4-301.fc41.x86_64", "6.12.0-0.rc5.20241101git6c52.44.fc42.x86_64"], {"x86"}),
        (
            [
                "6.8.0-49-generic",
                "6.8.0-50-generic",
                "6.8.0-1018-nvidia",
                "6.8.0-1018-nvidia-64k",
                "6.8.0-1015-azure-fde",
            ],
            {"generic", "nvidia", "nvidia 64k", "azure fde"},
        ),
        (
            [
                "6.1.0-47-amd64",
                "6.12.48+deb13-amd64",
                "6.12.9+bpo-amd64",
                "6.1.0-0.deb11.6-amd64",
                "6.1.0-47-cloud-amd64",
                "6.1.0-47-rt-amd64",
            ],
            {"amd64", "cloud amd64", "rt amd64"},
        ),
        (["6.4.0-150600.23.25-default", "6.4.0-150600.23.25-64kb"], {"default", "64kb"}),
        (["6.1.112+", "6.6.43-g0123456789ab"], {""}),
    ],
)
def test_the_newest_kernel_of_each_flavour_may_boot_next(
    releases: list[str], flavours: set[str], tmp_path: Path
) -> None:
    assert {kernel_flavour(release) for release in releases} == flavours
    for release in releases:
        HostFiles(tmp_path).add_kernel(release)
    HostFiles(tmp_path).boot("0.1")
    pending = find_kernels(tmp_path).pending
    assert {kernel_flavour(release) for release in pending} == flavours
    assert len(pending) == len(flavours)


@pytest.mark.parametrize(
    ("files", "said", "default"),
    [
        # An EL and Fedora: the id of an entry of the Boot Loader Specification.
        ({"boot/grub2/grubenv": f"# GRUB\nsaved_entry=0123-{EL[0]}\nboot_success=0\n"}, {}, 0),
        ({"boot/grub2/grubenv": f"saved_entry=0123-{EL[2]}\n"}, {}, 2),
        ({"boot/grub2/grubenv": f"saved_entry=0123-{EL[0]}\n"}, {"grubby": EL[1]}, 1),
        # Debian and its kin.
        ({"etc/default/grub": f'GRUB_DEFAULT="Advanced>Debian, with Linux {EL[0]}"\n'}, {}, 0),
        (
            {
                "etc/default/grub": "GRUB_DEFAULT=saved\n",
                "boot/grub/grubenv": f"saved_entry=gnulinux-advanced-1>gnulinux-{EL[0]}-advanced-1",
            },
            {},
            0,
        ),
        # What is saved has no effect, unless that is the setting.
        (
            {
                "etc/default/grub": f'GRUB_DEFAULT="Advanced>Debian, with Linux {EL[0]}"\n',
                "boot/grub/grubenv": f"saved_entry={EL[2]}\n",
            },
            {},
            0,
        ),
        (
            {"etc/default/grub": "GRUB_DEFAULT=0\n", "boot/grub/grubenv": "saved_entry=2\n"},
            {},
            None,
        ),
        # The next boot only.
        ({"boot/grub/grubenv": f"saved_entry={EL[1]}\nnext_entry=x-{EL[0]}\n"}, {}, 0),
        # systemd-boot
        (
            {},
            {
                "bootctl": json.dumps(
                    [
                        {"id": f"1-{EL[1]}.conf", "version": EL[1], "isDefault": False},
                        {"id": f"1-{EL[0]}.conf", "version": EL[0], "isDefault": True},
                    ]
                )
            },
            0,
        ),
        ({}, {"bootctl": "no entries"}, None),
        ({"etc/default/grub": "GRUB_DEFAULT=0\nGRUB_TIMEOUT=5\n"}, {}, None),
        ({"boot/grub2/grubenv": "saved_entry=a kernel that is gone\n"}, {}, None),
    ],
)
def test_what_the_boot_loader_starts_comes_first(
    tmp_path: Path, files: dict[str, str], said: dict[str, str], default: int | None
) -> None:
    for release in EL:
        HostFiles(tmp_path).add_kernel(release)
    write_all(tmp_path, files)
    # Nothing runs there: it is what would boot.
    if not said:
        assert kernel_release(tmp_path) == EL[1 if default is None else default]
    HostFiles(tmp_path).boot("0.1")
    kernels = find_kernels(tmp_path, ask=lambda argv: said.get(argv[0]))
    first = () if default in {None, 1} else (EL[default or 0],)
    rest = [release for release in EL[1:] if release not in first]
    assert kernels.pending == (*first, *rest)
    assert kernels.notes == ()


def test_a_number_of_a_menu_entry_is_noted(tmp_path: Path) -> None:
    HostFiles(tmp_path).add_kernel(OLD)
    HostFiles(tmp_path).write("etc/default/grub", 'GRUB_DEFAULT="1>2"\n')
    assert "1>2" in find_kernels(tmp_path).notes[0]


def test_a_staged_deployment_boots_next(tmp_path: Path) -> None:
    text = (DATA / "rpm-ostree_staged.json").read_text()
    _ostree(tmp_path, text, "5.14.0-999.el9.x86_64")
    kernels = find_kernels(tmp_path, ask=_says(text))
    assert kernels.pending == ("5.14.0-999.el9.x86_64",)
    assert kernels.notes == ()


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"deployments": [{}]}'])
def test_an_ostree_host_that_does_not_say_is_noted(text: str | None, tmp_path: Path) -> None:
    _ostree(tmp_path, "{}", "5.14.0-1.el9.x86_64")
    kernels = find_kernels(tmp_path, ask=_says(text))
    assert kernels.pending == ()
    assert "rpm-ostree" in kernels.notes[0]


def test_a_deployment_that_is_not_there_is_noted(tmp_path: Path) -> None:
    text = (DATA / "rpm-ostree_staged.json").read_text()
    HostFiles(tmp_path).write("run/ostree-booted")
    assert "no kernel" in find_kernels(tmp_path, ask=_says(text)).notes[0]


# The beginning of one for arm64, and the line that it logs first.
_ARM64_IMAGE = (
    b"MZ" + bytes(0x36) + b"ARM\x64" + bytes(0x8000) + b"Linux version 6.6.95-flatcar (b@x"
)


@pytest.mark.parametrize("arm64", [False, True])
@pytest.mark.parametrize(("booted", "other"), [("a", "b"), ("b", "a")])
def test_flatcars_other_slot_boots_next(
    booted: str, other: str, tmp_path: Path, *, arm64: bool
) -> None:
    _flatcar(tmp_path, booted)
    image = _ARM64_IMAGE if arm64 else kernel_image("6.6.95-flatcar (build@x) #1")
    (tmp_path / f"boot/flatcar/vmlinuz-{other}").write_bytes(image)
    text = (DATA / "update-engine_need-reboot.txt").read_text()
    assert find_kernels(tmp_path, ask=_says(text)).pending == ("6.6.95-flatcar",)


def test_an_update_that_is_not_complete_boots_nothing(tmp_path: Path) -> None:
    _flatcar(tmp_path, "a")
    text = (DATA / "update-engine_downloading.txt").read_text()
    kernels = find_kernels(tmp_path, ask=_says(text))
    assert (kernels.pending, kernels.notes) == ((), ())


def test_an_updater_that_does_not_answer_is_noted(tmp_path: Path) -> None:
    _flatcar(tmp_path, "a")
    for text in (None, (DATA / "update-engine_refused.txt").read_text()):
        kernels = find_kernels(tmp_path, ask=_says(text))
        assert kernels.pending == ()
        assert "update_engine_client" in kernels.notes[0]


@pytest.mark.parametrize(
    "content",
    [b"", b"MZ" * 0x4000, b"\0" * 0x202 + b"HdrS" + b"\0" * 64, _ARM64_IMAGE[:0x8000]],
)
def test_an_image_that_is_none_is_noted(content: bytes, tmp_path: Path) -> None:
    _flatcar(tmp_path, "a")
    path = tmp_path / "boot/flatcar/vmlinuz-b"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="vmlinuz-b"):
        image_release(path)
    text = (DATA / "update-engine_need-reboot.txt").read_text()
    kernels = find_kernels(tmp_path, ask=_says(text))
    assert kernels.pending == ()
    assert "2079.3.2" in kernels.notes[0]


def _ostree(root: Path, text: str, release: str) -> None:
    HostFiles(root).write("run/ostree-booted")
    for deployment in json.loads(text).get("deployments", []):
        name = f"{deployment['checksum']}.{deployment['serial']}"
        folder = f"ostree/deploy/default/deploy/{name}/usr/lib/modules/{release}"
        HostFiles(root).write(f"{folder}/vmlinuz")


def _flatcar(root: Path, slot: str) -> None:
    (root / "boot/flatcar").mkdir(parents=True)
    HostFiles(root).write("proc/cmdline", f"BOOT_IMAGE=/flatcar/vmlinuz-{slot} mount.usr=/dev/x\n")


@pytest.mark.parametrize(
    ("boot", "init", "is_running"),
    [
        ("this", "itself", True),  # the machine's root, mounted into a container
        ("this", "/", False),  # a tree with the machine's /proc, as images are made in
        ("this", None, False),
        ("another", "itself", False),
        (None, "itself", False),
    ],
)
def test_a_root_is_the_machines_where_its_first_process_has_it(
    tmp_path: Path, boot: str | None, init: str | None, *, is_running: bool
) -> None:
    name = "proc/sys/kernel/random/boot_id"
    if boot is not None:
        own = (Path("/") / name).read_text()
        HostFiles(tmp_path).write(name, own if boot == "this" else "0-0-0-0-0\n")
    if init is not None:
        (tmp_path / "proc/1").mkdir(parents=True)
        (tmp_path / "proc/1/root").symlink_to(tmp_path if init == "itself" else init)
    assert is_running_host(tmp_path) is is_running
    assert is_running_host(Path("/"))


def test_where_the_first_process_can_not_be_looked_at_only_its_own_root_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_path: Path, _other: Path) -> bool:
        raise PermissionError

    name = "proc/sys/kernel/random/boot_id"
    HostFiles(tmp_path).write(name, (Path("/") / name).read_bytes())
    monkeypatch.setattr(Path, "samefile", denied)
    assert not is_running_host(tmp_path)
    assert is_running_host(Path("/"))


def _flatcar_entries(root: Path) -> None:
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
        _flatcar_entries,
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
    kernels = find_kernels(tmp_path, ask=_says(None))
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


@pytest.mark.parametrize("make", [_flatcar_entries, _fedora, _kernel_install, _unified])
def test_what_the_running_host_boots_does_not_count_for_another_root(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    make(mine)
    other.mkdir()
    for path in mine.iterdir():
        (other / path.name).symlink_to(path)
    assert boot_entries(other).releases == ()


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


def test_what_has_the_module_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    module = f"-rw-r--r-- 1 root root 9 Jan 1 00:00 usr/lib/modules/{OLD}/kernel/net/sfc.ko.xz"
    lists = (
        f'case "$*" in *{OLD}) echo "{module}" ;; *) echo usr/lib/modules/x/kernel/ext4.ko ;; esac'
    )
    programs = {"lsinitramfs": lists, "update-initramfs": f'echo "$*" >>"{log}"'}
    write_all(tmp_path / "bin", {n: f"#!/bin/sh\n{one}\n" for n, one in programs.items()}, 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    make_again([OLD, NEW], ["sfc"])
    assert log.read_text() == f"-u -k {OLD}\n"


def test_a_host_that_can_not_make_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_given, **_more: None)
    with pytest.raises(NotFoundError):
        make_again([OLD], ["sfc"])


def _tree(folder: Path, kernel: str) -> Path:
    """The least of a root that ostree deploys."""
    modules = folder / "usr/lib/modules" / kernel
    (folder / "usr/etc").mkdir(parents=True)
    modules.mkdir(parents=True)
    for name in ("vmlinuz", "initramfs.img"):
        (modules / name).write_text(f"{name} of {kernel}")
    (folder / "usr/lib/os-release").write_text("ID=fedora\nVERSION_ID=42\n")
    (folder / "usr/etc/os-release").symlink_to("../usr/lib/os-release")
    return folder


@pytest.fixture
def sysroot(tmp_path: Path) -> Sysroot:
    """A host that runs OLD."""
    made = Sysroot.here(tmp_path / "host")
    made.make()
    host = HostFiles(tmp_path / "host")
    host.write("run/ostree-booted")
    host.boot(OLD)
    made.deploy(made.commit(_tree(tmp_path / "old", OLD)))
    return made


def test_a_kernel_counts_as_long_as_a_deployment_has_it(sysroot: Sysroot, tmp_path: Path) -> None:
    host = tmp_path / "host"

    def found(booted: str) -> tuple[tuple[str, ...], set[str]]:
        said = {"rpm-ostree": sysroot.status(booted)}
        kernels = find_kernels(host, ask=lambda argv: said.get(argv[0]))
        assert (kernels.notes, kernels.warnings) == ((), ())
        return kernels.pending, set(kernels.bootable)

    (old,) = sysroot.deployments()
    assert found(old) == ((), {OLD})
    new = sysroot.commit(_tree(tmp_path / "new", NEW))
    assert found(old) == ((), {OLD})
    sysroot.deploy(new)
    assert found(old) == ((NEW,), {OLD, NEW})
    # The next boot.
    (host / "proc/sys/kernel/osrelease").write_text(f"{NEW}\n")
    assert found(new) == ((), {OLD, NEW})
    sysroot.undeploy(old)
    assert found(new) == ((), {NEW})


def test_a_deployment_changes_what_the_agents_unit_watches(
    sysroot: Sysroot, tmp_path: Path
) -> None:
    unit = filled("systemd/provision-kernel.path.j2", templates_dir(), documentation="file:///docs")
    (watched,) = re.findall(r"^PathChanged=/(ostree\S*)$", unit, re.MULTILINE)
    new = sysroot.commit(_tree(tmp_path / "new", NEW))
    before = (tmp_path / "host" / watched).stat().st_mtime_ns
    sysroot.deploy(new)
    assert (tmp_path / "host" / watched).stat().st_mtime_ns > before


def test_links_to_deployments_elsewhere_do_not_count(sysroot: Sysroot, tmp_path: Path) -> None:
    assert boot_entries(Path(sysroot.folder)).releases == (OLD,)
    other = tmp_path / "other"
    other.mkdir()
    for path in Path(sysroot.folder).iterdir():
        (other / path.name).symlink_to(path)
    assert boot_entries(other).releases == ()
