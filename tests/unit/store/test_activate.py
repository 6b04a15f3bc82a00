"""What an installation writes, and leaves alone of what others have installed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.artifact import KERNEL, add, make_artifact, make_pin, write
from provision.catalogue import Catalogue, Recipe
from provision.config import catalogue_folders
from provision.documents import load_json
from provision.errors import NotFoundError
from provision.manifest import MANIFEST, ForeignRoot, HostNeeds, Manifest
from provision.store import activate
from provision.store.activate import (
    activate_entry,
    apply,
    initramfs_problem,
    plan,
    plan_removal,
    vendor_config,
)
from provision.store.entries import current_entry, drafted, remove_leftovers
from provision.store.foreign import OtherInstallation, foreign_vendor_file, other_installation
from provision.store.layout import Layout
from provision.store.managed_files import Change
from unit.cli.outcome import Outcome

GOLDEN = Path(__file__).parent / "data/vendor.json"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "host", "demo")


def _install(layout: Layout, version: str = "1.2", *, replace: bool = False) -> list[Change]:
    pin = make_pin(version=version)
    made: list[Manifest] = []
    add(layout, pin.short_digest, lambda folder: made.append(make_artifact(folder, pin=pin)))
    manifest = made[0] if made else make_artifact(layout.root / "scratch", pin=pin)
    changes = plan(layout, manifest, replace=replace)
    apply(layout, changes)
    return changes


def test_the_vendor_config_is_made_from_the_manifest(layout: Layout, tmp_path: Path) -> None:
    assert vendor_config(layout, make_artifact(tmp_path / "a")) == GOLDEN.read_text()


def test_an_admins_config_is_replaced_on_request_and_kept(layout: Layout) -> None:
    _install(layout)
    layout.vendor_config.write_text("mine")
    changes = _install(layout, "1.3", replace=True)
    assert changes[0].kind == "save"
    (saved,) = layout.saved.iterdir()
    assert saved.read_text() == "mine"
    assert json.loads(layout.vendor_config.read_text())["version"] == "1.3"


def test_the_hosts_library_cache_is_refreshed_once_an_artifact(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, calls = layout.root / "programs", layout.root / "calls"
    write(programs / "ldconfig", f"#!/bin/sh\necho ldconfig $* >>'{calls}'\n".encode(), 0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(activate, "_is_running_host", lambda _layout: True)
    assert [change.kind for change in _install(layout)][-1] == "ldconfig"
    assert _install(layout) == []
    _install(layout, "1.3")
    assert calls.read_text() == "ldconfig\nldconfig\n"


# Right at every place where the host's root is mounted.
PROGRAM = "../../../var/lib/provision/demo/current/driver/usr/bin/democtl"


def _offered(layout: Layout, folder: str = "usr/local/bin") -> dict[str, str]:
    """The links in a folder, and the texts of files."""
    listed = sorted((layout.root / folder).glob("*"))
    return {p.name: str(p.readlink()) if p.is_symlink() else p.read_text() for p in listed}


def test_the_hosts_shells_find_the_drivers_programs(layout: Layout) -> None:
    _install(layout)
    assert _offered(layout) == {"democtl": PROGRAM}
    assert (layout.current / "driver/usr/bin/democtl").is_file()
    _install(layout, "1.3")
    assert _offered(layout) == {"democtl": PROGRAM}
    apply(layout, plan_removal(layout))
    assert _offered(layout) == {}


def test_a_program_that_a_later_artifact_lacks_is_offered_no_more(layout: Layout) -> None:
    _install(layout)
    manifest = make_artifact(layout.entry("0" * 12), library=None)
    _activate(layout, manifest)
    assert _offered(layout) == {}


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_another_program_of_the_same_name_stays(layout: Layout, kind: str) -> None:
    path = layout.root / "usr/local/bin/democtl"
    path.parent.mkdir(parents=True)
    match kind:
        case "file":
            path.write_text("mine")
        case "link":
            path.symlink_to("/opt/other/democtl")
        case _:
            path.mkdir()
    _install(layout)
    apply(layout, plan_removal(layout))
    assert path.is_dir() if kind == "folder" else _offered(layout)["democtl"] != PROGRAM


def test_programs_are_offered_elsewhere_where_usr_can_not_be_written(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    (layout.root / "usr/local/bin").mkdir(parents=True)
    access = os.access
    # As a read-only file system answers, to root too.
    monkeypatch.setattr(
        os, "access", lambda p, mode: "/usr/local" not in str(p) and access(p, mode)
    )
    _install(layout)
    assert _offered(layout) == {}
    assert _offered(layout, "opt/provision/bin") == {"democtl": PROGRAM}
    monkeypatch.undo()
    _install(layout)
    assert _offered(layout) == {"democtl": PROGRAM}
    assert _offered(layout, "opt/provision/bin") == {}


def test_an_entry_is_there_whole_or_not_at_all(layout: Layout) -> None:
    def fill(folder: Path) -> None:
        folder.mkdir()
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        add(layout, "0" * 12, fill)
    assert [path.name for path in layout.folder.iterdir()] == [".lock"]


def test_a_draft_that_is_being_filled_is_no_leftover(layout: Layout) -> None:
    with drafted(layout, "0" * 12, lambda folder: folder.mkdir()) as draft:
        assert remove_leftovers(layout) == []
        assert draft.is_dir()
    assert not draft.exists()


def test_of_two_that_add_an_entry_the_first_stays(layout: Layout) -> None:
    def fill(folder: Path) -> None:
        make_artifact(folder)
        add(layout, "0" * 12, lambda other: write(other / "first", b""))

    assert not add(layout, "0" * 12, fill)
    assert (layout.entry("0" * 12) / "first").exists()
    assert [path.name for path in layout.folder.iterdir() if path.is_dir()] == ["0" * 12]


def test_leftovers_of_killed_runs_go_and_nothing_else(layout: Layout, notes: list[str]) -> None:
    _install(layout)
    activate_entry(layout, current_entry(layout))
    before = sorted(layout.root.rglob("*"))
    (layout.folder / ".partial-000000000000/driver").mkdir(parents=True)
    (layout.folder / ".removed-000000000000").mkdir()
    (layout.folder / ".current.123").symlink_to("x")
    (layout.vendor_config.parent / ".demo.json.abc").write_text("half")
    (layout.loader_config.parent / ".provision-demo.conf.abc").write_text("half")
    others = layout.vendor_config.parent / ".demo2.json.abc"
    others.write_text("another driver's")
    notes.clear()
    activate_entry(layout, current_entry(layout))
    # Each is said.
    assert len(notes) == 5
    assert sorted(layout.root.rglob("*")) == sorted([*before, others])


def _activate(layout: Layout, manifest: Manifest) -> None:
    apply(layout, plan(layout, manifest))


def _load_at_boot(layout: Layout) -> None:
    wants = layout.root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "provision-boot.service").symlink_to("/etc/systemd/system/provision-boot.service")


@pytest.mark.parametrize("has_dracut", [False, True])
def test_what_udev_must_not_load_is_blacklisted_as_long_as_the_driver_is_there(
    tmp_path: Path, *, has_dracut: bool
) -> None:
    layout = Layout(tmp_path / "host", "demo")
    if has_dracut:
        (layout.root / "etc/dracut.conf.d").mkdir(parents=True)
    manifest = make_artifact(layout.entry("0" * 12))
    # Nothing would load the driver at a boot, and its in-tree copy may be that of the network card.
    _activate(layout, manifest)
    assert not layout.modprobe_config.exists()
    assert not layout.dracut_config.exists()
    _load_at_boot(layout)
    for conflicts in (("nouveau", "nova_core"), ()):
        _activate(layout, manifest.model_copy(update={"host": HostNeeds(conflicts=conflicts)}))
        # The kernel's own copy of the driver's module, too.
        names = ("demo", *conflicts)
        lines = layout.modprobe_config.read_text().splitlines()
        assert [line for line in lines if not line.startswith("#")] == [
            f"blacklist {name}" for name in names
        ]
        assert layout.dracut_config.exists() is has_dracut
        if has_dracut:
            assert f'omit_drivers+=" {" ".join(names)} "' in layout.dracut_config.read_text()
    apply(layout, plan_removal(layout))
    assert not layout.modprobe_config.exists()
    assert not layout.dracut_config.exists()


@pytest.mark.parametrize("fails", [False, True])
def test_the_initramfs_is_made_once_without_what_is_blacklisted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    layout = Layout(tmp_path / "host", "demo")
    for kernel in ("6.1.0", "6.2.0"):
        write(layout.root / f"lib/modules/{kernel}/modules.dep", b"kernel/demo.ko:\nother.ko:\n")
    _load_at_boot(layout)
    made = tmp_path / "made"
    for name, script in {
        "ldconfig": "",
        "lsinitrd": "echo $* | grep -q 6.2 || echo usr/lib/modules/6.1.0/kernel/demo.ko",
        "dracut": f"echo $* >>'{made}'; test ! -e '{tmp_path}/full'",
    }.items():
        write(tmp_path / "bin" / name, f"#!/bin/sh\n{script}\n".encode(), 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(activate, "_is_running_host", lambda _layout: True)
    if fails:
        write(tmp_path / "full", b"")
    fewer = make_artifact(layout.entry("0" * 12))
    manifest = fewer.model_copy(update={"host": HostNeeds(conflicts=("other",))})
    for _ in range(2):
        _activate(layout, manifest)
    # A driver that works is not failed for it: its status says it, and the next time tries again.
    assert made.read_text() == "--force --kver 6.1.0\n" * (2 if fails else 1)
    assert ("dracut --force" in str(initramfs_problem(layout))) is fails
    (tmp_path / "full").unlink(missing_ok=True)
    apply(layout, plan_removal(layout) if fails else plan(layout, fewer))
    # What is no longer blacklisted may be missing in any.
    assert (
        made.read_text()
        == "--force --kver 6.1.0\n" * (3 if fails else 2) + "--force --kver 6.2.0\n"
    )
    assert initramfs_problem(layout) is None


def _with(layout: Layout, root: ForeignRoot | None) -> Manifest:
    manifest = load_json(layout.current / MANIFEST, Manifest)
    return manifest.model_copy(update={"host": HostNeeds(root=root)})


def _offering(layout: Layout, root: ForeignRoot | None, version: str = "1.2") -> None:
    _install(layout, version)
    apply(layout, plan(layout, _with(layout, root)))


def test_a_root_for_other_systems_is_a_unit_of_systemd(layout: Layout) -> None:
    root = ForeignRoot(
        path="/run/demo/driver", libraries="/usr/lib64", ready_file="/run/demo/ready"
    )
    folder = layout.root / "etc/systemd/system"
    wanted = folder / "multi-user.target.wants/run-demo-driver.mount"
    _offering(layout, root)
    assert wanted.resolve() == (folder / "run-demo-driver.mount").resolve(strict=True)
    lines = wanted.read_text().splitlines()
    assert {
        "Where=/run/demo/driver",
        f"What={layout.driver_root}",
        f"Wants={layout.ready_unit.name}",
    } <= {*lines}
    assert plan(layout, _with(layout, root)) == []
    # A version that has none, and a removal, take it away.
    _offering(layout, None, "1.3")
    assert not [path for path in folder.rglob("*") if not path.is_dir()]
    _offering(layout, root, "1.4")
    apply(layout, plan_removal(layout))
    assert not [path for path in folder.rglob("*") if not path.is_dir()]


_ELF = {32: b"\x7fELF\x01rest", 64: b"\x7fELF\x02rest"}
_VERSION = "550.163.01"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    """NVIDIA's."""
    return Catalogue(catalogue_folders()).entry("nvidia").recipe


def _library(root: Path, folder: str, stem: str, *links: str, bits: int = 64) -> None:
    name = f"{stem}.so.{_VERSION}"
    write(root / folder / name, _ELF[bits])
    for link in links:
        (root / folder / link).symlink_to(name)


def _file(recipe: Recipe, root: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(foreign_vendor_file(recipe, root=root, machine="x86_64"))
    return document


def test_debian_has_its_libraries_behind_alternatives(recipe: Recipe, tmp_path: Path) -> None:
    usual = "usr/lib/x86_64-linux-gnu"
    current = f"{usual}/nvidia/current"
    _library(tmp_path, usual, "libnvidia-ml", "libnvidia-ml.so.1")
    _library(tmp_path, current, "libcuda", "libcuda.so.1", "libcuda.so")
    write(tmp_path / "etc/alternatives/.keep", b"")
    (tmp_path / "etc/alternatives/libcuda.so.1").symlink_to(f"/{current}/libcuda.so.1")
    (tmp_path / usual / "libcuda.so.1").symlink_to("/etc/alternatives/libcuda.so.1")
    # Of another driver, and so left out.
    write(tmp_path / usual / "libcuda.so.9", _ELF[64])
    write(tmp_path / "usr/bin/nvidia-smi", b"program", 0o755)
    document = _file(recipe, tmp_path)
    compute, utility = (document["inventory"][name] for name in ("compute", "utility"))
    assert compute["libraries"] == [
        f"/{usual}/libcuda.so.1",
        f"/{current}/libcuda.so",
        f"/{current}/libcuda.so.1",
        f"/{current}/libcuda.so.{_VERSION}",
    ]
    assert utility["libraries"] == [
        f"/{usual}/libnvidia-ml.so.1",
        f"/{usual}/libnvidia-ml.so.{_VERSION}",
    ]
    assert utility["binaries"] == ["/usr/bin/nvidia-smi"]
    head = {key: value for key, value in document.items() if key != "inventory"}
    assert head == {
        "version": _VERSION,
        "log_level": "LOG_INFO",
        "activation_flag": "OCI_NVIDIA",
        "driver_feature": ["compute", "utility"],
        "interfaces": ["nvidia"],
        "units": "nvidia[0-9]*",
    }


def test_a_cloud_mounts_its_driver_below_a_folder_of_its_own(
    recipe: Recipe, tmp_path: Path
) -> None:
    folder = "usr/local/nvidia/lib64"
    _library(tmp_path, folder, "libnvidia-ml", "libnvidia-ml.so.1")
    write(tmp_path / "usr/local/nvidia/bin/nvidia-smi", b"program", 0o755)
    utility = _file(recipe, tmp_path)["inventory"]["utility"]
    assert utility["libraries"] == [
        f"/{folder}/libnvidia-ml.so.1",
        f"/{folder}/libnvidia-ml.so.{_VERSION}",
    ]
    assert utility["binaries"] == ["/usr/local/nvidia/bin/nvidia-smi"]


def test_each_feature_of_nvidias_has_its_own_files(recipe: Recipe, tmp_path: Path) -> None:
    """As RPM distros have them, with libraries of 32 bits in /usr/lib."""
    _library(tmp_path, "usr/lib64", "libnvidia-ml")
    _library(tmp_path, "usr/lib64", "libcuda", "libcuda.so.1")
    _library(tmp_path, "usr/lib", "libcuda", "libcuda.so.1", bits=32)
    write(tmp_path / "usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", b"{}")
    write(tmp_path / "usr/share/glvnd/egl_vendor.d/10_nvidia.json", b"{}")
    (tmp_path / "etc/vulkan/icd.d").mkdir(parents=True)
    (tmp_path / "etc/vulkan/icd.d/nvidia_icd.json").symlink_to("/gone")
    inventory = _file(recipe, tmp_path)["inventory"]
    names = {"compute", "utility", "video", "graphics", "display", "ngx", "compat32"}
    assert inventory.keys() == names
    for feature, folder in (("compute", "usr/lib64"), ("compat32", "usr/lib")):
        libraries = [f"/{folder}/libcuda.so.1", f"/{folder}/libcuda.so.{_VERSION}"]
        assert inventory[feature]["libraries"] == libraries
    assert inventory["graphics"]["miscellaneous"] == [
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json",
    ]
    assert "nvidia-caps/*" in inventory["compute"]["devices"]
    assert "dri/card*" in inventory["display"]["devices"]


def test_of_two_versions_the_loaded_one_counts(recipe: Recipe, tmp_path: Path) -> None:
    for version in ("535.9.1", "535.10.1"):
        write(tmp_path / f"usr/lib64/libnvidia-ml.so.{version}", _ELF[64])
    assert _file(recipe, tmp_path)["version"] == "535.10.1"
    write(tmp_path / "sys/module/nvidia/version", b"535.9.1\n")
    assert _file(recipe, tmp_path)["version"] == "535.9.1"
    write(tmp_path / "sys/module/nvidia/version", b"999.1\n")
    assert _file(recipe, tmp_path)["version"] == "535.10.1"


def test_a_driver_that_is_not_there(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").symlink_to("/gone")
    with pytest.raises(NotFoundError):
        _file(recipe, tmp_path)
    unknown = recipe.model_copy(update={"installed": None})
    with pytest.raises(NotFoundError):
        _file(unknown, tmp_path)


def test_the_command_writes_it(call: Callable[..., Outcome], tmp_path: Path) -> None:
    host = tmp_path / "host"
    write(host / "etc/os-release", b'ID=fedora\nVERSION_ID="43"\n')
    _library(host, "usr/lib64", "libnvidia-ml", "libnvidia-ml.so.1")
    printed = call("drivers", "vendor-file", "nvidia", "--root", host)
    assert printed.code == 0
    target = tmp_path / "nvidia.json"
    written = call("drivers", "vendor-file", "nvidia", "--root", host, "--output", target)
    assert (written.out, target.read_text()) == (f"{target}: written.\n", printed.out)
    again = call("drivers", "vendor-file", "nvidia", "--root", host, "--output", target, "--json")
    assert again.document["changed"] is False
    assert again.document["vendor_file"] == json.loads(printed.out)
    assert call("drivers", "vendor-file", "v4l2loopback", "--root", host).code == 3
    empty = tmp_path / "empty"
    empty.mkdir()
    assert call("drivers", "vendor-file", "nvidia", "--root", empty).code == 3


def test_the_places_of_daemons_that_run_are_offered(recipe: Recipe, tmp_path: Path) -> None:
    """Programs of a container reach MPS, persistenced and the fabric manager by these."""
    _library(tmp_path, "usr/lib64", "libnvidia-ml", "libnvidia-ml.so.1")
    quiet = _file(recipe, tmp_path)["inventory"]
    sockets = [f"run/nvidia-{name}/socket" for name in ("fabricmanager", "persistenced")]
    for name in (*sockets, "tmp/nvidia-mps/control"):
        write(tmp_path / name, b"")
    found = _file(recipe, tmp_path)["inventory"]
    assert quiet["utility"]["miscellaneous"] == quiet["compute"]["miscellaneous"] == []
    assert found["utility"]["miscellaneous"] == [f"/{name}" for name in sockets]
    assert found["compute"]["miscellaneous"] == ["/tmp/nvidia-mps"]  # noqa: S108 - a fixed path


_UPDATES = f"lib/modules/{KERNEL}/updates/dkms/nvidia.ko.xz"
_EXTRA = f"lib/modules/{KERNEL}/extra/nvidia/nvidia-uvm.ko"
_DKMS = "var/lib/dkms/nvidia-current/535.1/source"
_CONF = "usr/src/nvidia-current-535.1/dkms.conf"
_ML = "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.1"
_RUN = "usr/bin/nvidia-uninstall"
# Before /usr was merged, and after; dpkg's lists have what the package has.
_PACKAGES = {
    "var/lib/dpkg/info/nvidia-kernel-dkms.list": f"/.\n/{_CONF}\n",
    "var/lib/dpkg/info/libnvidia-ml1:amd64.list": f"/.\n/{_ML}\n",
    "var/lib/dpkg/info/other.list": "/usr/bin/other\n",
    "var/lib/dpkg/status": (
        "Package: nvidia-kernel-dkms\nSource: nvidia-graphics-drivers\n\n"
        "Package: libnvidia-ml1\nSource: nvidia-graphics-drivers (1)\nVersion: 535.1\n\n"
        "Package: other\n"
    ),
}
# All packages that go are kept in a file: those that depend on others too, which only apt knows.
_KEPT = "/var/lib/provision/replaced-nvidia"
_ASK = "apt-get --simulate remove"
_KEEP = f" | awk '/^Remv/ {{print $2}}' >> {_KEPT}"
_SAME_SOURCE = (
    "$(dpkg-query --show --showformat '${source:Package} ${binary:Package}\\n'"
    " | awk '$1 == \"nvidia-graphics-drivers\" {print $2}')"
)
_REMOVE = f"xargs apt-get remove --yes < {_KEPT}"
_INSTALL = f"xargs apt-get install --yes --no-install-recommends < {_KEPT}"
_RPM = f"rpm -qf --queryformat '%{{NAME}}\\n' /{_EXTRA} | sort -u >> {_KEPT}"


def _found(root: Path, files: dict[str, str]) -> OtherInstallation | None:
    for name, text in files.items():
        write(root / name, text.encode())
    recipe = Catalogue(catalogue_folders()).entry("nvidia").recipe
    return other_installation(root, "nvidia", recipe, None)


@pytest.mark.parametrize(
    ("files", "seen", "remove", "restore"),
    [
        # Debian's packages: they own what DKMS builds from, so DKMS itself is told nothing.
        (
            {
                _UPDATES: "",
                _DKMS: "",
                _CONF: 'BUILT_MODULE_NAME[0]="nvidia"\n',
                _ML: "",
                **_PACKAGES,
            },
            "DKMS has nvidia-current/535.1",
            [f"{_ASK} libnvidia-ml1 nvidia-kernel-dkms {_SAME_SOURCE}{_KEEP}", _REMOVE],
            _INSTALL,
        ),
        # A module in a package of its own, and folders that were merged. Its source may be that of
        # the kernel, which stays.
        (
            {
                _EXTRA: "",
                "var/lib/dpkg/info/nvidia-mods.list": f"/usr/{_EXTRA}\n",
                "var/lib/dpkg/status": "Package: nvidia-mods\nSource: linux\n",
            },
            "nvidia-mods",
            [f"{_ASK} nvidia-mods{_KEEP}", _REMOVE],
            _INSTALL,
        ),
        # NVIDIA's .run, which takes its modules from DKMS itself.
        (
            {_RUN: "", _UPDATES: "", _DKMS: ""},
            f"/{_UPDATES} and 1 more",
            [f"/{_RUN} --silent"],
            "vendor's installer",
        ),
        # A .run over the distro's packages: what came last goes first.
        (
            {_RUN: "", _ML: "", **_PACKAGES},
            f"/{_RUN}",
            [f"/{_RUN} --silent", f"{_ASK} libnvidia-ml1 {_SAME_SOURCE}{_KEEP}", _REMOVE],
            _INSTALL,
        ),
        # Modules went, and the user space did not.
        (
            {_ML: "", **_PACKAGES},
            "libnvidia-ml1 (packages)",
            [f"{_ASK} libnvidia-ml1 {_SAME_SOURCE}{_KEEP}", _REMOVE],
            _INSTALL,
        ),
        (
            {_EXTRA: "", "var/lib/rpm/rpmdb.sqlite": ""},
            f"/{_EXTRA}",
            [_RPM, f"xargs dnf --assumeyes remove --noautoremove < {_KEPT}"],
            f"xargs dnf --assumeyes install < {_KEPT}",
        ),
        (
            {_EXTRA: "", "usr/lib/sysimage/rpm/x": "", "etc/zypp/zypp.conf": ""},
            f"/{_EXTRA}",
            [_RPM, f"xargs zypper --non-interactive remove < {_KEPT}"],
            f"xargs zypper --non-interactive install < {_KEPT}",
        ),
        # Debian's hosts may have rpm too.
        (
            {_DKMS: "", "var/lib/rpm/x": "", "var/lib/dpkg/info/other.list": ""},
            "DKMS has",
            ["dkms remove nvidia-current/535.1 --all"],
            "dkms install nvidia-current/535.1",
        ),
        ({_UPDATES: ""}, f"/{_UPDATES}", [f"rm /{_UPDATES}", "depmod -a"], "as it was"),
    ],
)
def test_another_installation_is_seen_and_can_be_left_and_returned_to(
    tmp_path: Path, files: dict[str, str], seen: str, remove: list[str], restore: str
) -> None:
    found = _found(tmp_path, files)
    assert found is not None
    assert seen in found.seen
    assert found.remove == tuple(remove)
    # The driver that is to be is made first, and the way back comes last.
    order = ["provision apply", *remove, "reboot", "To return", restore]
    places = [found.resolution.index(words) for words in order]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "files",
    [
        {},
        # The kernel's own modules.
        {f"lib/modules/{KERNEL}/kernel/drivers/net/nvidia.ko": "", **_PACKAGES},
        {f"lib/modules/{KERNEL}/updates/dkms/zfs.ko": "", "var/lib/dkms/zfs/2.1/source": ""},
    ],
)
def test_what_is_no_other_installation_is_not_taken_for_one(
    tmp_path: Path, files: dict[str, str]
) -> None:
    assert _found(tmp_path, files) is None
