"""The root tree of a guest: apt, settings, and the container image that tests use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kit.debian import apt_sources, debian_tree, install, within
from kit.guest.recipe import CONTROL_MAC, WORLD_MAC, Recipe
from kit.process import run

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CONSOLE", "IMAGE_FILE", "RUNTIME", "VENV", "make_tree", "within"]

# A `docker import` archive of a container's root tree, in the guest.
IMAGE_FILE = "/root/image.tar"
VENV = "/opt/provision"
# The serial line of QEMU's machines.
CONSOLE = "ttyS0"
RUNTIME = "/usr/local/bin/oci-decorator-runtime"

# Answers slirp gives at fixed addresses: its name server is the third of the network.
_FILES = {
    "etc/hostname": "guest\n",
    "etc/hosts": "127.0.0.1 localhost guest\n",
    "etc/resolv.conf": "nameserver 10.0.2.3\n",
    "etc/fstab": "/dev/vda1 / ext4 noatime,errors=remount-ro 0 1\n",
    "etc/systemd/network/10-control.network": f"""\
[Match]
MACAddress={CONTROL_MAC}
[Link]
RequiredForOnline=no
[Network]
DHCP=ipv4
LinkLocalAddressing=no
[DHCPv4]
UseDNS=no
UseGateway=no
UseRoutes=no
""",
    "etc/systemd/network/20-world.network": f"""\
[Match]
MACAddress={WORLD_MAC}
[Network]
DHCP=ipv4
LinkLocalAddressing=no
[DHCPv4]
UseDNS=no
""",
    # With the network off, dockerd (After=network-online.target) would wait two minutes.
    "etc/systemd/system/systemd-networkd-wait-online.service.d/kit.conf": """\
[Service]
ExecStart=
ExecStart=/lib/systemd/systemd-networkd-wait-online --timeout=10
""",
    "etc/ssh/sshd_config.d/kit.conf": "PermitRootLogin prohibit-password\nUseDNS no\n",
    # Only what this machine has: a full initrd takes minutes in emulation.
    "etc/initramfs-tools/conf.d/kit": "MODULES=list\nCOMPRESS=lz4\nBUSYBOX=n\n",
    "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\n",
    "etc/dpkg/dpkg.cfg.d/kit": "force-unsafe-io\n",
    # The runtime itself comes with the product; its place is known.
    "etc/docker/daemon.json": f"""\
{{"runtimes": {{"oci-decorator": {{"path": "{RUNTIME}"}}}}}}
""",
    "etc/containers/containers.conf.d/kit.conf": f"""\
[engine.runtimes]
oci-decorator = ["{RUNTIME}"]
""",
    "etc/apt/apt.conf.d/kit": """\
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
""",
}
_GRUB = """\
GRUB_DEFAULT=0
GRUB_TIMEOUT=0
GRUB_DISABLE_LINUX_UUID=true
GRUB_DISABLE_OS_PROBER=true
GRUB_CMDLINE_LINUX="console={console} net.ifnames=0 mitigations=off {arguments}"
"""
# docker starts when its socket is first used: a boot takes a third of the time without it. The
# timers would hold dpkg's lock, or the processor, when a test doesn't expect it.
_ENABLED = ("systemd-networkd.service", "ssh.service", "docker.socket")
_DISABLED = ("docker.service", "containerd.service", "grub-common.service")
# Each program that a hook copies costs a second and more; this machine boots without these.
_NO_HOOKS = ("dmsetup", "fsck", "fuse", "keymap", "resume", "thermal")
_MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "podman-auto-update.timer",
    "podman-auto-update.service",
    "podman-restart.service",
)


def make_tree(recipe: Recipe, tree: Path, public_key: str) -> None:
    """Fill `tree`, which doesn't exist yet, with a system that can boot. Needs root."""
    debian_tree(recipe.suite, tree)
    for name, text in _FILES.items():
        _write(tree / name, text)
    _write(
        tree / "etc/default/grub",
        _GRUB.format(console=CONSOLE, arguments=recipe.kernel_arguments),
    )
    _write(tree / "root/.ssh/authorized_keys", public_key)
    (tree / "root/.ssh").chmod(0o700)
    _install_packages(recipe, tree)
    _set_up_services(tree)
    _make_environment(recipe, tree)
    _make_image(tree)
    if recipe.selinux:
        contexts = "/etc/selinux/default/contexts/files/file_contexts"
        within(tree, "setfiles -F -e /proc " + contexts + " /")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _install_packages(recipe: Recipe, tree: Path) -> None:
    if "grub-pc" in recipe.packages:
        preseed = "grub-pc grub-pc/install_devices_empty boolean true"
        within(tree, f"echo '{preseed}' | debconf-set-selections")
    sources = apt_sources(recipe.suite)
    install(recipe.suite, tree, recipe.packages, sources=sources)
    for hook in (tree / "usr/share/initramfs-tools/hooks").iterdir():
        if hook.name in _NO_HOOKS:
            # What can't be executed is left out.
            hook.chmod(0o644)


def _set_up_services(tree: Path) -> None:
    for verb, units in (("enable", _ENABLED), ("disable", _DISABLED), ("mask", _MASKED)):
        run(["systemctl", f"--root={tree}", verb, *units], check=verb != "disable")
    # An empty one is filled at the first boot; two guests of one disk are never one machine.
    _write(tree / "etc/machine-id", "")


def _make_environment(recipe: Recipe, tree: Path) -> None:
    """A virtual environment with what provision needs; provision itself comes per session."""
    within(tree, f"python3 -m venv --without-pip {VENV}")
    packages = tree / VENV[1:] / f"lib/python{recipe.python}/site-packages"
    wheels = ["--only-binary=:all:", f"--python-version={recipe.python}"]
    wheels += [f"--platform=manylinux_2_{minor}_x86_64" for minor in (28, 17)]
    wheels += ["--platform=manylinux2014_x86_64"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
    run([*pip, "--target", packages, *wheels, *recipe.requirements()])
    if recipe.python == ".".join(map(str, sys.version_info[:2])):
        # In emulation this takes minutes.
        compiled = [tree / VENV[1:] / "lib", tree / f"usr/lib/python{recipe.python}"]
        run([sys.executable, "-m", "compileall", "-q", "-s", tree, "-p", "/", *compiled])
    else:
        within(tree, f"python3 -m compileall -q {VENV}/lib /usr/lib/python{recipe.python}")


def _make_image(tree: Path) -> None:
    """An image of some 10 MB for containers: busybox with Debian's own loader and libraries."""
    script = f"""
        new=$(mktemp -d)
        cd "$new"
        mkdir -p dev etc/ld.so.conf.d proc root sys tmp usr/bin usr/lib usr/lib64 usr/sbin
        ln -s usr/bin usr/lib usr/lib64 usr/sbin .
        cp /etc/ld.so.conf etc
        cp /etc/ld.so.conf.d/* etc/ld.so.conf.d
        echo root:x:0:0:root:/root:/bin/sh >etc/passwd
        cp /bin/busybox usr/bin
        cp /sbin/ldconfig usr/sbin
        ldd /bin/busybox | grep -o '/[^ ]*' | while read -r library; do
            mkdir -p ".${{library%/*}}"
            cp "$library" ".$library"
        done
        for name in $(busybox --list); do
            test -e usr/bin/$name || ln -s busybox usr/bin/$name
        done
        rm usr/bin/ldconfig 2>/dev/null || true
        ldconfig -r .
        tar -cf {IMAGE_FILE} .
        cd /
        rm -r "$new"
    """
    within(tree, script)
