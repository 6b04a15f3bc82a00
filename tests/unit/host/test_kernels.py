"""Which kernels a host has, and which of them boots next."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kit.files import HostFiles, write_all
from kit.immutable import kernel_image
from provision.host.boot import image_release
from provision.host.kernels import (
    Kernels,
    find_kernels,
    is_running_host,
    kernel_flavour,
    kernel_release,
)

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
