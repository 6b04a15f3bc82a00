"""A Vagrant box for libvirt from the disk that the guests of the tests begin with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from kit.guest.disk import DISK_BYTES
from kit.guest.guest import Base
from kit.guest.recipe import WORLD_MAC
from kit.guest.tree import VENV
from kit.process import run

# What is the box's own business. root's shell opens to the key; there is no sudo.
_VAGRANTFILE = f"""\
Vagrant.configure("2") do |config|
  config.ssh.username = "root"
  config.ssh.private_key_path = File.expand_path("key", __dir__)
  config.ssh.insert_key = false
  config.ssh.sudo_command = "%c"
  # It is emulated, maybe.
  config.vm.boot_timeout = 1800
  config.ssh.connect_timeout = 180
  config.vm.provider :libvirt do |libvirt|
    libvirt.machine_type = "pc"
    libvirt.graphics_type = "none"
    # By which its network is set up.
    libvirt.management_network_mac = "{WORLD_MAC}"
  end
end
"""
# The file system begins behind the boot sector and GRUB (kit.guest.disk).
_FILE_SYSTEM = "?offset=1048576"
# What other tests want to find on that disk. A folder gets another name: to remove it, debugfs(8)
# would have to know each file.
_TIDY = f"""\
ln {VENV} /opt/kit
unlink {VENV}
rm /etc/docker/daemon.json
rm /etc/containers/containers.conf.d/kit.conf
"""


def make_box(base: Base, folder: Path) -> Path:
    """Make a box file in a folder.

    Source: https://vagrant-libvirt.github.io/vagrant-libvirt/boxes.html
    """
    parts = folder / "parts"
    parts.mkdir()
    disk = parts / "disk.raw"
    run(["qemu-img", "convert", "-O", "raw", base.disk, disk])
    run(["debugfs", "-w", "-f", "-", f"{disk}{_FILE_SYSTEM}"], stdin=_TIDY)
    run(["qemu-img", "convert", "-O", "qcow2", disk, parts / "box.img"])
    metadata = {"provider": "libvirt", "format": "qcow2", "virtual_size": DISK_BYTES >> 30}
    (parts / "metadata.json").write_text(json.dumps(metadata))
    (parts / "Vagrantfile").write_text(_VAGRANTFILE)
    shutil.copy(base.key, parts / "key")
    (parts / "key").chmod(0o600)
    box = folder / "debian.box"
    run(["tar", "-C", parts, "-cf", box, "metadata.json", "Vagrantfile", "key", "box.img"])
    shutil.rmtree(parts)
    return box
