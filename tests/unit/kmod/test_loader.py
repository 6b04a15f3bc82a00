"""The loader, run by a real shell on a host in a folder, with stand-ins for modprobe and rmmod."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from kit.probe import is_root, need, need_programs
from kit.process import run
from provision.kmod.load import Options
from provision.kmod.loader import Place, write_loader
from provision.manifest import DeviceNode, DriverFile, HostNeeds, Manifest, MinorsFrom
from unit.kmod.artifact import KERNEL, write, write_manifest
from unit.kmod.kernel import make_stack

_ENTRY = PurePosixPath("/var/lib/provision/demo/0123456789ab")
_DONE, _FAILED, _USAGE, _MISSING, _IN_USE = range(5)
# They change /proc/modules and /sys/module below $ROOT, as the real ones do. $ROOT/refused/NAME and
# $ROOT/opened/NAME are modules that the kernel refuses, and that someone opens a moment before.
_MODPROBE = """\
#!/bin/sh
echo "modprobe $*" >>"$ROOT/calls"
add() {
    if [ -e "$ROOT/refused/$1" ]; then
        echo >&2 "modprobe: ERROR: could not insert '$1': Exec format error"
        exit 1
    fi
    grep -q "^$1 " "$ROOT/proc/modules" && return
    echo "$1 1 0 - Live 0x0" >>"$ROOT/proc/modules"
    mkdir -p "$ROOT/sys/module/$1"
    echo live >"$ROOT/sys/module/$1/initstate"
}
plain=yes
while :; do
    case $1 in
        -d | -S) [ "$1" = -d ] || plain=no; shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
if [ $plain = no ]; then add "$1"; else for name; do add "$name"; done; fi
"""
_RMMOD = """\
#!/bin/sh
echo "rmmod $*" >>"$ROOT/calls"
if [ -e "$ROOT/opened/$1" ]; then
    echo >&2 "rmmod: ERROR: Module $1 is in use"
    exit 1
fi
awk -v gone="$1" '
    $1 == gone { next }
    index("," $4, "," gone ",") { sub(gone ",", "", $4); $3--; if ($4 == "") $4 = "-" }
    { print }' "$ROOT/proc/modules" >"$ROOT/proc/new"
mv "$ROOT/proc/new" "$ROOT/proc/modules"
rm -r "$ROOT/sys/module/$1"
"""


@dataclass
class Host:
    """A host with a store entry of three modules: ``core``, and two that need it."""

    root: Path
    manifest: Manifest
    programs: Path

    @property
    def entry(self) -> Path:
        return self.root / _ENTRY.relative_to("/")

    def change(self, **changes: object) -> None:
        self.manifest = self.manifest.model_copy(update=changes)
        write_manifest(self.entry, self.manifest)

    def have(self, name: str, references: int = 0, users: Sequence[str] = ()) -> None:
        """Load a module, which another build has made if it is one of the driver's."""
        holders = "".join(f"{user}," for user in users) or "-"
        with (self.root / "proc/modules").open("a") as stream:
            stream.write(f"{name} 1 {references + len(users)} {holders} Live 0x0\n")
        write(self.root / f"sys/module/{name}/initstate", b"live\n")

    def loaded(self) -> set[str]:
        text = (self.root / "proc/modules").read_text()
        return {line.split()[0] for line in text.splitlines()}

    def calls(self) -> list[str]:
        """What was run since the last time."""
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def run(self, verb: str, options: Options | None = None) -> subprocess.CompletedProcess[str]:
        write_loader(self.entry, Place(_ENTRY, root=str(self.root)), options or {})
        return subprocess.run(
            ["/bin/sh", self.entry / "load", verb],
            env={"PATH": f"{self.programs}:/usr/sbin:/usr/bin:/sbin:/bin", "ROOT": str(self.root)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    root, programs = tmp_path / "root", tmp_path / "programs"
    write(root / "proc/sys/kernel/osrelease", f"{KERNEL}\n".encode())
    write(root / "proc/modules", b"")
    write(root / "proc/devices", b"Character devices:\n  1 mem\n")
    for name, text in {"modprobe": _MODPROBE, "rmmod": _RMMOD}.items():
        write(programs / name, text.encode(), 0o755)
    return Host(root, make_stack(root / _ENTRY.relative_to("/")), programs)


@pytest.mark.parametrize("works", [True, False], ids=["a host", "a container of that host"])
def test_a_domain_is_entered_only_where_runcon_works(host: Host, *, works: bool) -> None:
    """In a container, the host has SELinux, and runcon says that there is none."""
    write(host.root / "sys/fs/selinux/enforce", b"1")
    write(host.root / "proc/self/attr/current", b"system_u:system_r:initrc_t:s0\0")
    last = 'exec "$@"' if works else "exit 1"
    said = '#!/bin/sh\necho "runcon $*" >>"$ROOT/calls"\nshift\n'
    write(host.programs / "runcon", f"{said}{last}\n".encode(), 0o755)
    done = host.run("load")
    assert done.returncode == _DONE, done.stderr
    assert {"core", "net", "extra"} <= host.loaded()
    entered = [call for call in host.calls() if call.startswith("runcon") and "modprobe" in call]
    assert bool(entered) == works


def test_modules_come_in_order_and_go_again(host: Host) -> None:
    assert host.run("status").returncode == _MISSING
    done = host.run("load", {"net": {"devices": 2, "label": "A and 'B'"}})
    assert done.returncode == _DONE, done.stderr
    store = f"modprobe -i -d {host.entry} -S {KERNEL}"
    calls = host.calls()
    assert calls[0] == f"modprobe -d {host.root} -a ib videodev"
    assert calls[1] == f"{store} core"
    assert set(calls[2:]) == {f"""{store} net devices=2 label="A and 'B'\"""", f"{store} extra"}
    assert host.run("status").returncode == _DONE
    # What is loaded is left alone.
    assert (host.run("load").returncode, host.calls()) == (_DONE, [])
    assert host.run("unload").returncode == _DONE
    assert host.loaded() == {"ib", "videodev"}


def test_usage_and_other_kernels(host: Host) -> None:
    assert host.run("").returncode == _USAGE
    write(host.root / "proc/sys/kernel/osrelease", b"6.9.0\n")
    done = host.run("load")
    assert (done.returncode, host.calls()) == (_MISSING, [])
    assert KERNEL in done.stderr


@pytest.mark.parametrize("optional", [(), ("extra",)])
def test_a_refused_module_takes_the_others_out_again(host: Host, optional: tuple[str, ...]) -> None:
    host.change(host=HostNeeds(optional=optional))
    write(host.root / "refused/extra", b"")
    done = host.run("load")
    if optional:
        assert done.returncode == _DONE
        assert {"core", "net"} <= host.loaded()
        assert (host.run("load").returncode, host.run("status").returncode) == (_DONE, _DONE)
    else:
        assert done.returncode == _FAILED
        assert "extra could not be loaded" in done.stderr
        assert host.loaded() == {"ib", "videodev"}


def test_only_what_was_built_is_loaded(host: Host) -> None:
    host.have("nouveau")
    host.change(host=HostNeeds(conflicts=("nouveau",)))
    path = host.entry / host.manifest.modules[0].path
    path.write_bytes(path.read_bytes() + b"x")
    done = host.run("load")
    assert (done.returncode, host.calls()) == (_FAILED, [])
    assert "damaged" in done.stderr
    assert host.loaded() == {"nouveau"}


def test_what_holds_the_hardware_goes_first_and_comes_back_if_one_stays(host: Host) -> None:
    host.change(host=HostNeeds(conflicts=("nova_core", "nova_drm")))
    host.have("nova_core", users=["nova_drm"])
    host.have("nova_drm")
    write(host.root / "opened/nova_core", b"")
    done = host.run("load")
    assert done.returncode == _IN_USE
    assert host.loaded() == {"nova_core", "nova_drm"}
    (host.root / "opened/nova_core").unlink()
    assert host.run("load").returncode == _DONE
    assert {"core", "net", "extra"} <= host.loaded()
    assert not {"nova_core", "nova_drm"} & host.loaded()


@pytest.mark.parametrize("by", ["process", "interface"])
def test_what_is_in_use_stays(host: Host, by: str) -> None:
    host.change(host=HostNeeds(conflicts=("nova",)))
    host.have("nova", references=by == "process")
    if by == "interface":
        card = host.root / "sys/class/net/eth0"
        write(card / "flags", b"0x1003\n")
        (card / "device/driver").mkdir(parents=True)
        (card / "device/driver/module").symlink_to(host.root / "sys/module/nova")
    done = host.run("load")
    assert (done.returncode, host.calls()) == (_IN_USE, [])
    assert "nova" in done.stderr


@pytest.mark.parametrize("references", [0, 1])
def test_another_build_is_replaced_when_idle(host: Host, references: int) -> None:
    host.have("core", references)
    write(host.root / "sys/module/core/version", b"0.9\n")
    assert host.run("status").returncode == _MISSING
    assert host.run("load").returncode == (_IN_USE if references else _DONE)
    assert host.loaded() == ({"core"} if references else {"ib", "videodev", "core", "net", "extra"})


def test_a_driver_that_is_opened_meanwhile_is_whole_again(host: Host) -> None:
    host.run("load")
    write(host.root / "opened/core", b"")
    assert host.run("unload").returncode == _IN_USE
    assert host.run("status").returncode == _DONE


def test_firmware_is_found_below_the_entry(host: Host) -> None:
    name = "/lib/firmware/demo/1.2/gsp.bin"
    file = DriverFile(path=name, kind="firmware", sha256="0" * 64, size=8, mode="0644")
    host.change(files=(file,))
    parameter = host.root / "sys/module/firmware_class/parameters/path"
    write(parameter, b"/srv/firmware\n")
    assert host.run("load").returncode == _FAILED
    assert host.loaded() == set()
    write(parameter, b"\n")
    assert host.run("load").returncode == _DONE
    assert parameter.read_text() == "/run/provision/firmware"
    link = host.root / "run/provision/firmware/demo/1.2/gsp.bin"
    assert str(link.readlink()) == f"{_ENTRY}/driver{name}"


def test_nodes_are_made_as_the_kernel_numbers_them(host: Host) -> None:
    need(is_root(), "root", "only root can make device nodes")
    each = MinorsFrom(files="proc/driver/demo/gpus/*/information", field="Device Minor")
    nodes = (
        DeviceNode(name="democtl", major="demo", minor=255, mode="0666"),
        DeviceNode(name="demo{minor}", major=195, each=each, mode="0600"),
        DeviceNode(name="demo-caps/cap1", major="demo-caps", minor=1),
        DeviceNode(name="other", major="other", minor=1),
    )
    host.change(host=HostNeeds(nodes=nodes))
    devices = "Character devices:\n195 demo\n235 demo-caps\n\nBlock devices:\n  8 other\n"
    write(host.root / "proc/devices", devices.encode())
    card = host.root / "proc/driver/demo/gpus/0000:01:00.0/information"
    write(card, b"Model: \t X\nDevice Minor: \t 3\n")
    (host.root / "dev").mkdir()
    os.mknod(host.root / "dev/demo3", stat.S_IFCHR | 0o600, os.makedev(194, 3))
    for _ in range(2):
        assert host.run("load").returncode == _DONE
    found = {
        str(path.relative_to(host.root / "dev")): path.stat()
        for path in (host.root / "dev").rglob("*")
        if path.is_char_device() and "char" not in path.parts
    }
    assert {name: (os.major(s.st_rdev), os.minor(s.st_rdev)) for name, s in found.items()} == {
        "democtl": (195, 255),
        "demo3": (195, 3),
        "demo-caps/cap1": (235, 1),
    }
    assert stat.S_IMODE(found["democtl"].st_mode) == 0o666
    assert (host.root / "dev/char/195:3").readlink() == Path("../demo3")


@pytest.mark.parametrize("folder", ["", "usr", "host", "host/usr"])
def test_both_paths_of_modprobe_lead_to_the_modules(host: Host, folder: str) -> None:
    """Some builds of kmod look below usr/lib/modules of the folder that they are given."""
    need_programs("depmod", "modprobe")
    write(host.entry / f"host/lib/modules/{KERNEL}/modules.dep", b"net.ko:\n")
    (host.entry / f"host/lib/modules/{KERNEL}/net.ko").symlink_to(
        f"../../../../lib/modules/{KERNEL}/net.ko"
    )
    host.run("status")
    for base in (host.entry, host.entry / "host"):
        run(["depmod", "-b", base, KERNEL])
    shown = run(["modprobe", "-d", host.entry / folder, "-S", KERNEL, "--show-depends", "net"])
    assert f"{folder}/lib/modules/{KERNEL}/net.ko" in shown.stdout
