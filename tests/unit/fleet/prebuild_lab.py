"""Builds of a fleet whose pushes arrive in a registry in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.artifact import make_pin
from kit.memory_registry import (
    ECDSA,
    MemoryRegistry,
    new_key,
)
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config
from provision.engine.docker_api import Message
from provision.fleet.matrix import runner
from provision.fleet.matrix.cells import Planned
from provision.fleet.matrix.results import Outcome as RunOutcome
from provision.fleet.matrix.results import Results
from provision.fleet.matrix.runner import MatrixRun, RunOptions
from provision.fleet.prebuild import FleetRegistry
from provision.progress import heard_by
from provision.registry.find import tag_of
from unit.engine.fake_engine import FakeEngine, using
from unit.fleet.matrix.test_runner import KERNELS, Lab, cells
from unit.registry.trusting_host import connected

ADDRESS = "registry.example/drivers"


KEY = new_key()


PINS = {
    (version, kernel): make_pin(version=version, kernel=kernel)
    for kernel in KERNELS
    for version in ("2.0", "1.2")
}


class PushingEngine(FakeEngine):
    """An engine whose pushes arrive."""

    def __init__(self, registry: MemoryRegistry) -> None:
        super().__init__()
        self.registry = registry

    def push(self, reference: str) -> Iterator[Message]:
        self.calls.append(f"push {reference}")
        tag = reference.rpartition(":")[2]
        pin = next(pin for pin in PINS.values() if tag_of(pin).text == tag)
        yield {"aux": {"Digest": self.registry.have_image(pin, [b"layer"], tag)}}

    def pushes(self) -> int:
        return sum(call.startswith("push ") for call in self.calls)


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: MemoryRegistry) -> Lab:
    root = tmp_path / "host"
    (root / "etc").mkdir(parents=True)
    (root / "etc/os-release").write_text("ID=debian\nVERSION_ID=12\nVERSION_CODENAME=bookworm\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = Settings(root, Config(), Catalogue([]), tmp_path / "cache")
    lab = Lab(settings, Results(tmp_path / "state"), engine=PushingEngine(registry))
    monkeypatch.setattr(runner, "resolve_pin", lab.resolve)
    monkeypatch.setattr(runner, "build_image", lab.build)
    return lab


def publisher(lab: Lab, registry: MemoryRegistry, **more: Any) -> FleetRegistry:  # noqa: ANN401 - its own fields
    return FleetRegistry(
        lab.settings,
        ADDRESS,
        lambda data: KEY.sign(data, ECDSA),
        connected=connected(registry),
        **more,
    )


def run(lab: Lab, place: FleetRegistry, *planned: Planned, **how: Any) -> RunOutcome:  # noqa: ANN401 - RunOptions' fields
    made = MatrixRun(
        using(lab.settings, lab.engine),
        lab.results,
        RunOptions(**how, publisher=place),
    )
    with heard_by(lab.events.append):
        return made.run(planned or cells())
