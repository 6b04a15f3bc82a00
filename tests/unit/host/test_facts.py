"""Facts of hosts, read from trees."""

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.files import HostFiles
from provision.distros import version_key
from provision.errors import NotFoundError
from provision.host.facts import Distro, Engine, PciDevice, read_facts
from provision.host.kernels import kernel_order

OS_RELEASES = sorted((Path(__file__).parents[2] / "data/os-release").iterdir())
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def host(root: Path, os_release: str = "debian_12") -> HostFiles:
    """A host's root, of Debian if nothing else is said."""
    known = {path.name: path for path in OS_RELEASES}
    made = HostFiles(root)
    made.write("etc/os-release", known[os_release].read_text())
    return made


@pytest.fixture
def tree(tmp_path: Path) -> HostFiles:
    return host(tmp_path)


@pytest.mark.parametrize("path", OS_RELEASES, ids=lambda path: path.name)
def test_the_distro_is_what_its_file_is_called(path: Path, tmp_path: Path) -> None:
    name, version, variant = [*path.name.split("_"), ""][:3]
    found = read_facts(host(tmp_path, path.name).root).distro
    assert (found.id, found.version, found.variant) == (name, version, variant)


def test_os_release_may_lie_in_usr(tmp_path: Path) -> None:
    path = tmp_path / "usr/lib/os-release"
    path.parent.mkdir(parents=True)
    path.write_text("ID=sid-like\n")
    assert read_facts(tmp_path).distro == Distro("sid-like", "", "", (), "", "Linux")


def test_a_folder_that_is_no_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        read_facts(tmp_path)
    assert f"{tmp_path}/etc/os-release" in (caught.value.details or "")


def test_an_empty_host_has_facts_all_the_same(tree: HostFiles) -> None:
    facts = read_facts(tree.root)
    assert facts.kernel is None
    assert facts.arch == os.uname().machine
    assert facts.engines == ()
    assert (facts.secure_boot, facts.lockdown, facts.selinux) == ("absent", None, "absent")
    assert facts.immutable is None
    assert facts.pci == ()


def test_kernels_are_ordered_by_their_numbers() -> None:
    releases = [
        "5.14.0-427.13.1.el9_4.x86_64",
        "5.14.0-503.el9.x86_64",
        "5.14.0-503.11.1.el9_5.x86_64",
        "6.1.0-9-amd64",
        "6.1.0-47-amd64",
        "6.8.0-45-generic",
        "6.12.107+deb13-amd64",
        "6.12.117+deb13-amd64",
        "6.13~rc1-amd64",
        "6.13-amd64",
        "6.14~rc1",
        "6.14",
    ]
    assert sorted(set(releases), key=kernel_order) == releases


@given(
    st.lists(
        st.from_regex(r"[1-9]\.[1-9][0-9]?\.0-[1-9][0-9]{0,2}-amd64", fullmatch=True), max_size=5
    )
)
def test_the_order_of_debians_kernels_is_debians(releases: list[str]) -> None:
    assert sorted(releases, key=kernel_order) == sorted(releases, key=version_key)


@pytest.mark.parametrize(
    ("number", "order", "arch"),
    [
        (62, "<", "x86_64"),
        (183, "<", "aarch64"),
        (21, "<", "ppc64le"),
        (22, ">", "s390x"),
        (243, "<", "riscv64"),
    ],
)
def test_the_architecture_of_another_root_is_that_of_its_programs(
    number: int, order: str, arch: str, tree: HostFiles
) -> None:
    ident = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02") + bytes(10)
    tree.write("usr/bin/env", ident + struct.pack(f"{order}HH", 3, number))
    assert read_facts(tree.root).arch == arch


def test_a_link_out_of_the_root_says_nothing_about_it(tree: HostFiles, tmp_path: Path) -> None:
    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    outside.write_bytes(b"\x7fELF\x02\x01" + bytes(10) + struct.pack("<HH", 3, 22))
    (tree.root / "bin").mkdir()
    (tree.root / "bin/sh").symlink_to(outside)
    tree.write("usr/bin/env", b"#!/bin/sh\n")
    assert read_facts(tree.root).arch == os.uname().machine


def test_engines_are_found_by_program_or_socket(tree: HostFiles) -> None:
    tree.write("usr/sbin/dockerd")
    tree.write("run/docker.sock")
    tree.write("opt/bin/podman")
    tree.write("run/k3s/containerd/containerd.sock")
    (tree.root / "usr/bin").mkdir()
    (tree.root / "usr/bin/crio").symlink_to("/opt/crio/bin/crio")
    assert read_facts(tree.root).engines == (
        Engine("docker", "/usr/sbin/dockerd", "/run/docker.sock"),
        Engine("podman", "/opt/bin/podman", None),
        Engine("containerd", None, "/run/k3s/containerd/containerd.sock"),
        Engine("cri-o", "/usr/bin/crio", None),
    )


RW = "/dev/sda1 / ext4 rw,relatime 0 0\n"
RO = "/dev/sda1 / btrfs ro,relatime 0 0\n"
USR_RO = f"{RW}/dev/dm-0 /usr ext4 ro,relatime 0 0\n"
LEAP = ("etc/os-release", "opensuse-leap_15.5")
UPDATER = ("usr/sbin/transactional-update", "")
RUNNING, OLDER, HALF = "6.1.0-47-amd64", "6.1.0-9-amd64", "6.1.0-56-amd64"


@pytest.mark.parametrize(
    ("field", "value", "files"),
    [
        # The running kernel is what /proc says; else it is the newest that is complete.
        (
            "kernel",
            RUNNING,
            {
                "proc/sys/kernel/osrelease": f"{RUNNING}\n",
                f"usr/lib/modules/{HALF}/modules.dep": "",
            },
        ),
        *(
            (
                "kernel",
                RUNNING,
                {
                    f"{folder}/{OLDER}/modules.dep": "",
                    f"{folder}/{RUNNING}/modules.dep": "",
                    f"{folder}/{HALF}/kernel/x": "",
                },
            )
            for folder in ("lib/modules", "usr/lib/modules")
        ),
        ("secure_boot", "enabled", {SECURE_BOOT: b"\x06\x00\x00\x00\x01"}),
        ("secure_boot", "disabled", {SECURE_BOOT: b"\x06\x00\x00\x00\x00"}),
        ("secure_boot", "absent", {"sys/firmware/efi/efivars/Boot0000-8be4": ""}),
        ("secure_boot", "unknown", {"sys/firmware/efi/systab": ""}),
        ("secure_boot", "absent", {"sys/firmware/memmap": ""}),
        *(
            ("lockdown", state, {"sys/kernel/security/lockdown": text})
            for text, state in (
                ("[none] integrity confidentiality\n", "none"),
                ("none [integrity] confidentiality\n", "integrity"),
                ("what\n", None),
            )
        ),
        ("selinux", "enforcing", {"sys/fs/selinux/enforce": "1"}),
        ("selinux", "permissive", {"sys/fs/selinux/enforce": "0"}),
        (
            "selinux",
            "disabled",
            {"sys/fs/cgroup/x": "", "etc/selinux/config": "SELINUX=enforcing\n"},
        ),
        (
            "selinux",
            "permissive",
            {"etc/selinux/config": "# SELINUX=disabled\nSELINUX=permissive\n"},
        ),
        ("selinux", "disabled", {"etc/selinux/config": "SELINUXTYPE=targeted\n"}),
        (
            "immutable",
            "ostree",
            {"etc/os-release": "fedora_41_coreos", "run/ostree-booted": "", "proc/mounts": RW},
        ),
        (
            "immutable",
            "flatcar",
            {"etc/os-release": "flatcar_3227.2.4", "proc/mounts": USR_RO},
        ),
        ("immutable", "transactional", dict([LEAP, UPDATER])),
        ("immutable", "transactional", dict([LEAP, UPDATER, ("proc/mounts", RO)])),
        ("immutable", None, dict([LEAP, UPDATER, ("proc/mounts", RW)])),
        ("immutable", "read-only", {"proc/mounts": USR_RO}),
        ("immutable", "read-only", {"proc/mounts": RO}),
        ("immutable", None, {"proc/mounts": RO + RW}),
        ("immutable", None, {"proc/mounts": "/dev/sda1 /srv ext4 ro 0 0\n"}),
    ],
)
def test_a_fact_is_what_files_say(
    tmp_path: Path, field: str, value: str | None, files: dict[str, str | bytes]
) -> None:
    tree = host(tmp_path, str(files.get("etc/os-release", "debian_12")))
    for name, content in files.items():
        if name != "etc/os-release":
            tree.write(name, content)
    assert getattr(read_facts(tree.root), field) == value


def test_pci_devices_are_read_as_lspci_prints_them(tree: HostFiles) -> None:
    folder = "sys/bus/pci/devices"
    for address, ids in {
        "0000:01:00.0": ("0x10de", "0x20b0", "0x030200"),
        "0000:00:02.0": ("0x8086", "0x3e92", "0x030000"),
    }.items():
        for name, value in zip(("vendor", "device", "class"), ids, strict=True):
            tree.write(f"{folder}/{address}/{name}", f"{value}\n")
    (tree.root / folder / "0000:00:02.0/driver").symlink_to("../../../bus/pci/drivers/i915")
    (tree.root / folder / "0000:00:1f.0").mkdir()
    assert read_facts(tree.root).pci == (
        PciDevice("0000:00:02.0", "8086", "3e92", "0300", "i915"),
        PciDevice("0000:01:00.0", "10de", "20b0", "0302", None),
    )
