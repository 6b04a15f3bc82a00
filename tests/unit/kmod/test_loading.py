"""Modules are loaded and unloaded: by Python, and by the loader, which a boot runs without it.

Both run the same programs, on a host in a folder. modprobe and rmmod are stand-ins made from kmod's
manual pages, as only a guest can load modules: tests/vm runs both ways with the real ones.
"""

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
from provision.errors import ProvisionError
from provision.kmod import load as loading
from provision.kmod.device_setup import missing_nodes, remove_nodes
from provision.kmod.load import Options, load, unload
from provision.kmod.loader import Place, write_loader
from provision.kmod.unload import ModuleInUseError
from provision.manifest import DeviceNode, DriverFile, HostNeeds, Manifest, MinorsFrom
from unit.kmod.artifact import KERNEL, make_module, write, write_manifest
from unit.kmod.kernel import make_stack

_ENTRY = PurePosixPath("/var/lib/provision/demo/0123456789ab")
_DONE, _FAILED, _USAGE, _MISSING, _IN_USE = range(5)
# They change /proc/modules and /sys/module below $ROOT, as the real ones do. $ROOT/refused/NAME and
# $ROOT/opened/NAME are modules that the kernel refuses, and that someone opens a moment before.
_MODPROBE = """\
#!/bin/sh
ROOT={root}
echo "modprobe $*" >>"$ROOT/calls"
add() {
    if [ -e "$ROOT/refused/$1" ]; then
        echo "6,1,1,-;$(cat "$ROOT/refused/$1")" >>"$ROOT/dev/kmsg"
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
ROOT={root}
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
class Done:
    """How it ended, as an exit status; what was said; what Python raised."""

    code: int
    said: str = ""
    error: ProvisionError | None = None


@dataclass
class Host:
    """A host with a store entry of three modules: ``core``, and two that need it."""

    root: Path
    manifest: Manifest
    programs: Path
    by: str

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

    def hold(self, name: str, *users: str) -> None:
        """Let loaded modules use another one, as what depends on it does."""
        path = self.root / "proc/modules"
        held = f"{name} 1 {len(users)} {','.join(users)}, "
        path.write_text(path.read_text().replace(f"{name} 1 0 - ", held))

    def have_nodes(self, *nodes: DeviceNode, devices: str) -> None:
        self.change(host=HostNeeds(nodes=nodes))
        write(
            self.root / "proc/devices", f"Character devices:\n{devices}\nBlock devices:\n".encode()
        )

    def refuse(self, name: str, logged: str = "") -> None:
        write(self.root / "refused" / name, f"{logged}\n".encode())

    def open(self, name: str) -> None:
        """Let someone open a module's device a moment before it is taken out."""
        write(self.root / "opened" / name, b"")

    def loaded(self) -> set[str]:
        text = (self.root / "proc/modules").read_text()
        return {line.split()[0] for line in text.splitlines()}

    def calls(self) -> list[str]:
        """What was run since the last time."""
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def run(self, verb: str, options: Options | None = None) -> Done:
        return self.script(verb, options) if self.by == "loader" else self.python(verb, options)

    def python(self, verb: str, options: Options | None = None) -> Done:
        act = {"load": load, "unload": unload}[verb]
        try:
            act(self.entry, self.manifest, options=options, root=self.root)
        except ProvisionError as error:
            return Done(
                error.exit_code, f"{error.message} {error.details} {error.resolution}", error
            )
        return Done(_DONE)

    def script(self, verb: str, options: Options | None = None) -> Done:
        write_loader(self.entry, Place(_ENTRY, root=str(self.root)), options or {})
        done = subprocess.run(
            ["/bin/sh", self.entry / "load", verb],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return Done(done.returncode, done.stderr)


@pytest.fixture(params=["Python", "loader"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return _host(tmp_path, monkeypatch, request.param)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return _host(tmp_path, monkeypatch, "loader")


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return _host(tmp_path, monkeypatch, "Python")


def _host(folder: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> Host:
    root, programs = folder / "root", folder / "programs"
    write(root / "proc/sys/kernel/osrelease", f"{KERNEL}\n".encode())
    write(root / "proc/modules", b"")
    write(root / "proc/devices", b"Character devices:\n  1 mem\n")
    write(root / "dev/kmsg", b"")
    for name, text in {"modprobe": _MODPROBE, "rmmod": _RMMOD}.items():
        write(programs / name, text.replace("{root}", str(root)).encode(), 0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin")
    return Host(root, make_stack(root / _ENTRY.relative_to("/")), programs, by)


def test_modules_come_in_order_and_go_again(host: Host) -> None:
    parameters: Options = {"net": {"devices": 2, "label": "A and 'B'", "debug": True}}
    assert host.run("load", parameters).code == _DONE
    calls = host.calls()
    own = [call for call in calls if f" -S {KERNEL} " in call]
    store = f"modprobe -i -d {host.entry} -S {KERNEL}"
    assert own[0] == f"{store} core"
    assert set(own[1:]) == {
        f"""{store} net devices=2 label="A and 'B'" debug=1""",
        f"{store} extra",
    }
    # What they need is the kernel's own.
    needed = [call for call in calls if call not in own]
    assert all(call.startswith(f"modprobe -d {host.root} -a ") for call in needed)
    assert host.loaded() == {"core", "net", "extra", "ib", "videodev"}
    # What is loaded is left alone.
    assert (host.run("load").code, host.calls()) == (_DONE, [])
    host.hold("core", "net", "extra")
    assert host.run("unload").code == _DONE
    assert host.loaded() == {"ib", "videodev"}
    assert host.calls()[-1] == "rmmod core"
    assert (host.run("unload").code, host.calls()) == (_DONE, [])


def test_another_kernels_artifact_is_not_loaded(host: Host) -> None:
    write(host.root / "proc/sys/kernel/osrelease", b"6.9.0\n")
    done = host.run("load")
    assert (done.code, host.calls()) == (_MISSING, [])
    assert KERNEL in done.said


@pytest.mark.parametrize("optional", [(), ("extra",)])
def test_a_refused_module_takes_the_others_out_again(host: Host, optional: tuple[str, ...]) -> None:
    host.change(host=HostNeeds(optional=optional))
    host.refuse("extra", "extra: version magic 'a b' should be 'c d'")
    done = host.run("load")
    if optional:
        assert done.code == _DONE
        assert {"core", "net"} <= host.loaded()
        host.calls()
        # It would be refused again.
        assert (host.run("load").code, host.calls()) == (_DONE, [])
    else:
        assert done.code == _FAILED
        assert "extra" in done.said
        assert host.loaded() == {"ib", "videodev"}


def test_what_the_kernel_lacks_is_named(host: Host) -> None:
    host.refuse("videodev")
    done = host.run("load")
    assert done.code == _FAILED
    assert "videodev" in done.said
    assert not {"core", "net", "extra"} & host.loaded()


def test_what_holds_the_hardware_goes_first_and_comes_back_if_one_stays(host: Host) -> None:
    host.change(host=HostNeeds(conflicts=("nova_core", "nova_drm", "nouveau")))
    host.have("nova_core", users=["nova_drm"])
    host.have("nova_drm")
    host.open("nova_core")
    done = host.run("load")
    assert done.code == _IN_USE
    assert host.loaded() == {"nova_core", "nova_drm"}
    (host.root / "opened/nova_core").unlink()
    assert host.run("load").code == _DONE
    assert {"core", "net", "extra"} <= host.loaded()
    assert not {"nova_core", "nova_drm"} & host.loaded()
    # What comes later does not matter to a driver that is loaded.
    host.have("nouveau", references=1)
    assert host.run("load").code == _DONE


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
    assert (done.code, host.calls()) == (_IN_USE, [])
    assert "nova" in done.said


def test_a_driver_that_is_opened_meanwhile_is_whole_again(host: Host) -> None:
    host.run("load")
    host.hold("core", "net", "extra")
    host.open("core")
    host.calls()
    assert host.run("unload", {"net": {"devices": 2}}).code == _IN_USE
    assert {"core", "net", "extra"} <= host.loaded()
    assert [call for call in host.calls() if call.endswith(" net devices=2")]


def test_firmware_is_found_below_the_entry(host: Host) -> None:
    name = "/lib/firmware/demo/1.2/gsp.bin"
    file = DriverFile(path=name, kind="firmware", sha256="0" * 64, size=8, mode="0644")
    host.change(files=(file,))
    parameter = host.root / "sys/module/firmware_class/parameters/path"
    write(parameter, b"/srv/firmware\n")
    assert host.run("load").code == _FAILED
    assert host.loaded() == set()
    assert parameter.read_text() == "/srv/firmware\n"
    write(parameter, b"\n")
    assert host.run("load").code == _DONE
    assert parameter.read_text() == "/run/provision/firmware"
    link = host.root / "run/provision/firmware/demo/1.2/gsp.bin"
    assert str(link.readlink()) == f"{_ENTRY}/driver{name}"


def test_a_module_for_kmm_is_never_loaded(host: Host) -> None:
    (kmm,) = [module for module in host.manifest.modules if module.name == "core"]
    host.change(kmm=kmm.model_copy(update={"name": "core_needs"}))
    host.run("load")
    own = [call for call in host.calls() if " -S " in call]
    assert own
    assert all(f" -d {host.entry}/host -S" in call for call in own)


def test_nodes_are_made_as_the_kernel_numbers_them(host: Host) -> None:
    need(is_root(), "root", "only root can make device nodes")
    each = MinorsFrom(files="proc/driver/demo/gpus/*/information", field="Device Minor")
    host.have_nodes(
        DeviceNode(name="democtl", major="demo", minor=255, mode="0666"),
        DeviceNode(name="demo{minor}", major=195, each=each, mode="0600"),
        DeviceNode(name="demo-caps/cap1", major="demo-caps", minor=1),
        DeviceNode(name="other", major="other", minor=1),
        devices="195 demo\n235 demo-caps\n",
    )
    with (host.root / "proc/devices").open("a") as stream:
        stream.write("  8 other\n")
    card = host.root / "proc/driver/demo/gpus/0000:01:00.0/information"
    write(card, b"Model: \t X\nDevice Minor: \t 3\n")
    os.mknod(host.root / "dev/demo3", stat.S_IFCHR | 0o600, os.makedev(194, 3))
    for _ in range(2):
        assert host.run("load").code == _DONE
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
    # As long as the driver is loaded, nothing is missing and nothing goes.
    assert missing_nodes(host.manifest, root=host.root) == []
    assert remove_nodes(host.manifest, root=host.root) == ()
    write(host.root / "proc/devices", b"Character devices:\n  1 mem\n")
    assert set(remove_nodes(host.manifest, root=host.root)) >= {"/dev/democtl"}
    assert list((host.root / "dev/char").iterdir()) == []


_CONTEXT = "system_u:system_r:initrc_t:s0"


@pytest.mark.parametrize(
    ("enforce", "context", "works", "is_entered"),
    [
        ("1", f"{_CONTEXT}\0", True, True),
        ("0", f"{_CONTEXT}\0", True, True),
        # A pod: the host has SELinux, and runcon says that there is none.
        ("1", f"{_CONTEXT}\0", False, False),
        (None, f"{_CONTEXT}\0", True, False),
        ("1", "", True, False),
        ("1", None, True, False),
    ],
    ids=["enforcing", "permissive", "a pod", "switched off", "empty", "no context"],
)
def test_the_policys_own_domain_for_modprobe_is_not_entered(
    host: Host, enforce: str | None, context: str | None, *, works: bool, is_entered: bool
) -> None:
    write(host.root / "etc/selinux/config", b"SELINUX=enforcing\n")
    (host.root / "sys/fs").mkdir(parents=True)
    if enforce is not None:
        write(host.root / "sys/fs/selinux/enforce", enforce.encode())
    if context is not None:
        write(host.root / "proc/self/attr/current", context.encode())
    last = 'exec "$@"' if works else "exit 1"
    said = f'#!/bin/sh\necho "runcon $*" >>{host.root}/calls\nshift\n'
    write(host.programs / "runcon", f"{said}{last}\n".encode(), 0o755)
    assert host.run("load").code == _DONE
    assert {"core", "net", "extra"} <= host.loaded()
    entered = f"runcon {_CONTEXT} modprobe -i"
    assert any(call.startswith(entered) for call in host.calls()) == is_entered


# What only the loader does


def test_the_loader_says_whether_its_driver_is_loaded(script: Host) -> None:
    assert script.script("").code == _USAGE
    assert script.script("status").code == _MISSING
    script.run("load")
    assert script.script("status").code == _DONE


def test_only_what_was_built_is_loaded_at_a_boot(script: Host) -> None:
    script.have("nouveau")
    script.change(host=HostNeeds(conflicts=("nouveau",)))
    path = script.entry / script.manifest.modules[0].path
    path.write_bytes(path.read_bytes() + b"x")
    assert (script.run("load").code, script.calls()) == (_FAILED, [])
    assert script.loaded() == {"nouveau"}


@pytest.mark.parametrize("references", [0, 1])
def test_another_build_is_replaced_at_a_boot_when_idle(script: Host, references: int) -> None:
    script.have("core", references)
    write(script.root / "sys/module/core/version", b"0.9\n")
    assert script.script("status").code == _MISSING
    assert script.run("load").code == (_IN_USE if references else _DONE)
    everything = {"ib", "videodev", "core", "net", "extra"}
    assert script.loaded() == ({"core"} if references else everything)


@pytest.mark.parametrize("folder", ["", "usr", "host", "host/usr"])
def test_both_paths_of_modprobe_lead_to_the_modules(script: Host, folder: str) -> None:
    """Some builds of kmod look below usr/lib/modules of the folder that they are given."""
    need_programs("depmod", "modprobe")
    write(script.entry / f"host/lib/modules/{KERNEL}/modules.dep", b"net.ko:\n")
    (script.entry / f"host/lib/modules/{KERNEL}/net.ko").symlink_to(
        f"../../../../lib/modules/{KERNEL}/net.ko"
    )
    script.run("status")
    (script.programs / "modprobe").unlink()
    for base in (script.entry, script.entry / "host"):
        run(["depmod", "-b", base, KERNEL])
    shown = run(["modprobe", "-d", script.entry / folder, "-S", KERNEL, "--show-depends", "net"])
    assert f"{folder}/lib/modules/{KERNEL}/net.ko" in shown.stdout


# What only Python does: it explains, and leaves another build to who asked for it


def test_options_for_an_unknown_module_are_a_mistake(python: Host) -> None:
    assert python.run("load", {"nat": {"x": 1}}).code == _USAGE
    assert python.calls() == []


def test_a_root_without_a_kernel_loads_nothing(python: Host) -> None:
    (python.root / "proc/sys/kernel/osrelease").unlink()
    assert (python.run("load").code, python.calls()) == (_MISSING, [])


@pytest.mark.parametrize("kind", ["version", "damaged"])
def test_another_build_is_not_replaced_silently(python: Host, kind: str) -> None:
    if kind == "version":
        python.have("core")
        write(python.root / "sys/module/core/version", b"0.9\n")
    else:
        python.run("load")
        write(python.entry / python.manifest.modules[0].path, make_module()[:40])
    python.calls()
    assert (python.run("load").code, python.calls()) == (_IN_USE, [])


def test_a_driver_that_hangs_is_given_up(python: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    write(python.programs / "modprobe", b"#!/bin/sh\nexec sleep 60\n", 0o755)
    # Before the boot unit is: TimeoutStartSec of templates/systemd/provision-boot.service.j2.
    assert loading._LIMIT_S < 180  # noqa: SLF001 - no test has that long
    monkeypatch.setattr(loading, "_LIMIT_S", 0.2)
    assert python.run("load").code == _FAILED


def test_who_uses_a_module_is_named_and_the_whole_driver_stays(python: Host) -> None:
    python.have("core", references=1, users=["net"])
    python.have("net")
    write(python.root / "proc/4711/comm", b"ffmpeg\n")
    (python.root / "proc/4711/fd").mkdir()
    (python.root / "proc/4711/fd/3").symlink_to("/dev/demo0")
    done = python.run("unload")
    assert (done.code, python.calls(), python.loaded()) == (_IN_USE, [], {"core", "net"})
    assert isinstance(done.error, ModuleInUseError)
    (user,) = done.error.users
    assert (user.module, user.kind) == ("core", "process")
    assert all(word in user.name for word in ("ffmpeg", "4711", "/dev/demo0"))
