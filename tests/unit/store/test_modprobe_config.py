"""The file that keeps the kernel's own modules out of a driver's way."""

from __future__ import annotations

from pathlib import Path

from provision.manifest import HostNeeds, Manifest
from provision.store.activate import apply, plan
from provision.store.layout import Layout
from unit.kmod.artifact import make_artifact


def _install(layout: Layout, manifest: Manifest) -> None:
    apply(layout, plan(layout, manifest), on_change=lambda _change: None)


def test_conflicts_are_blacklisted_as_long_as_the_driver_has_them(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "host", "demo")
    manifest = make_artifact(layout.entry("0" * 12))
    needs = HostNeeds(conflicts=("nouveau", "nova_core"))
    _install(layout, manifest.model_copy(update={"host": needs}))
    path = tmp_path / "host/etc/modprobe.d/provision-demo.conf"
    lines = path.read_text().splitlines()
    assert lines[1:] == ["blacklist nouveau", "blacklist nova_core"]
    assert lines[0].startswith("# ")
    _install(layout, manifest)
    assert not path.exists()
