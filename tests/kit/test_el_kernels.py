"""Kernels as packages of EL: which modules they have, and their scriptlets."""

from __future__ import annotations

from kit.el_kernels import ScriptedRpm, needed_modules

_DEPENDENCIES = """\
kernel/lib/crc16.ko.xz:
kernel/fs/mbcache.ko.xz:
kernel/fs/ext4/ext4.ko.xz: kernel/lib/crc16.ko.xz kernel/fs/mbcache.ko.xz
kernel/drivers/char/hw_random/virtio-rng.ko.xz:
kernel/drivers/net/veth.ko.xz:
"""


def test_a_module_comes_with_what_it_depends_on() -> None:
    assert needed_modules(_DEPENDENCIES, ["ext4"]) == {
        "kernel/fs/ext4/ext4.ko.xz",
        "kernel/fs/mbcache.ko.xz",
        "kernel/lib/crc16.ko.xz",
    }


def test_a_hyphen_and_an_underscore_are_one_and_what_is_built_in_is_no_file() -> None:
    found = needed_modules(_DEPENDENCIES, ["virtio_rng", "virtio_pci"])
    assert found == {"kernel/drivers/char/hw_random/virtio-rng.ko.xz"}


def test_scriptlets_are_before_the_files() -> None:
    rpm = ScriptedRpm("kernel-core", "6.12.94+deb13", "amd64", scripts="%posttrans\ntrue\n")
    lines = rpm.spec(['"/usr/lib/modules/x"']).splitlines()
    assert lines.index("%posttrans") < lines.index("%files") < len(lines) - 1
    assert rpm.file == "kernel-core-6.12.94+deb13-amd64.x86_64.rpm"
