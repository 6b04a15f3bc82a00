"""An installation that is killed leaves nothing half-done, and the next run finishes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.artifact import make_pin
from provision.agent.desired import load_desired
from provision.agent.use import use
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config
from provision.kmod.verify import verify_artifact
from provision.registry.find import TrustOverride
from provision.store.layout import Layout
from provision.store.obtain import store_image
from unit.engine.fake_engine import FakeEngine, using
from unit.killing import KILLER

pytestmark = [pytest.mark.tier(2), pytest.mark.usefixtures("no_sync")]


class _World:
    """A host, an engine with two versions of a driver, and the next run."""

    def __init__(self, folder: Path) -> None:
        self.engine = FakeEngine()
        self.pins = [make_pin(version=version) for version in ("1.2", "1.3")]
        for pin in self.pins:
            content = folder / f"content-{pin.driver.version}"
            self.engine.have_built(pin, content, folder / "state")
        self.root = folder / "host"
        self.root.mkdir(parents=True)
        self.layout = Layout(self.root, "demo")
        self.settings = Settings(self.root, Config(), Catalogue([]), folder / "state")

    def install(self, number: int) -> None:
        settings = using(self.settings, self.engine)
        stored = store_image(settings, self.pins[number].image, TrustOverride())
        use(self.root, load_desired(self.root), stored.entry, stored.manifest)

    def check_consistent(self) -> None:
        """Everything that has its final name is whole."""
        folders = {p for p in self.layout.folder.glob("[!.]*") if p.is_dir() and not p.is_symlink()}
        entries = folders - {self.layout.kernels}
        for entry in entries:
            # A loader that was not written to its end goes with the next run.
            findings = verify_artifact(entry).findings
            assert [found for found in findings if not found.path.startswith(".load.")] == []
        for link in (self.layout.current, self.layout.previous):
            assert not link.is_symlink() or link.resolve() in entries

    def check_installed(self, number: int, *, before: int | None) -> None:
        pin = self.pins[number]
        assert str(self.layout.current.readlink()) == pin.short_digest
        assert f'"version": "{pin.driver.version}"' in self.layout.vendor_config.read_text()
        if before is not None:
            assert str(self.layout.previous.readlink()) == self.pins[before].short_digest
        hidden = [path for path in self.root.rglob(".*") if path.name != ".lock"]
        assert hidden == []
        self.check_consistent()


def _operations(tmp_path: Path, *, update: bool) -> int:
    world = _World(tmp_path)
    if update:
        world.install(0)
    with KILLER.at(None):
        world.install(int(update))
    return KILLER.count


@pytest.mark.parametrize("update", [False, True])
def test_every_single_operation_may_be_the_last(
    tmp_path: Path,
    *,
    update: bool,
) -> None:
    count = _operations(tmp_path / "count", update=update)
    assert count > 20
    for number in range(count):
        world = _World(tmp_path / str(number))
        if update:
            world.install(0)
        with KILLER.at(number):
            world.install(int(update))
        world.check_consistent()
        world.install(int(update))
        world.check_installed(int(update), before=0 if update else None)
