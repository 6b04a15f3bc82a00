"""A host below a folder, laid out as files: what the command line is run against.

Nothing of `provision` is replaced. The host counts as the running one because its /proc says so;
it pulls from a folder of signed images, so that no engine and no network is needed; and the
programs that would change the machine's own kernel, or boot another, are stand-ins on PATH.
"""

from __future__ import annotations

import hashlib
import shutil
import stat
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kit.artifact import (
    KERNEL,
    VERMAGIC,
    make_artifact,
    make_module,
    make_pin,
    write_manifest,
)
from kit.files import BOOKWORM, HostFiles, write_all
from kit.media import image_of
from kit.memory_registry import ECDSA, layer_of, new_key, public_pem
from provision.manifest import HostNeeds, PciMatch
from provision.registry.artifact_images import facts_of
from provision.registry.image_layout import writable_layout
from provision.registry.names import Reference
from provision.registry.signatures import sign

if TYPE_CHECKING:
    from provision.pin import Pin

__all__ = ["DRIVER", "KERNEL", "NEXT", "HostTree"]

DRIVER = "demo"
NEXT = "6.1.0-56-amd64"
_IMAGES = "srv/images"
_KEY, _STRANGER = new_key(), new_key()
_SERIAL = 1_790_000_000
_RECIPE = """\
schema = 1
name = "demo"
summary = "A driver for tests"
vendor = "No one"
homepage = "https://example.org"

[source]
kind = "deb"

[[kernels]]
works = ">=6.1"

[flavours.open]
licences = ["GPL-2.0-only"]
package = "demo-dkms"
[flavours.open.build]
command = ["make"]
modules = ["demo.ko"]

[container]
activation_flag = "OCI_DEMO"
driver_feature = ["compute"]
[container.features.compute]
"""
_SETTINGS = """\
catalogue = ["/srv/drivers"]

[registry]
folders = ["/srv/images"]

[trust]
keys = "/etc/provision/trust.d"

[policy]
build = "never"
"""
# Words of kmod 30's tools/modprobe.c and tools/rmmod.c; tests/vm runs the real programs.
_MODPROBE = """\
#!/bin/sh
# Stand-in made from the messages of kmod 30; the guests of tests/vm run the real modprobe.
root={root} entry=
while [ $# -gt 0 ]; do
    case $1 in
        -d) entry=$2; shift 2 ;;
        -S) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
[ $# -gt 0 ] || exit 0
if [ -e "$root/../refused/$1" ]; then
    echo "6,1,1,-;$1: no" >> "$root/dev/kmsg"
    echo "modprobe: ERROR: could not insert '$1': Invalid argument" >&2
    exit 1
fi
echo "$1 16384 0 - Live 0x0000000000000000 (OE)" >> "$root/proc/modules"
mkdir -p "$root/sys/module/$1"
echo live > "$root/sys/module/$1/initstate"
file=$(find "$entry/lib/modules" -name "$1.ko" | head -n 1)
modinfo -F version "$file" > "$root/sys/module/$1/version"
"""
_RMMOD = """\
#!/bin/sh
# Stand-in made from the messages of kmod 30; the guests of tests/vm run the real rmmod.
root={root}
if ! grep -q "^$1 [0-9]* 0 " "$root/proc/modules"; then
    echo "rmmod: ERROR: Module $1 is in use" >&2
    exit 1
fi
sed -i "/^$1 /d" "$root/proc/modules"
rm -r "$root/sys/module/$1"
"""
# What guests print, by the scripts in templates/guest; whether a kernel boots is never asked here.
_QEMU = """\
#!/bin/sh
# Stand-in for a machine that boots; tests/vm boots real kernels.
while [ $# -gt 0 ]; do
    case $1 in
        -initrd) initrd=$2 ;;
        file,id=console,path=*) console=${{1#file,id=console,path=}} ;;
    esac
    shift
done
names=$(grep -a '^names=' "$initrd" | tr -d "'")
echo @started
echo "provision: load" > "$console"
for name in ${{names#names=}}; do
    if [ -e "{root}/../refused/next/$name" ]; then
        echo "$name: Unknown symbol nobody (err -2)" >> "$console"
        echo "modprobe: ERROR: could not insert '$name': Unknown symbol in module"
        echo "demo: $name could not be loaded: journalctl -k shows the kernel's reason"
        echo "@load 1"
        echo "@ended 0"
        exit
    fi
    echo "demo: loaded $name"
done
echo "@load 0"
echo "@unload 0"
echo "@ended 0"
"""


class HostTree(HostFiles):
    """A Debian 12 host whose kernel runs; beside its root lies what is not the host's."""

    __slots__ = ()

    @property
    def folder(self) -> Path:
        """That has both."""
        return self.root.parent

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a command on this host: its programs, and no engine."""
        return {
            "PATH": f"{self.folder}/programs:/usr/sbin:/usr/bin:/sbin:/bin",
            "XDG_CACHE_HOME": f"{self.folder}/cache",
            "DOCKER_HOST": f"unix://{self.folder}/no-engine.sock",
        }

    @classmethod
    def make(cls, folder: Path) -> HostTree:
        """Make a host on which nothing is configured."""
        host = cls(folder / "root")
        host.write("etc/os-release", BOOKWORM)
        host.add_kernel(KERNEL)
        host.write("proc/sys/kernel/random/boot_id", _boot_id())
        host.write("proc/version", "Linux version 6 (gcc-12 (Debian 12.2.0-14) 12.2.0, GNU ld)\n")
        host.write("proc/mounts", "/dev/sda1 / ext4 rw 0 0\n")
        (host.root / "proc/1").mkdir()
        (host.root / "proc/1/root").symlink_to(host.root)
        host.write("dev/kmsg", "")
        host.boot(KERNEL)
        texts = {"modprobe": _MODPROBE, "rmmod": _RMMOD, "qemu-system-x86_64": _QEMU}
        programs = {name: text.format(root=host.root) for name, text in texts.items()}
        write_all(folder / "programs", programs, 0o755)
        return host

    def boot(self, release: str) -> None:
        """Let a kernel run, with nothing loaded."""
        HostFiles.boot(self, release)
        self.write("proc/modules", "")
        shutil.rmtree(self.root / "sys/module", ignore_errors=True)

    def use(self) -> None:
        """Let a process have a device of the loaded module open."""
        path = self.root / "proc/modules"
        path.write_text(path.read_text().replace(f"{DRIVER} 16384 0", f"{DRIVER} 16384 1"))

    def refuse(self, module: str = DRIVER) -> None:
        """Let the kernel refuse a module."""
        (self.folder / "refused").mkdir(exist_ok=True)
        (self.folder / "refused" / module).touch()

    def refuse_next(self, module: str = DRIVER) -> None:
        """Let the next kernel refuse a module, in a trial."""
        (self.folder / "refused/next").mkdir(parents=True, exist_ok=True)
        (self.folder / "refused/next" / module).touch()

    def want(
        self, more: str = "", *, version: str | None = None, vendor: str | None = None
    ) -> None:
        """Write a provision.toml that wants the driver from the folder of images.

        Args:
            vendor: PCI vendor of the devices that the driver is for; None: it needs no hardware.
        """
        cards = f'[[hardware.pci]]\nvendor = "{vendor}"\n\n' if vendor else ""
        recipe = _RECIPE.replace("[source]", f"{cards}[source]", 1)
        self.write(f"srv/drivers/{DRIVER}/driver.toml", recipe)
        self.write("etc/provision/trust.d/fleet.pub", public_pem(_KEY).decode())
        named = f'version = "{version}"\n' if version else ""
        self.configure(f"{_SETTINGS}{more}\n[drivers.{DRIVER}]\n{named}")

    def configure(self, text: str) -> None:
        """Write provision.toml."""
        self.write("etc/provision/provision.toml", text)

    def offer(
        self,
        version: str = "1.2",
        *,
        kernel: str = KERNEL,
        signed: str = "fleet",
        conflicts: tuple[str, ...] = (),
        cards: tuple[PciMatch, ...] = (),
    ) -> Pin:
        """Have an image in the folder, signed by `fleet`, by a `stranger`, or by `nobody`."""
        pin = make_pin(version=version, kernel=kernel)
        with tempfile.TemporaryDirectory() as scratch:
            vermagic = VERMAGIC.replace(KERNEL, kernel)
            made = make_artifact(
                Path(scratch), pin=pin, module=make_module(vermagic, version=version)
            )
            write_manifest(Path(scratch), made, host=HostNeeds(conflicts=conflicts), cards=cards)
            image = image_of(pin, [layer_of(Path(scratch))])
        layout = writable_layout(self.root / _IMAGES / "images" / DRIVER, Reference("", DRIVER))
        tag = f"{version}-open-{kernel}.debian12"
        digest = layout.put_image(tag, image.manifest, image.blobs)
        if signed != "nobody":
            key = _KEY if signed == "fleet" else _STRANGER
            sign(layout, digest, facts_of(pin, _SERIAL), lambda data: key.sign(data, ECDSA))
        return pin

    def plug_in(self, *devices: str) -> None:
        """Put cards of the vendor 1234 into the host."""
        for number, device in enumerate(devices, start=1):
            for name, value in {"vendor": "1234", "device": device, "class": "030000"}.items():
                self.write(f"sys/bus/pci/devices/0000:{number:02x}:00.0/{name}", f"0x{value}\n")

    def archive(self) -> Path:
        """The images of the folder as one file that can be carried."""
        path = self.folder / "driver.tar"
        with tarfile.open(path, "w") as archive:
            archive.add(self.root / _IMAGES / "images" / DRIVER, arcname="")
        return path

    def store(self, name: str = "") -> Path:
        """A path of the driver in the store."""
        return self.root / "var/lib/provision" / DRIVER / name

    def listing(self) -> dict[str, str]:
        """Every file of the host with what is in it; without locks."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            mode = path.lstat().st_mode
            name = str(path.relative_to(self.root))
            if stat.S_ISLNK(mode):
                found[name] = f"-> {path.readlink()}"
            elif stat.S_ISREG(mode) and not path.name.endswith(".lock"):
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()
