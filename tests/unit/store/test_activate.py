"""What an installation writes, and what it leaves alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kit.artifact import add, make_artifact, make_pin, write
from provision.documents import load_json
from provision.errors import ProvisionError
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
from provision.store.layout import Layout
from provision.store.managed_files import Change, ManagedFiles

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


def test_a_config_that_an_admin_wrote_is_not_replaced(layout: Layout) -> None:
    _install(layout)
    layout.vendor_config.write_text("mine")
    with pytest.raises(ProvisionError) as caught:
        _install(layout, "1.3")
    assert str(layout.vendor_config) in (caught.value.details or "")
    assert str(layout.current.readlink()) == make_pin().short_digest
    assert layout.vendor_config.read_text() == "mine"


def test_an_admins_config_is_replaced_on_request_and_kept(layout: Layout) -> None:
    _install(layout)
    layout.vendor_config.write_text("mine")
    changes = _install(layout, "1.3", replace=True)
    assert changes[0].kind == "save"
    (saved,) = layout.saved.iterdir()
    assert saved.read_text() == "mine"
    assert json.loads(layout.vendor_config.read_text())["version"] == "1.3"


def test_a_config_of_an_interrupted_run_is_known_as_ours(layout: Layout) -> None:
    _install(layout)
    manifest = make_artifact(layout.root / "other", pin=make_pin(version="1.3"))
    text = vendor_config(layout, manifest) or ""
    # The step to be killed in.
    ManagedFiles(layout.root, layout.record, layout.saved).write(layout.vendor_config, text)
    assert [change.kind for change in _install(layout)] == ["write"]


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
    manifest = make_artifact(layout.entry("0" * 12))
    for _ in range(2):
        _activate(layout, manifest)
    # A driver that works is not failed for it: its status says it, and the next time tries again.
    assert made.read_text() == "--force --kver 6.1.0\n" * (2 if fails else 1)
    assert ("dracut --force" in str(initramfs_problem(layout))) is fails
    (tmp_path / "full").unlink(missing_ok=True)
    apply(layout, plan_removal(layout))
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
    assert {"Where=/run/demo/driver", f"What={layout.driver_root}"} <= {*lines}
    assert plan(layout, _with(layout, root)) == []
    # A version that has none, and a removal, take it away.
    _offering(layout, None, "1.3")
    assert not [path for path in folder.rglob("*") if not path.is_dir()]
    _offering(layout, root, "1.4")
    apply(layout, plan_removal(layout))
    assert not [path for path in folder.rglob("*") if not path.is_dir()]
