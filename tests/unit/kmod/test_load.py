"""Modules are loaded into the kernel and unloaded, in this process's own SELinux domain."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision.errors import InUseError, NotFoundError, ProvisionError, UsageError
from provision.kmod.load import Options, in_own_domain, load, load_order, unload
from provision.kmod.loaded import LoadedModule
from provision.kmod.unload import ConflictError, ModuleInUseError, unload_order
from provision.manifest import DriverFile, HostNeeds
from provision.progress import Event, Note
from unit.kmod.artifact import KERNEL, make_module, make_pin, write
from unit.kmod.kernel import Kernel, make_stack, start


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return start(tmp_path / "root", monkeypatch)


@pytest.fixture
def entry(kernel: Kernel) -> Path:
    return kernel.root / "var/lib/provision/demo/0123456789ab"


def test_modules_are_loaded_after_what_they_depend_on(kernel: Kernel, entry: Path) -> None:
    manifest = make_stack(entry)
    done = load(entry, manifest, root=kernel.root)
    assert done[0] == "core"
    assert set(done) == {"core", "net", "extra"}
    assert set(kernel.loaded) == {"videodev", "ib", "core", "net", "extra"}
    store = ["-i", "-d", str(entry), "-S", KERNEL]
    assert ["modprobe", *store, "core"] in kernel.calls
    assert ["modprobe", "-d", str(kernel.root), "-a", "videodev"] in kernel.calls
    assert [m.name for m in load_order(manifest)] == list(done)


def test_a_driver_that_hangs_is_given_up_before_the_boot_unit_is(
    kernel: Kernel, entry: Path
) -> None:
    load(entry, make_stack(entry), root=kernel.root)
    # TimeoutStartSec of templates/systemd/provision-boot.service.j2.
    assert kernel.limits
    assert max(kernel.limits) < 180


def test_what_is_loaded_already_stays(kernel: Kernel, entry: Path) -> None:
    manifest = make_stack(entry)
    load(entry, manifest, root=kernel.root)
    kernel.calls.clear()
    assert load(entry, manifest, root=kernel.root) == ()
    assert kernel.calls == []


def test_parameters_are_handed_to_their_module(kernel: Kernel, entry: Path) -> None:
    manifest = make_stack(entry)
    options: Options = {"net": {"devices": 2, "card_label": "A and B", "debug": True}}
    load(entry, manifest, options=options, root=kernel.root)
    (call,) = [call for call in kernel.calls if "net" in call]
    assert call[-3:] == ["devices=2", 'card_label="A and B"', "debug=1"]
    (other,) = [call for call in kernel.calls if call[-1] == "core"]
    assert other[-2] == KERNEL


def test_a_module_for_kmm_is_never_loaded(kernel: Kernel, entry: Path) -> None:
    manifest = make_stack(entry)
    (kmm,) = [module for module in manifest.modules if module.name == "core"]
    load(entry, manifest.model_copy(update={"kmm": kmm}), root=kernel.root)
    folders = {call[call.index("-d") + 1] for call in kernel.calls if "-S" in call}
    assert folders == {str(entry.resolve() / "host")}


def test_options_for_an_unknown_module_are_a_mistake(kernel: Kernel, entry: Path) -> None:
    with pytest.raises(UsageError, match="'nat', which demo"):
        load(entry, make_stack(entry), options={"nat": {"x": 1}}, root=kernel.root)
    assert kernel.calls == []


def test_another_kernels_artifact_is_not_loaded(kernel: Kernel, entry: Path) -> None:
    pin = make_pin(kernel="6.1.0-50-amd64")
    manifest = make_stack(entry).model_copy(update={"pin": pin})
    with pytest.raises(NotFoundError, match=r"for the kernel 6\.1\.0-50-amd64, and 6\.1\.0-47"):
        load(entry, manifest, root=kernel.root)


def test_a_root_without_a_kernel_loads_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="No kernel runs"):
        load(tmp_path / "entry", make_stack(tmp_path / "entry"), root=tmp_path / "empty")


def test_another_build_is_not_replaced_silently(kernel: Kernel, entry: Path) -> None:
    manifest = make_stack(entry)
    kernel.have("core", version="0.9")
    with pytest.raises(InUseError, match="core is loaded already, from another build") as error:
        load(entry, manifest, root=kernel.root)
    assert "provision unload demo" in str(error.value.resolution)
    assert kernel.calls == []


def test_a_refused_module_takes_its_driver_back_out(kernel: Kernel, entry: Path) -> None:
    kernel.refused["net"] = ("Exec format error", "net: version magic 'a b' should be 'c d'")
    with pytest.raises(ProvisionError, match="'net' could not be loaded: it was built for another"):
        load(entry, make_stack(entry), root=kernel.root)
    assert set(kernel.loaded) <= {"videodev", "ib"}


def test_an_optional_module_may_be_refused(kernel: Kernel, entry: Path) -> None:
    notes: list[Event] = []
    kernel.refused["extra"] = ("Invalid argument", "extra: no")
    kernel.refused["ib"] = ("Module ib not found", "")
    manifest = make_stack(entry, HostNeeds(optional=("extra",)))
    assert load(entry, manifest, root=kernel.root, progress=notes.append) == ("core", "net")
    assert any("left out extra" in note.text for note in notes if isinstance(note, Note))
    kernel.calls.clear()
    assert load(entry, manifest, root=kernel.root) == ()
    assert kernel.calls == []


def test_what_the_kernel_lacks_is_named(kernel: Kernel, entry: Path) -> None:
    kernel.refused["videodev"] = ("Module videodev not found in directory", "")
    with pytest.raises(ProvisionError, match="'videodev' could not be loaded"):
        load(entry, make_stack(entry), root=kernel.root)
    assert kernel.loaded == {}


def test_what_is_in_the_way_is_unloaded_when_idle(kernel: Kernel, entry: Path) -> None:
    kernel.have("nova_core")
    kernel.have("nova_drm", uses=["nova_core"])
    manifest = make_stack(entry, HostNeeds(conflicts=("nova_core", "nova_drm", "nouveau")))
    load(entry, manifest, root=kernel.root)
    assert kernel.calls[:2] == [["rmmod", "nova_drm"], ["rmmod", "nova_core"]]
    assert "core" in kernel.loaded


def test_what_is_in_the_way_and_in_use_needs_a_reboot(kernel: Kernel, entry: Path) -> None:
    kernel.references["nouveau"] = 3
    kernel.have("nouveau")
    manifest = make_stack(entry, HostNeeds(conflicts=("nouveau",)))
    with pytest.raises(ConflictError, match="nouveau is in the way of demo and in use") as error:
        load(entry, manifest, root=kernel.root)
    assert "/etc/modprobe.d/provision-demo.conf" in str(error.value.resolution)
    assert kernel.calls == []


def test_what_came_in_the_way_later_does_not_matter(kernel: Kernel, entry: Path) -> None:
    manifest = make_stack(entry, HostNeeds(conflicts=("nouveau",)))
    load(entry, manifest, root=kernel.root)
    kernel.references["nouveau"] = 1
    kernel.have("nouveau")
    assert load(entry, manifest, root=kernel.root) == ()


def test_firmware_is_found_in_the_store(kernel: Kernel, entry: Path) -> None:
    manifest = make_stack(entry)
    name = "/lib/firmware/demo/1.2/gsp.bin"
    write(entry / f"driver{name}", b"firmware")
    write(kernel.root / "sys/module/firmware_class/parameters/path", b"\n")
    file = DriverFile(path=name, kind="firmware", sha256="0" * 64, size=8, mode="0644")
    manifest = manifest.model_copy(update={"files": (file,)})
    load(entry, manifest, root=kernel.root)
    link = kernel.root / "run/provision/firmware/demo/1.2/gsp.bin"
    assert str(link.readlink()) == f"/{entry.relative_to(kernel.root)}/driver{name}"
    folder = (kernel.root / "sys/module/firmware_class/parameters/path").read_text()
    assert folder == "/run/provision/firmware"


def test_a_foreign_firmware_folder_stays(kernel: Kernel, entry: Path) -> None:
    parameter = kernel.root / "sys/module/firmware_class/parameters/path"
    write(parameter, b"/srv/firmware\n")
    file = DriverFile(
        path="/lib/firmware/a.bin", kind="firmware", sha256="0" * 64, size=8, mode="0644"
    )
    manifest = make_stack(entry).model_copy(update={"files": (file,)})
    with pytest.raises(ProvisionError, match="'/srv/firmware', which someone else"):
        load(entry, manifest, root=kernel.root)
    assert parameter.read_text() == "/srv/firmware\n"
    assert "core" not in kernel.loaded


def test_users_go_before_what_they_use(kernel: Kernel, entry: Path) -> None:
    manifest = make_stack(entry)
    kernel.have("core")
    kernel.have("net", uses=["core"])
    kernel.have("extra", uses=["core"])
    assert unload(entry, manifest, root=kernel.root) == ("net", "extra", "core")
    assert kernel.loaded == {}
    assert unload(entry, manifest, root=kernel.root) == ()


def test_a_module_in_use_keeps_the_whole_driver(kernel: Kernel, entry: Path) -> None:
    manifest = make_stack(entry)
    kernel.references["core"] = 1
    kernel.have("core")
    kernel.have("net", uses=["core"])
    descriptor = kernel.root / "proc/4711/fd"
    descriptor.mkdir(parents=True)
    (descriptor / "3").symlink_to("/dev/demo0")
    write(kernel.root / "proc/4711/comm", b"ffmpeg\n")
    with pytest.raises(ModuleInUseError, match="core can't be unloaded: in use") as error:
        unload(entry, manifest, root=kernel.root)
    assert error.value.details == "core is used by ffmpeg (process 4711), /dev/demo0"
    assert error.value.members() == {
        "users": [
            {"module": "core", "kind": "process", "name": "ffmpeg (process 4711), /dev/demo0"}
        ]
    }
    assert kernel.calls == []


def test_a_user_that_comes_in_between_finds_the_whole_driver(kernel: Kernel, entry: Path) -> None:
    manifest = make_stack(entry)
    load(entry, manifest, root=kernel.root)
    kernel.opened.add("core")
    options: Options = {"net": {"devices": 2}}
    with pytest.raises(ModuleInUseError, match="core can't be unloaded: in use"):
        unload(entry, manifest, options=options, root=kernel.root)
    assert {"core", "net", "extra"} <= set(kernel.loaded)
    assert any(call[-1] == "devices=2" for call in kernel.calls)


def test_a_user_that_comes_in_between_keeps_what_holds_the_hardware(
    kernel: Kernel, entry: Path
) -> None:
    kernel.have("nova_core")
    kernel.have("nova_drm", uses=["nova_core"])
    kernel.opened.add("nova_core")
    manifest = make_stack(entry, HostNeeds(conflicts=("nova_core", "nova_drm")))
    with pytest.raises(ConflictError):
        load(entry, manifest, root=kernel.root)
    assert set(kernel.loaded) == {"nova_core", "nova_drm"}


def test_modules_that_hold_each_other_are_still_listed() -> None:
    kernel = {"a": ["b"], "b": ["a"]}
    loaded = {name: _loaded(name, holders) for name, holders in kernel.items()}
    assert set(unload_order(["a", "b", "c"], loaded)) == {"a", "b"}


def _loaded(name: str, holders: list[str]) -> LoadedModule:
    return LoadedModule(name=name, references=len(holders), holders=tuple(holders))


def test_a_damaged_file_is_not_what_is_loaded(kernel: Kernel, entry: Path) -> None:
    manifest = make_stack(entry)
    load(entry, manifest, root=kernel.root)
    write(entry / manifest.modules[0].path, make_module()[:40])
    with pytest.raises(InUseError, match="net is loaded already, from another build"):
        load(entry, manifest, root=kernel.root)


_ARGV = ["modprobe", "-d", "/var/lib/provision", "demo"]
_CONTEXT = "system_u:system_r:initrc_t:s0"


def _host(root: Path, *, enforce: str | None, context: str | None) -> Path:
    (root / "etc/selinux").mkdir(parents=True)
    (root / "etc/selinux/config").write_text("SELINUX=enforcing\n")
    (root / "sys/fs").mkdir(parents=True)
    (root / "proc/self/attr").mkdir(parents=True)
    if enforce is not None:
        (root / "sys/fs/selinux").mkdir()
        (root / "sys/fs/selinux/enforce").write_text(enforce)
    if context is not None:
        (root / "proc/self/attr/current").write_text(context)
    return root


@pytest.mark.parametrize("enforce", ["1", "0"])
@pytest.mark.parametrize("works", [True, False], ids=["a host", "a pod of that host"])
def test_the_policys_own_domain_for_modprobe_is_not_entered(
    tmp_path: Path, enforce: str, monkeypatch: pytest.MonkeyPatch, *, works: bool
) -> None:
    """In a pod, the host has SELinux, and runcon says that there is none: no module would load."""
    host = _host(tmp_path, enforce=enforce, context=f"{_CONTEXT}\0")
    programs = tmp_path / "programs"
    write(
        programs / "runcon", b'#!/bin/sh\nshift\nexec "$@"\n' if works else b"#!/bin/sh\nexit 1\n"
    )
    (programs / "runcon").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    assert in_own_domain([*_ARGV], host) == (["runcon", _CONTEXT] if works else []) + _ARGV


def test_the_runcon_of_an_image_without_a_policy_is_not_used(tmp_path: Path) -> None:
    if Path("/sys/fs/selinux/enforce").exists():
        pytest.skip("this machine has SELinux")
    host = _host(tmp_path, enforce="1", context=f"{_CONTEXT}\0")
    assert in_own_domain([*_ARGV], host) == _ARGV


@pytest.mark.parametrize(
    ("enforce", "context"),
    [(None, f"{_CONTEXT}\0"), ("1", None), ("1", "")],
    ids=["switched off", "no context", "an empty context"],
)
def test_without_selinux_modprobe_is_run_as_it_is(
    tmp_path: Path, enforce: str | None, context: str | None
) -> None:
    host = _host(tmp_path, enforce=enforce, context=context)
    assert in_own_domain([*_ARGV], host) == _ARGV


def test_a_host_that_never_heard_of_it_needs_no_runcon(tmp_path: Path) -> None:
    assert in_own_domain([*_ARGV], tmp_path) == _ARGV
