"""Each kind of damage to an artifact is found, named, and reported with all others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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
from provision.errors import NotFoundError, ProvisionError
from provision.kmod.verify import files_fingerprint, verify_artifact
from provision.progress import Event, Transfer

_LIBRARY = "driver/usr/lib64/demo/libdemo.so.1.2"
_LINK = "driver/usr/lib64/demo/libdemo.so.1"
_DEP = f"lib/modules/{KERNEL}/modules.dep"


def test_a_whole_artifact_has_no_findings(tmp_path: Path, events: list[Event]) -> None:
    manifest = make_artifact(tmp_path)
    report = verify_artifact(tmp_path, pin_label=manifest.pin.digest)
    assert report.findings == ()
    assert report.require_whole("it") == manifest
    assert report.size == len(make_module()) + len(b"library") + len(b"binary")
    assert events[-1] == Transfer("Verifying", report.size)


def _alter(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def _relink(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def _replace_link(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"library")


def _replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _add(path: Path) -> None:
    write(path, b"x")


@pytest.mark.parametrize(
    ("damaged", "damage", "kind"),
    [
        (_LIBRARY, _alter, "altered"),
        (_LIBRARY, lambda path: path.write_bytes(b""), "altered"),
        (_LIBRARY, lambda path: path.chmod(0o4755), "mode"),
        (_LIBRARY, _replace_by_folder, "altered"),
        (MODULE, _alter, "altered"),
        (MODULE, Path.unlink, "missing"),
        (MODULE, lambda path: path.chmod(0o666), "mode"),
        ("driver/usr/bin/democtl", Path.unlink, "missing"),
        ("driver/usr/bin/democtl", lambda path: path.chmod(0o644), "mode"),
        (_LINK, Path.unlink, "missing"),
        (_LINK, _relink, "link"),
        (_LINK, _replace_link, "link"),
        (_DEP, Path.unlink, "missing"),
        ("driver/manifest.json", Path.unlink, "missing"),
        ("driver/manifest.json", lambda path: path.write_text("{}"), "manifest"),
        # What no manifest names.
        ("driver/usr/bin/other", _add, "extra"),
        (f"lib/modules/{KERNEL}/other.ko", _add, "extra"),
        ("lib/modules/5.10.0-1-amd64/modules.dep", _add, "extra"),
        ("etc/passwd", _add, "extra"),
        ("driver/lib", lambda path: path.symlink_to("/usr/lib"), "extra"),
    ],
)
def test_damage_is_named(
    tmp_path: Path, damaged: str, damage: Callable[[Path], object], kind: str
) -> None:
    make_artifact(tmp_path)
    damage(tmp_path / damaged)
    found = {(f.path, f.kind) for f in verify_artifact(tmp_path).findings}
    assert (damaged, kind) in found
    assert kind != "extra" or len(found) == 1


@pytest.mark.parametrize(
    "module",
    [make_module("6.1.0-48-amd64 SMP preempt"), make_module(f"{KERNEL} SMP preempt_rt"), b"none"],
)
def test_a_module_that_is_not_for_this_kernel_is_found(tmp_path: Path, module: bytes) -> None:
    make_artifact(tmp_path, module=module)
    (finding,) = verify_artifact(tmp_path).findings
    assert (finding.path, finding.kind) == (MODULE, "vermagic")


def test_a_module_that_modprobe_would_not_find_is_found(tmp_path: Path) -> None:
    make_artifact(tmp_path)
    (tmp_path / _DEP).write_text("other.ko:\n")
    (finding,) = verify_artifact(tmp_path).findings
    assert (finding.path, finding.kind) == (MODULE, "modules.dep")


def test_another_pin_is_found_in_each_place_that_names_one(tmp_path: Path) -> None:
    entry = tmp_path / ("0" * 12)
    manifest = make_artifact(entry)
    write_manifest(entry, manifest, pin_digest=make_pin(version="9").digest)
    findings = verify_artifact(entry, pin_label="none").findings
    assert [f.kind for f in findings] == ["pin", "pin", "pin"]


def test_all_findings_are_reported_together(tmp_path: Path) -> None:
    make_artifact(tmp_path)
    _alter(tmp_path / _LIBRARY)
    (tmp_path / MODULE).unlink()
    write(tmp_path / "driver/extra", b"x")
    with pytest.raises(ProvisionError) as caught:
        verify_artifact(tmp_path).require_whole("The entry")
    details = caught.value.details or ""
    assert all(name in details for name in (_LIBRARY, MODULE, "driver/extra"))


def test_a_missing_artifact_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        verify_artifact(tmp_path / "missing")


_NEEDS = f"lib/modules/{KERNEL}/demo_needs.ko"
_FOR_HOSTS = f"host/lib/modules/{KERNEL}"


def _with_kmm(folder: Path) -> None:
    """Add a module for KMM, as a build does, and what keeps it from hosts."""
    manifest = make_artifact(folder)
    (demo,) = manifest.modules
    write(folder / _NEEDS, make_module())
    write(folder / _DEP, b"demo.ko: demo_needs.ko\ndemo_needs.ko:\n")
    write(folder / _FOR_HOSTS / "modules.dep", b"demo.ko:\n")
    (folder / _FOR_HOSTS / "demo.ko").symlink_to(f"../../../../{MODULE}")
    kmm = demo.model_copy(update={"name": "demo_needs", "path": _NEEDS})
    write_manifest(folder, manifest, kmm=kmm)


def _list_nothing(module: Path) -> None:
    (module.parent / "modules.dep").write_bytes(b"")


@pytest.mark.parametrize(
    ("damaged", "damage", "kind"),
    [
        (_NEEDS, _alter, "altered"),
        (_NEEDS, Path.unlink, "missing"),
        (f"{_FOR_HOSTS}/demo.ko", _relink, "link"),
        (f"{_FOR_HOSTS}/demo.ko", Path.unlink, "missing"),
        (f"{_FOR_HOSTS}/modules.dep", Path.unlink, "missing"),
        (f"{_FOR_HOSTS}/other.ko", lambda path: path.symlink_to("demo.ko"), "extra"),
        # KMM's is complete, and hosts would not find the module all the same.
        (f"{_FOR_HOSTS}/demo.ko", _list_nothing, "modules.dep"),
    ],
)
def test_damage_to_what_kmm_needs_is_found(
    tmp_path: Path, damaged: str, damage: Callable[[Path], None], kind: str
) -> None:
    _with_kmm(tmp_path)
    assert verify_artifact(tmp_path).findings == ()
    damage(tmp_path / damaged)
    assert [(f.path, f.kind) for f in verify_artifact(tmp_path).findings] == [(damaged, kind)]


def test_a_folder_that_users_can_not_read_is_found(tmp_path: Path) -> None:
    """As one that was made with root's umask: a rootless container has no driver then."""
    folder = tmp_path / make_pin().short_digest
    make_artifact(folder)
    folder.chmod(0o755)
    entry = verify_artifact(folder)
    assert entry.manifest is not None
    before = files_fingerprint(folder, entry.manifest)
    for closed in (folder, folder / "lib/modules", folder / "driver"):
        closed.chmod(0o750)
    assert {(finding.path, finding.kind) for finding in verify_artifact(folder).findings} == {
        (".", "mode"),
        ("lib/modules", "mode"),
        ("driver", "mode"),
    }
    assert files_fingerprint(folder, entry.manifest) != before


def test_a_hard_link_elsewhere_is_no_change(tmp_path: Path) -> None:
    manifest = make_artifact(tmp_path / "entry")
    before = files_fingerprint(tmp_path / "entry", manifest)
    (tmp_path / "other.ko").hardlink_to(tmp_path / "entry" / manifest.modules[0].path)
    assert files_fingerprint(tmp_path / "entry", manifest) == before


@pytest.mark.parametrize("is_entry", [True, False])
def test_a_loader_is_the_hosts_and_never_an_images(tmp_path: Path, *, is_entry: bool) -> None:
    """It runs as root, and the image of an artifact may come from anywhere."""
    folder = tmp_path / (make_pin().short_digest if is_entry else "entry")
    make_artifact(folder)
    write(folder / "load", b"reboot")
    (folder / "usr/lib").mkdir(parents=True)
    (folder / "usr/lib/modules").symlink_to("/lib/modules")
    (tmp_path / "current").symlink_to(folder.name)
    for path in (folder, tmp_path / "current"):
        found = {finding.path for finding in verify_artifact(path).findings}
        assert found == (set() if is_entry else {"load", "usr/lib/modules"})
