"""A host below a folder, laid out as files: what the command line is run against.

Nothing of `provision` is replaced. The host counts as the running one because its /proc says so;
it pulls from a folder of signed images, so that no engine and no network is needed; and the
programs that would change the machine's own kernel, or boot another, are stand-ins on PATH.

`python -m kit.host_tree VERSION` keeps a host as a release left it, for later ones to read. Run it
with the code of that release, once; the files are never made again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from kit.artifact import (
    KERNEL,
    VERMAGIC,
    make_artifact,
    make_module,
    make_pin,
    with_program,
    write_manifest,
)
from kit.cache import REPOSITORY
from kit.files import BOOKWORM, HostFiles, plug_in, write, write_all
from kit.media import image_of
from kit.memory_registry import ECDSA, layer_of, new_key, public_pem
from kit.process import run
from kit.upstream import demo_recipe
from provision.agent.desired import load_desired, read_inputs
from provision.kmod.verify import verify_artifact
from provision.manifest import Check, HostNeeds, PciMatch, load_manifest
from provision.pin import Pin
from provision.registry import Reference
from provision.registry.find import facts_of
from provision.registry.repositories import writable_layout
from provision.registry.signatures import sign
from provision.store.layout import Layout

__all__ = ["DRIVER", "KERNEL", "NEXT", "HostTree"]

DRIVER = "demo"
NEXT = "6.1.0-56-amd64"
_IMAGES = "srv/images"
_KEY, _STRANGER = new_key(), new_key()
_SERIAL = 1_790_000_000
_SETTINGS = """\
catalogue = ["/srv/drivers"]

[registry]
folders = ["/srv/images"]

[trust]
keys = "/etc/provision/trust.d"

[policy]
build = "never"
"""
# Words of kmod 30's tools/modprobe.c and tools/rmmod.c; tests/vm runs the real programs. Beside the
# root, refused/NAME (or NAME-VERSION) is a module that the kernel refuses, with what modprobe says
# and what is logged, lacking/NAME one that the kernel's
# package has not, and opened/NAME one that someone opens a moment before it would go.
_MODPROBE = """\
#!/bin/sh
# Stand-in made from the messages of kmod 30; the guests of tests/vm run the real modprobe.
root='{root}' folder= kernel= finds=
case " $* " in *" -n "*) finds=yes ;; *) echo "modprobe $*" >>"$root/../calls" ;; esac
add() {{
    version=
    file=$folder/lib/modules/$kernel/$1.ko
    [ -z "$kernel" ] || version=$(tr '\\0' '\\n' 2>/dev/null <"$file" | sed -n 's/^version=//p')
    for refused in "$root/../refused/$1" "$root/../refused/$1-$version"; do
        [ -f "$refused" ] || continue
        echo "6,1,1,-;$(sed 1d "$refused")" >>"$root/dev/kmsg"
        echo >&2 "modprobe: ERROR: could not insert '$1': $(sed -n 1p "$refused")"
        exit 1
    done
    grep -q "^$1 " "$root/proc/modules" && return
    echo "$1 16384 0 - Live 0x0000000000000000 (OE)" >>"$root/proc/modules"
    mkdir -p "$root/sys/module/$1"
    echo live >"$root/sys/module/$1/initstate"
    [ -z "$version" ] || echo "$version" >"$root/sys/module/$1/version"
}}
while :; do
    case $1 in
        -d) folder=$2; shift 2 ;;
        -S) kernel=$2; shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
if [ -n "$finds" ]; then
    [ ! -e "$root/../lacking/$1" ]
    exit
fi
if [ -n "$kernel" ]; then add "$1"; else for name; do add "$name"; done; fi
"""
_RMMOD = """\
#!/bin/sh
# Stand-in made from the messages of kmod 30; the guests of tests/vm run the real rmmod.
root='{root}'
echo "rmmod $*" >>"$root/../calls"
if [ -e "$root/../opened/$1" ] || ! grep -q "^$1 [0-9]* 0 " "$root/proc/modules"; then
    echo "rmmod: ERROR: Module $1 is in use" >&2
    exit 1
fi
awk -v gone="$1" '
    $1 == gone {{ next }}
    index("," $4, "," gone ",") {{ sub(gone ",", "", $4); $3--; if ($4 == "") $4 = "-" }}
    {{ print }}' "$root/proc/modules" >"$root/proc/new"
mv "$root/proc/new" "$root/proc/modules"
rm -r "$root/sys/module/$1"
"""
# What guests print, by the scripts in templates/guest; whether a kernel boots is never asked here.
_QEMU = """\
#!/bin/sh
# Stand-in for a machine that boots; tests/vm boots real kernels.
case " $* " in *" lockdown=integrity "*|*" module.sig_enforce=1 "*) enforces=yes ;; esac
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
    # As of modules without a signature: all here are.
    if [ -n "${{enforces:-}}" ]; then
        echo "modprobe: ERROR: could not insert '$name': Key was rejected by service"
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

    @property
    def folder(self) -> Path:
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
    def make(cls, folder: Path) -> Self:
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

    def boot(self, release: str = KERNEL) -> None:
        """Let a kernel run, with nothing loaded."""
        HostFiles.boot(self, release)
        self.write("proc/modules", "")
        shutil.rmtree(self.root / "sys/module", ignore_errors=True)

    def have(
        self, name: str, references: int = 0, users: Sequence[str] = (), *, version: str = ""
    ) -> None:
        """Load a module that others use; one of the driver's is another build, or a version."""
        with (self.root / "proc/modules").open("a") as stream:
            stream.write(f"{_held(name, references, users)} Live 0x0\n")
        self.write(f"sys/module/{name}/initstate", "live\n")
        if version:
            self.write(f"sys/module/{name}/version", f"{version}\n")

    def hold(self, name: str, *users: str, references: int = 0) -> None:
        """Let others use a loaded module: modules that depend on it, and whoever has it open."""
        path = self.root / "proc/modules"
        held = f"{_held(name, references, users)} Live 0x0"
        lines = [held if row.split()[0] == name else row for row in path.read_text().splitlines()]
        path.write_text("".join(f"{line}\n" for line in lines))

    def use(self, module: str = DRIVER) -> None:
        """Let a process have a device of the loaded module open."""
        self.hold(module, references=1)

    def refuse(
        self, module: str = DRIVER, said: str = "Invalid argument", logged: str | None = None
    ) -> None:
        """Let the kernel refuse a module (`NAME-VERSION`: one version); what it says and logs."""
        text = f"{said}\n{f'{module}: no' if logged is None else logged}\n"
        write(self.folder / "refused" / module, text)

    def accept(self) -> None:
        shutil.rmtree(self.folder / "refused", ignore_errors=True)

    def lack(self, module: str) -> None:
        """Have no such module among the kernel's own."""
        write(self.folder / "lacking" / module, "")

    def open(self, module: str) -> None:
        """Let someone open a module's device a moment before it is taken out."""
        write(self.folder / "opened" / module, "")

    def loaded(self) -> set[str]:
        return {row.split()[0] for row in (self.root / "proc/modules").read_text().splitlines()}

    def calls(self) -> list[str]:
        """How kmod's programs were called since the last time."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def refuse_next(self, module: str = DRIVER) -> None:
        """Let the next kernel refuse a module, in a trial."""
        (self.folder / "refused/next").mkdir(parents=True, exist_ok=True)
        (self.folder / "refused/next" / module).touch()

    def want(
        self, more: str = "", *, version: str | None = None, vendor: str | None = None
    ) -> None:
        """Write a provision.toml that wants the driver, for a PCI vendor's devices if any."""
        cards = f'[[hardware.pci]]\nvendor = "{vendor}"\n\n' if vendor else ""
        recipe = demo_recipe(f'{cards}[source]\nkind = "deb"\n', flavour='package = "demo-dkms"\n')
        self.write(f"srv/drivers/{DRIVER}/driver.toml", recipe)
        self.write("etc/provision/trust.d/fleet.pub", public_pem(_KEY).decode())
        named = f'version = "{version}"\n' if version else ""
        self.configure(f"{_SETTINGS}{more}\n[drivers.{DRIVER}]\n{named}")

    def configure(self, text: str) -> None:
        self.write("etc/provision/provision.toml", text)

    def offer(
        self,
        version: str = "1.2",
        *,
        kernel: str = KERNEL,
        signed: str = "fleet",
        conflicts: tuple[str, ...] = (),
        cards: tuple[PciMatch, ...] = (),
        check: str | None = None,
    ) -> Pin:
        """Have an image in the folder, signed by `fleet`, by a `stranger`, or by `nobody`.

        `check` is what its own check runs: a script of the shell.
        """
        pin = make_pin(version=version, kernel=kernel)
        with tempfile.TemporaryDirectory() as scratch:
            vermagic = VERMAGIC.replace(KERNEL, kernel)
            made = make_artifact(
                Path(scratch), pin=pin, module=make_module(vermagic, version=version)
            )
            checked = None
            if check is not None:
                made = with_program(Path(scratch), made, f"#!/bin/sh\n{check}\n".encode())
                checked = Check(command=("democtl",))
            needs = HostNeeds(conflicts=conflicts)
            write_manifest(Path(scratch), made, host=needs, cards=cards, check=checked)
            image = image_of(pin, [layer_of(Path(scratch))])
        layout = writable_layout(self.root / _IMAGES / DRIVER, Reference("", DRIVER))
        tag = f"{version}-open-{kernel}.debian12"
        digest = layout.put_image(tag, image.manifest, image.blobs)
        if signed != "nobody":
            key = _KEY if signed == "fleet" else _STRANGER
            sign(layout, digest, facts_of(pin, _SERIAL), lambda data: key.sign(data, ECDSA))
        return pin

    def offer_only(self, version: str) -> None:
        """Have one image in the folder, in place of those that are there."""
        shutil.rmtree(self.root / _IMAGES)
        self.offer(version)

    def plug_in(self, *devices: str) -> None:
        """Put cards of the vendor 1234 into the host."""
        plug_in(self.root, *devices, vendor="1234")

    def carry(self) -> None:
        """Have the image in another folder, which was carried here, under the tag 1."""
        folder = self.folder / "carried" / DRIVER
        shutil.copytree(self.root / _IMAGES / DRIVER, folder)
        layout = writable_layout(folder, Reference("", DRIVER))
        name = next(tag for tag in layout.tags() if not tag.endswith(".sig"))
        layout.tag(layout.names[name].digest, "1")

    def store(self, name: str = "") -> Path:
        """A path of the driver in the store."""
        return self.root / "var/lib/provision" / DRIVER / name

    @property
    def layout(self) -> Layout:
        return Layout(self.root, DRIVER)

    def check_store(self) -> None:
        """See that what is in use, and what kernels would load, is whole."""
        current = self.layout.current
        links = [current] if current.is_symlink() else []
        for link in (*links, *self.layout.kernels.glob("[!.]*")):
            assert verify_artifact(link.resolve(strict=True)).findings == ()

    def uses(self) -> str:
        """The version of which modules, user space and vendor file are."""
        self.check_store()
        version = load_manifest(self.layout.current).pin.driver.version
        assert (self.root / f"sys/module/{DRIVER}/version").read_text() == f"{version}\n"
        assert f'"version": "{version}"' in self.layout.vendor_config.read_text()
        release = (self.root / "proc/sys/kernel/osrelease").read_text().strip()
        assert self.layout.current.readlink() == Path(
            self.layout.kernel_link(release).readlink().name
        )
        return version

    def leftovers(self) -> list[Path]:
        """What no run leaves, unless it is killed."""
        kept = {".lock", ".provision.toml"}
        return [path for path in self.root.rglob(".*") if path.name not in kept]

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


def _held(name: str, references: int, users: Sequence[str]) -> str:
    holders = "".join(f"{user}," for user in users) or "-"
    return f"{name} 16384 {references + len(users)} {holders}"


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()


_KEPT_HOSTS = REPOSITORY / "tests/data/kept-hosts"
# All but what `HostTree` makes anew, and what names the folder that it was in.
_KEPT = ("etc", "lib", "proc/modules", "proc/sys", "srv", "sys", "usr", "var")


def have_kept_host(host: HostTree, version: str) -> None:
    """Lay out a host on which a release has two versions of a driver, and the next kernel's."""
    boot_id = (host.root / "proc/sys/kernel/random/boot_id").read_text()
    run(["tar", "-C", host.root, "-xpJf", _KEPT_HOSTS / f"{version}.tar.xz"])
    # It runs now, and not since the boot in which it was kept.
    host.write("proc/sys/kernel/random/boot_id", boot_id)
    host.add_kernel(NEXT)
    # Templates and distros' data have changed since, on which a resolved Pin need not depend.
    desired = load_desired(host.root)
    inputs = read_inputs(host.root, desired)
    for driver in desired.drivers:
        path = host.root / "var/lib/provision" / driver / "state.json"
        state = json.loads(path.read_text())
        for release, kernel in state["kernels"].items():
            kernel["inputs"] = inputs.of(driver, release)
        path.write_text(json.dumps(state, indent=2) + "\n")


def _keep(version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        host = HostTree.make(Path(folder))
        host.want()
        host.offer()
        _apply(host)
        host.add_kernel(NEXT)
        for kernel in (KERNEL, NEXT):
            host.offer("2.0", kernel=kernel)
        host.want(version="2.0")
        _apply(host)
        _KEPT_HOSTS.mkdir(exist_ok=True)
        with tarfile.open(_KEPT_HOSTS / f"{version}.tar.xz", "x:xz") as archive:
            for name in _KEPT:
                if (host.root / name).exists():
                    archive.add(host.root / name, arcname=name)


def _apply(host: HostTree) -> None:
    program = Path(sys.executable).parent / "provision"
    run([program, "apply", "--root", host.root], env=host.environment)


if __name__ == "__main__":
    _keep(sys.argv[1])
