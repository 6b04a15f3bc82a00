"""Modules are loaded and unloaded: by Python, and by the loader, which a boot runs without it.

Both are tried on a host in a folder; tests/vm runs both with a real kernel and kmod.
"""

from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest

from kit.artifact import (
    KERNEL,
    MODULE,
    make_artifact,
    make_module,
    make_pin,
    write,
    write_manifest,
)
from kit.host_tree import HostTree
from kit.probe import is_root, need, need_programs
from kit.process import run
from provision.errors import ProvisionError
from provision.kmod.load import ModuleInUseError, load, unload
from provision.kmod.loader import Options, write_loader
from provision.kmod.modules import (
    LoadedModule,
    is_same_build,
    loaded_modules,
    other_builds,
    users_of,
)
from provision.manifest import DeviceNode, DriverFile, HostNeeds, Manifest, MinorsFrom

_ENTRY = PurePosixPath("/var/lib/provision/demo/0123456789ab")
_DONE, _FAILED, _USAGE, _MISSING, _IN_USE = range(5)


@dataclass
class Done:
    """How it ended, as an exit status; what was said; what Python raised."""

    code: int
    said: str = ""
    error: ProvisionError | None = None


@dataclass
class Host(HostTree):
    """A host with a store entry of three modules: ``core``, and two that need it."""

    manifest: Manifest = field(init=False)
    by: str = "loader"

    @property
    def entry(self) -> Path:
        return self.root / _ENTRY.relative_to("/")

    def change(self, **changes: object) -> None:
        self.manifest = self.manifest.model_copy(update=changes)
        write_manifest(self.entry, self.manifest)

    def have_nodes(self, *nodes: DeviceNode, devices: str) -> None:
        self.change(host=HostNeeds(nodes=nodes))
        write(
            self.root / "proc/devices", f"Character devices:\n{devices}\nBlock devices:\n".encode()
        )

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
        write_loader(self.entry, options or {}, root=self.root)
        done = subprocess.run(
            ["/bin/sh", self.entry / "load", "--root", self.root, verb],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return Done(done.returncode, done.stderr)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return _host(tmp_path, monkeypatch, "loader")


@pytest.fixture(params=["loader", "Python"])
def either(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return _host(tmp_path, monkeypatch, request.param)


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return _host(tmp_path, monkeypatch, "Python")


def _host(folder: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> Host:
    host = Host.make(folder)
    monkeypatch.setenv("PATH", host.environment["PATH"])
    host.write("proc/devices", "Character devices:\n  1 mem\n")
    host.manifest, host.by = _entry(host.entry, _STACK), by
    return host


def _entry(folder: Path, modules: dict[str, tuple[str, ...]], driver: str = "demo") -> Manifest:
    """An artifact of modules: what each needs, by its name."""
    manifest = make_artifact(folder, pin=make_pin(driver=driver))
    (first,) = manifest.modules
    (folder / first.path).unlink()
    made = []
    for name, depends in modules.items():
        path = f"lib/modules/{KERNEL}/{name}.ko"
        write(folder / path, make_module())
        made.append(first.model_copy(update={"name": name, "path": path, "depends": depends}))
    dep = [
        f"{n}.ko:{''.join(f' {d}.ko' for d in on if d in modules)}\n" for n, on in modules.items()
    ]
    write(folder / f"lib/modules/{KERNEL}/modules.dep", "".join(dep).encode())
    manifest = manifest.model_copy(update={"modules": tuple(made), "host": HostNeeds()})
    write_manifest(folder, manifest)
    return manifest


_STACK = {"net": ("core",), "extra": ("core", "ib"), "core": ("videodev",)}


def test_modules_come_in_order_and_go_again(either: Host) -> None:
    parameters: Options = {"net": {"devices": 2, "label": "A and 'B'", "debug": True}}
    assert either.run("load", parameters).code == _DONE
    calls = either.calls()
    own = [call for call in calls if f" -S {KERNEL} " in call]
    store = f"modprobe -i -d {either.entry} -S {KERNEL}"
    assert own[0] == f"{store} core"
    assert set(own[1:]) == {
        f"""{store} net devices=2 label="A and 'B'" debug=1""",
        f"{store} extra",
    }
    # What they need is the kernel's own.
    needed = [call for call in calls if call not in own]
    assert needed == [f"modprobe -d {either.root} {name}" for name in ("ib", "videodev")]
    assert either.loaded() == {"core", "net", "extra", "ib", "videodev"}
    # What is loaded is left alone.
    assert (either.run("load").code, either.calls()) == (_DONE, [])
    either.hold("core", "net", "extra")
    assert either.run("unload").code == _DONE
    assert either.loaded() == {"ib", "videodev"}
    assert either.calls()[-1] == "rmmod core"
    assert (either.run("unload").code, either.calls()) == (_DONE, [])


def test_another_kernels_artifact_is_not_loaded(either: Host) -> None:
    write(either.root / "proc/sys/kernel/osrelease", b"6.9.0\n")
    done = either.run("load")
    assert (done.code, either.calls()) == (_MISSING, [])
    assert KERNEL in done.said


@pytest.mark.parametrize("optional", [(), ("extra",)])
def test_a_refused_module_takes_the_others_out_again(
    either: Host, optional: tuple[str, ...]
) -> None:
    either.change(host=HostNeeds(optional=optional))
    either.refuse("extra", logged="extra: version magic 'a b' should be 'c d'")
    done = either.run("load")
    if optional:
        assert done.code == _DONE
        assert {"core", "net"} <= either.loaded()
        either.calls()
        # It would be refused again.
        assert (either.run("load").code, either.calls()) == (_DONE, [])
    else:
        assert done.code == _FAILED
        assert "extra" in done.said
        assert either.by == "loader" or "built for another kernel" in done.said
        assert either.loaded() == {"ib", "videodev"}


def test_what_the_kernel_lacks_is_named(either: Host) -> None:
    either.refuse("videodev")
    done = either.run("load")
    assert done.code == _FAILED
    assert "videodev" in done.said
    assert not {"core", "net", "extra"} & either.loaded()


def test_a_name_that_only_the_build_knew_is_left_to_the_kernel(either: Host) -> None:
    either.lack("videodev")
    assert either.run("load").code == _DONE
    assert {"core", "net", "extra"} <= either.loaded()
    either.run("unload")
    # The kernel, which looks for symbols, has the last word, and then the name is said.
    either.refuse("core", said="Unknown symbol in module", logged="core: Unknown symbol video")
    done = either.run("load")
    assert done.code == _FAILED
    assert "videodev" in done.said


def _also(host: Host, driver: str, modules: dict[str, tuple[str, ...]]) -> Path:
    """Have another driver in the store."""
    entry = host.entry.parent.parent / driver / host.entry.name
    _entry(entry, modules, driver)
    write_loader(entry, {}, root=host.root)
    link = entry.parent / "kernels" / KERNEL
    link.parent.mkdir()
    link.symlink_to(f"../{entry.name}")
    return entry


def test_what_another_driver_has_is_loaded_as_its_own_loader_does(either: Host) -> None:
    for name in ("videodev", "helper"):
        either.lack(name)
    other = _also(either, "other", {"videodev": ("helper",), "helper": (), "more": ()})
    assert either.run("load").code == _DONE
    calls = [call for call in either.calls() if f" -d {other} " in call]
    assert sorted(call.rsplit(maxsplit=1)[1] for call in calls) == ["helper", "more", "videodev"]
    assert either.loaded() == {"core", "net", "extra", "ib", "videodev", "helper", "more"}


def test_drivers_that_wait_for_each_other_end(host: Host) -> None:
    for name in ("videodev", "core"):
        host.lack(name)
    _also(host, "other", {"videodev": ("core",)})
    assert host.run("load").code == _DONE
    assert {"core", "videodev"} <= host.loaded()


@pytest.mark.parametrize("broken", ["refused", "damaged"])
def test_another_driver_that_does_not_load_is_why(host: Host, broken: str) -> None:
    host.lack("videodev")
    other = _also(host, "other", {"videodev": ()})
    if broken == "refused":
        host.refuse("videodev")
    else:
        write(other / f"lib/modules/{KERNEL}/videodev.ko", b"")
    done = host.run("load")
    assert done.code == _FAILED
    assert "other: " in done.said
    assert host.loaded() <= {"ib"}


def test_what_holds_the_hardware_goes_first_and_comes_back_if_one_stays(host: Host) -> None:
    host.change(host=HostNeeds(conflicts=("nova_core", "nova_drm", "nouveau")))
    host.have("nova_core", users=["nova_drm"])
    host.have("nova_drm")
    host.open("nova_core")
    done = host.run("load")
    assert done.code == _IN_USE
    assert host.loaded() == {"nova_core", "nova_drm"}
    (host.folder / "opened/nova_core").unlink()
    assert host.run("load").code == _DONE
    assert {"core", "net", "extra"} <= host.loaded()
    assert not {"nova_core", "nova_drm"} & host.loaded()
    # What comes later does not matter to a driver that is loaded.
    host.have("nouveau", references=1)
    assert host.run("load").code == _DONE


@pytest.mark.parametrize("by", ["process", "interface"])
def test_what_is_in_use_stays(either: Host, by: str) -> None:
    either.change(host=HostNeeds(conflicts=("nova",)))
    either.have("nova", references=by == "process")
    if by == "interface":
        card = either.root / "sys/class/net/eth0"
        write(card / "flags", b"0x1003\n")
        (card / "device/driver").mkdir(parents=True)
        (card / "device/driver/module").symlink_to(either.root / "sys/module/nova")
    done = either.run("load")
    assert (done.code, either.calls()) == (_IN_USE, [])
    assert "nova" in done.said
    if isinstance(done.error, ModuleInUseError):
        assert [user.module for user in done.error.users] == ["nova"]


def test_a_driver_that_is_opened_meanwhile_is_whole_again(either: Host) -> None:
    either.run("load")
    either.hold("core", "net", "extra")
    either.open("core")
    either.calls()
    assert either.run("unload", {"net": {"devices": 2}}).code == _IN_USE
    assert {"core", "net", "extra"} <= either.loaded()
    assert [call for call in either.calls() if call.endswith(" net devices=2")]


def test_firmware_is_found_below_the_entry(either: Host) -> None:
    name = "/lib/firmware/demo/1.2/gsp.bin"
    file = DriverFile(path=name, kind="firmware", sha256="0" * 64, size=8, mode="0644")
    either.change(files=(file,))
    parameter = either.root / "sys/module/firmware_class/parameters/path"
    write(parameter, b"/srv/firmware\n")
    assert either.run("load").code == _FAILED
    assert either.loaded() == set()
    assert parameter.read_text() == "/srv/firmware\n"
    write(parameter, b"\n")
    assert either.run("load").code == _DONE
    assert parameter.read_text() == "/run/provision/firmware"
    folder = either.root / "run/provision/firmware"
    (link,) = (path for path in folder.rglob("*") if path.is_symlink())
    assert link == folder / "demo/1.2/gsp.bin"
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
    # As long as the driver is loaded, nothing goes.
    host.run("unload")
    assert (host.root / "dev/democtl").exists()
    write(host.root / "proc/devices", b"Character devices:\n  1 mem\n")
    assert host.run("unload").code == _DONE
    assert not [path for path in (host.root / "dev").rglob("*") if path.is_char_device()]
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
    said = f'#!/bin/sh\necho "runcon $*" >>"{host.folder}/calls"\nshift\n'
    write(host.folder / "programs" / "runcon", f"{said}{last}\n".encode(), 0o755)
    assert host.run("load").code == _DONE
    assert {"core", "net", "extra"} <= host.loaded()
    entered = f"runcon {_CONTEXT} modprobe -i"
    assert any(call.startswith(entered) for call in host.calls()) == is_entered


def test_the_loader_says_whether_its_driver_is_loaded(host: Host) -> None:
    assert host.script("").code == _USAGE
    assert host.script("status").code == _MISSING
    host.run("load")
    assert host.script("status").code == _DONE


def test_only_what_was_built_is_loaded_at_a_boot(host: Host) -> None:
    host.have("nouveau")
    host.change(host=HostNeeds(conflicts=("nouveau",)))
    path = host.entry / host.manifest.modules[0].path
    path.write_bytes(path.read_bytes() + b"x")
    assert (host.run("load").code, host.calls()) == (_FAILED, [])
    assert host.loaded() == {"nouveau"}


@pytest.mark.parametrize("references", [0, 1])
def test_another_build_is_replaced_at_a_boot_when_idle(host: Host, references: int) -> None:
    host.have("core", references)
    write(host.root / "sys/module/core/version", b"0.9\n")
    assert host.script("status").code == _MISSING
    assert host.run("load").code == (_IN_USE if references else _DONE)
    everything = {"ib", "videodev", "core", "net", "extra"}
    assert host.loaded() == ({"core"} if references else everything)


@pytest.mark.parametrize("folder", ["", "usr", "host", "host/usr"])
def test_both_paths_of_modprobe_lead_to_the_modules(host: Host, folder: str) -> None:
    """Some builds of kmod look below usr/lib/modules of the folder that they are given."""
    need_programs("depmod", "modprobe")
    write(host.entry / f"host/lib/modules/{KERNEL}/modules.dep", b"net.ko:\n")
    (host.entry / f"host/lib/modules/{KERNEL}/net.ko").symlink_to(
        f"../../../../lib/modules/{KERNEL}/net.ko"
    )
    host.run("status")
    (host.folder / "programs" / "modprobe").unlink()
    for base in (host.entry, host.entry / "host"):
        run(["depmod", "-b", base, KERNEL])
    shown = run(["modprobe", "-d", host.entry / folder, "-S", KERNEL, "--show-depends", "net"])
    assert f"{folder}/lib/modules/{KERNEL}/net.ko" in shown.stdout


def test_a_driver_that_hangs_is_given_up(host: Host) -> None:
    write(host.folder / "programs" / "modprobe", b"#!/bin/sh\nexec sleep 60\n", 0o755)
    host.run("status")
    path = host.entry / "load"
    # No test has that long, and the boot unit has three minutes.
    path.write_text(path.read_text().replace("limit=100\n", "limit=0.2\n"))
    assert host.run("load").code == _FAILED


def test_a_node_that_can_not_be_made_is_named(host: Host) -> None:
    host.have_nodes(DeviceNode(name="democtl", major=240, minor=1), devices="240 demo")
    write(host.folder / "programs" / "mknod", b"#!/bin/sh\nexit 1\n", 0o755)
    done = host.run("load")
    assert done.code == _FAILED
    assert "/dev/democtl could not be made" in done.said


# What Python adds: it explains, and leaves another build to who asked for it


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


# The first lines are of a real machine.
PROC_MODULES = """\
nvidia_uvm 1540096 0 - Live 0xffffffffc1b5e000 (POE)
nvidia_drm 77824 4 - Live 0xffffffffc0d0e000 (POE)
nvidia_modeset 1314816 6 nvidia_drm, Live 0xffffffffc19dc000 (POE)
nvidia 56799232 217 nvidia_uvm,nvidia_modeset, Live 0xffffffffbe3a4000 (POE)
cfg80211 1138688 1 [permanent], Live 0xffffffffc0a10000
videodev 1 1 uvcvideo, Live 0x0
uvcvideo 1 0 - Live 0x0
demo 1 2 - Live 0x0
sfc 1 0 - Live 0x0
e1000 1 0 - Live 0x0
"""


def _machine(root: Path, modules: str = PROC_MODULES) -> Path:
    write(root / "proc/modules", modules.encode())
    return root


def test_modules_with_their_references_and_holders(tmp_path: Path) -> None:
    write(tmp_path / "sys/module/nvidia/version", b"535.261.03\n")
    write(tmp_path / "sys/module/nvidia/srcversion", b"ABC123\n")
    write(tmp_path / "sys/module/nvidia/notes/.note.gnu.build-id", b"\x04\x00")
    loaded = loaded_modules(_machine(tmp_path))
    nvidia = loaded["nvidia"]
    assert (nvidia.references, nvidia.holders) == (217, ("nvidia_uvm", "nvidia_modeset"))
    assert (nvidia.version, nvidia.srcversion, nvidia.build_id) == (
        "535.261.03",
        "ABC123",
        b"\x04\x00",
    )
    assert loaded["cfg80211"].is_permanent
    assert loaded["cfg80211"].holders == ()


def test_a_root_that_does_not_run_has_none(tmp_path: Path) -> None:
    assert loaded_modules(tmp_path) == {}


_KERNEL = "a process or the kernel; no process has a device open"


@pytest.mark.parametrize(
    ("names", "users"),
    [
        (["nvidia_uvm"], []),
        (
            ["nvidia_modeset"],
            [("nvidia_modeset", "kernel", _KERNEL), ("nvidia_modeset", "module", "nvidia_drm")],
        ),
        # Modules that go together do not count as each other's users.
        (
            ["nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia"],
            [(name, "kernel", _KERNEL) for name in ("nvidia_drm", "nvidia_modeset", "nvidia")],
        ),
        (["videodev"], [("videodev", "module", "uvcvideo")]),
        (["videodev", "uvcvideo"], []),
        (["demo"], [("demo", "process", "cat (process 7), /dev/demo1")]),
        # The interface of the one is up, of the other down.
        (["sfc"], [("sfc", "interface", "eth0")]),
        (["e1000"], []),
        (["cfg80211"], [("cfg80211", "kernel", "can't be unloaded")]),
    ],
)
def test_who_keeps_modules_from_being_unloaded_is_named(
    tmp_path: Path, names: list[str], users: list[tuple[str, str, str]]
) -> None:
    _machine(tmp_path)
    for process, name, path in (("7", "cat", "/dev/demo1"), ("8", "vi", "/dev/tty1")):
        (tmp_path / "proc" / process / "fd").mkdir(parents=True)
        (tmp_path / "proc" / process / "fd/0").symlink_to(path)
        write(tmp_path / "proc" / process / "comm", f"{name}\n".encode())
    for interface, module, flags in (("eth0", "sfc", "0x1003"), ("eth1", "e1000", "0x1002")):
        (tmp_path / "sys/module" / module).mkdir(parents=True)
        card = tmp_path / "sys/class/net" / interface
        write(card / "flags", f"{flags}\n".encode())
        (card / "device/driver").mkdir(parents=True)
        (card / "device/driver/module").symlink_to(tmp_path / "sys/module" / module)
    devices = [f"{names[0]}[0-9]*"]
    found = users_of(names, loaded_modules(tmp_path), devices=devices, root=tmp_path)
    assert [(user.module, user.kind) for user in found] == [user[:2] for user in users]
    assert all(said in user.name for user, (*_, said) in zip(found, users, strict=True))


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_}.slice/cri-0a1b.scope",
        "12:devices:/kubepods/besteffort/pod{-}/0a1b\n0::/",
        "0::/system.slice/containerd.service/kubepods-pod{_}.slice:cri-containerd:0a1b",
    ],
)
def test_the_pod_of_a_process_is_named(tmp_path: Path, cgroup: str) -> None:
    uid = "2f9e1d60-6f4c-4b6e-9d0e-5f0b3f1c7a11"
    process = tmp_path / "proc/7"
    (process / "fd").mkdir(parents=True)
    (process / "fd/0").symlink_to("/dev/demo1")
    write(process / "comm", b"train\n")
    text = cgroup.replace("{_}", uid.replace("-", "_")).replace("{-}", uid)
    write(process / "cgroup", f"{text}\n".encode())
    in_use = {"demo": LoadedModule("demo", 1, ())}
    (user,) = users_of(["demo"], in_use, devices=["demo*"], root=tmp_path)
    assert user.name == f"train (process 7 of the pod {uid}), /dev/demo1"
    (tmp_path / f"var/log/pods/jobs_train-0_{uid}").mkdir(parents=True)
    (user,) = users_of(["demo"], in_use, devices=["demo*"], root=tmp_path)
    assert user.name == "train (process 7 of the pod jobs/train-0), /dev/demo1"


def test_the_same_build_is_known_by_what_both_sides_have(tmp_path: Path) -> None:
    manifest = make_artifact(tmp_path / "entry")
    _machine(tmp_path, "demo 1 0 - Live 0x0\n")
    loaded = loaded_modules(tmp_path)
    # The made-up module says neither version nor source, and so does what is loaded.
    assert other_builds(manifest, tmp_path / "entry", loaded) == ()
    write(tmp_path / "sys/module/demo/version", b"2\n")
    again = loaded_modules(tmp_path)
    assert other_builds(manifest, tmp_path / "entry", again) == ("demo",)
    assert other_builds(manifest, tmp_path / "entry", {}) == ()
    assert not is_same_build(tmp_path / "entry" / "nowhere.ko", loaded["demo"])
    assert is_same_build(tmp_path / "entry" / MODULE, loaded["demo"])
