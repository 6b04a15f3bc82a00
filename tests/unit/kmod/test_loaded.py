"""What the kernel has loaded, and who uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.artifact import MODULE, make_artifact, write
from provision.kmod.modules import (
    LoadedModule,
    is_same_build,
    loaded_modules,
    other_builds,
    users_of,
)

# Lines of a real machine.
PROC_MODULES = """\
nvidia_uvm 1540096 0 - Live 0xffffffffc1b5e000 (POE)
nvidia_drm 77824 4 - Live 0xffffffffc0d0e000 (POE)
nvidia_modeset 1314816 6 nvidia_drm, Live 0xffffffffc19dc000 (POE)
nvidia 56799232 217 nvidia_uvm,nvidia_modeset, Live 0xffffffffbe3a4000 (POE)
cfg80211 1138688 1 [permanent], Live 0xffffffffc0a10000
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


def test_modules_that_go_together_do_not_count_as_each_others_users(tmp_path: Path) -> None:
    loaded = loaded_modules(_machine(tmp_path))
    assert users_of(["nvidia_uvm"], loaded, root=tmp_path) == ()
    (drm,) = users_of(["nvidia_modeset"], loaded, root=tmp_path)[:1]
    assert (drm.kind, drm.name) == (
        "kernel",
        "a process or the kernel; no process has a device open",
    )
    names = ["nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia"]
    assert {u.module for u in users_of(names, loaded, root=tmp_path)} == {
        "nvidia_drm",
        "nvidia_modeset",
        "nvidia",
    }


def test_a_module_outside_is_named(tmp_path: Path) -> None:
    lines = "videodev 1 1 uvcvideo, Live 0x0\nuvcvideo 1 0 - Live 0x0\n"
    loaded = loaded_modules(_machine(tmp_path, lines))
    (user,) = users_of(["videodev"], loaded, root=tmp_path)
    assert str(user) == "videodev is used by the module uvcvideo"
    assert users_of(["videodev", "uvcvideo"], loaded, root=tmp_path) == ()


def test_processes_with_an_open_device_are_named(tmp_path: Path) -> None:
    loaded = loaded_modules(_machine(tmp_path, "demo 1 2 - Live 0x0\n"))
    for process, name, path in [("7", "cat", "/dev/demo1"), ("8", "vi", "/dev/tty1")]:
        (tmp_path / "proc" / process / "fd").mkdir(parents=True)
        (tmp_path / "proc" / process / "fd/0").symlink_to(path)
        write(tmp_path / "proc" / process / "comm", f"{name}\n".encode())
    (user,) = users_of(["demo"], loaded, devices=["demo[0-9]*"], root=tmp_path)
    assert (user.kind, user.name) == ("process", "cat (process 7), /dev/demo1")


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


@pytest.mark.parametrize(("flags", "is_used"), [("0x1003", True), ("0x1002", False)])
def test_a_network_interface_that_is_up_is_a_use(
    tmp_path: Path, flags: str, *, is_used: bool
) -> None:
    _machine(tmp_path, "sfc 1 0 - Live 0x0\n")
    device = tmp_path / "sys/devices/pci0/0000:01:00.0"
    (tmp_path / "sys/module/sfc").mkdir(parents=True)
    (device / "driver").mkdir(parents=True)
    (device / "driver/module").symlink_to(tmp_path / "sys/module/sfc")
    write(tmp_path / "sys/class/net/eth1/flags", f"{flags}\n".encode())
    (tmp_path / "sys/class/net/eth1/device").symlink_to(device)
    users = users_of(["sfc"], loaded_modules(tmp_path), root=tmp_path)
    assert [user.name for user in users] == (["the network interface eth1"] if is_used else [])


def test_a_permanent_module_never_goes(tmp_path: Path) -> None:
    (user,) = users_of(["cfg80211"], loaded_modules(_machine(tmp_path)), root=tmp_path)
    assert "can't be unloaded at all" in user.name


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
