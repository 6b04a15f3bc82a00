"""A guest of EL: the root tree of the Rocky Linux stand-in, with all that makes it boot.

The base image's own dnf installs it. What the repackaged packages lack are Debian's maintainer
scripts; what those would do is here. kernel-install's plugins stand for those of EL's dracut and
grubby: an initrd with the modules of this machine, and a GRUB menu whose first line is the newest
kernel.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from kit.cache import key_of
from kit.el_kernels import BASE_FILES, GUEST_PACKAGES, ElHost, el_host
from kit.files import write, write_all
from kit.fileserver import served
from kit.guest.recipe import Recipe
from kit.guest.tree import _FILES as _DEBIAN_FILES
from kit.guest.tree import VENV, within
from kit.process import run


@dataclass(frozen=True, slots=True)
class ElRecipe(Recipe):
    """A guest of the EL stand-in; `suite` is the Debian suite whose packages it is made of."""

    def digest(self) -> str:
        """Twelve digits that change with whatever the disk is made from."""
        return key_of(Recipe.digest(self), el_host().folder.name, Path(__file__))


EL_10 = ElRecipe("rocky-10", "trixie", "3.13", packages=GUEST_PACKAGES)

_GRUB = "/boot/grub2/grub.cfg"
_INITRD = """\
#!/bin/sh
# Stands for dracut's plugin: a full initrd takes minutes in emulation.
set -eu
kernel=$2 initrd=/boot/initramfs-$2.img
case $1 in
    add) ;;
    remove) rm -f "$initrd"; exit 0 ;;
    *) exit 0 ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir bin dev proc sys root modules
cp "$(command -v busybox)" bin/busybox
number=10
for module in crc32c_generic virtio_blk ext4; do
    modprobe --set-version "$kernel" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >order
while read -r path; do
    name=$number-$(basename "$path" .xz)
    case $path in
        *.xz) xz -dc "$path" >"modules/$name" ;;
        *) cp "$path" "modules/$name" ;;
    esac
    number=$((number + 1))
done <order
rm order
cat >init <<'END'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in /modules/*; do /bin/busybox insmod "$module"; done
until [ -b /dev/vda1 ]; do /bin/busybox sleep 0.1; done
/bin/busybox mount -t ext4 -o ro /dev/vda1 /root
exec /bin/busybox switch_root /root /sbin/init
END
chmod +x init
find . | cpio --quiet -o -H newc >"$initrd.new"
mv "$initrd.new" "$initrd"
"""
_MENU = f"""\
#!/bin/sh
# Stands for grubby's plugins: the image in /boot, an entry of the Boot Loader Specification for
# each kernel, and GRUB's menu of all, whose first is the newest.
set -eu
kernel=$2 entries=/boot/loader/entries
options='root=/dev/vda1 ro console=ttyS0 net.ifnames=0 mitigations=off'
mkdir -p "$entries" /boot/grub2
case $1 in
    add)
        cp "$4" "/boot/vmlinuz-$kernel"
        cat >"$entries/kit-$kernel.conf" <<END
title Rocky Linux ($kernel) 10.0
version $kernel
linux /boot/vmlinuz-$kernel
initrd /boot/initramfs-$kernel.img
options $options
END
        ;;
    remove) rm -f "/boot/vmlinuz-$kernel" "$entries/kit-$kernel.conf" ;;
    *) exit 0 ;;
esac
{{
    printf 'set default=0\\nset timeout=0\\n'
    for image in $(ls /boot/vmlinuz-* | sort -rV); do
        release=${{image#/boot/vmlinuz-}}
        printf 'menuentry "%s" {{\\n' "$release"
        printf '  linux %s %s\\n  initrd /boot/initramfs-%s.img\\n}}\\n' \\
            "$image" "$options" "$release"
    done
}} >{_GRUB}.new
mv {_GRUB}.new {_GRUB}
"""
_PLUGINS = {
    "usr/lib/kernel/install.d/50-kit-initrd.install": _INITRD,
    "usr/lib/kernel/install.d/90-kit-menu.install": _MENU,
}
_FILES = {
    "etc/fstab": "/dev/vda1 / ext4 noatime,errors=remount-ro 0 1\n",
    "etc/kernel/install.conf": "layout=other\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
    # A password that begins with an exclamation mark locks the account for keys too.
    "etc/shadow": "root:*:19000:0:99999:7:::\n",
    # Debian's maintainer scripts make PAM's configuration; a key needs none.
    "etc/ssh/sshd_config": """\
PermitRootLogin prohibit-password
UsePAM no
UseDNS no
Subsystem sftp internal-sftp
SetEnv PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
""",
}
# In the tree, once everything is installed. No dpkg: kernels come by RPM.
_FINISH = f"""
ssh-keygen -A
ldconfig
rm -rf /var/lib/dpkg /usr/bin/dpkg* /usr/bin/apt* /var/cache/dnf
ln -sfn ../run /var/run
python3 -m venv --without-pip {VENV}
"""


def make_el_tree(recipe: ElRecipe, tree: Path, public_key: str) -> None:
    """Fill `tree`, which doesn't exist yet, with a system that can boot the older kernel."""
    host = el_host()
    tree.mkdir()
    run(["tar", "-C", tree, "-xf", host.site.image])
    write_all(tree, {**_shared_files(), **_FILES})
    write_all(tree, _PLUGINS, 0o755)
    (tree / "etc/shadow").chmod(0o600)
    write(tree / "root/.ssh/authorized_keys", public_key)
    (tree / "root/.ssh").chmod(0o700)
    # GRUB's core looks there, and EL's menu is in grub2.
    (tree / "boot/grub2").mkdir()
    (tree / "boot/grub").symlink_to("grub2")
    _install(host, recipe, tree)
    within(tree, _FINISH)
    # The name that a disk's first menu has.
    (tree / f"boot/initrd.img-{host.older}").symlink_to(f"initramfs-{host.older}.img")
    run(["systemctl", f"--root={tree}", "enable", "systemd-networkd.service", "ssh.service"])
    # An empty one is filled at the first boot; two guests of one disk are never one machine.
    write(tree / "etc/machine-id", "")
    _add_requirements(recipe, tree)


def _shared_files() -> dict[str, str]:
    """What a guest of Debian has too: its name, and its two networks."""
    names = ("etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/systemd/")
    return {name: text for name, text in _DEBIAN_FILES.items() if name.startswith(names)}


def _install(host: ElHost, recipe: ElRecipe, tree: Path) -> None:
    repositories = tree / "etc/yum.repos.d/kit.repo"
    # rpm 4.20 gives scriptlets mounts of their own, for which the root has to be a mount itself.
    macros = tree / "etc/rpm/macros.kit"
    macros.write_text("%__transaction_unshare %{nil}\n")
    with served(host.mirror()) as url:
        repositories.write_text(host.repositories(url))
        packages = " ".join([*recipe.packages, BASE_FILES])
        dnf = "dnf -y -q --setopt=install_weak_deps=False --exclude=base-files install"
        within(tree, f"{dnf} {packages}\nsystemd-sysusers")
        within(tree, f"{dnf} kernel-{host.older.replace('-amd64', '')}")
    repositories.unlink()
    macros.unlink()


def _add_requirements(recipe: ElRecipe, tree: Path) -> None:
    """What provision needs from PyPI; provision itself comes per session."""
    packages = tree / VENV[1:] / f"lib/python{recipe.python}/site-packages"
    wheels = ["--only-binary=:all:", f"--python-version={recipe.python}"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
    run([*pip, "--target", packages, *wheels, *recipe.requirements()])
    within(tree, f"python3 -m compileall -q {VENV}/lib /usr/lib/python{recipe.python}")
