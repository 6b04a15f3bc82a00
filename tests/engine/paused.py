"""`provision` in a process of its own, which stops where a test says until the test lets it go on.

Run as `python -m engine.paused WORDS…`. Artifacts are made up in a moment in place of builds, and
the engine that has their images lives in memory; all else, every lock and file, is the real thing.

    PAUSE_AT   where it stops: activate, build, reject, state, status (comma separated)
    PAUSE_IN   folder in which `<place>.reached` appears then, and `<place>.go` lets it go on
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import provision.cli as entry
from kit.artifact import KERNEL, VERMAGIC, add, make_artifact, make_module, make_pin
from kit.process import start, wait_for
from provision.agent import actions, prepare, rollback
from provision.build.image import DIGEST_LABEL, record_built
from provision.build.request import DriverRequest
from provision.build.workspace import Settings, default_cache
from provision.documents import load_json
from provision.engine import docker_api
from provision.engine.docker_api import Image
from provision.manifest import Manifest
from provision.pin import PIN_LABEL, Pin
from provision.store.layout import Layout
from provision.store.obtain import Stored
from unit.engine.fake_engine import FakeEngine

DRIVER = "demo"
VERSIONS = ("1.2", "2.0", "3.0")
_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class PausedCommand:
    """A command that was started."""

    # The process.
    process: subprocess.Popen[bytes]
    # What it says.
    log: Path
    # Where it reports that it stopped, and waits for leave to go on.
    folder: Path

    @classmethod
    def start(cls, folder: Path, *words: str | Path, at: str = "") -> PausedCommand:
        """Start `provision WORDS`; `folder` is its own."""
        folder.mkdir(parents=True, exist_ok=True)
        environment = {
            "PAUSE_AT": at,
            "PAUSE_IN": str(folder),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        log = folder / "log"
        return cls(
            start([sys.executable, "-m", "engine.paused", *words], log=log, env=environment),
            log,
            folder,
        )

    @property
    def said(self) -> str:
        """All that it has said so far."""
        return self.log.read_text()

    def until(self, reached: Callable[[], object]) -> None:
        """Wait until something is so, or the process has ended."""
        wait_for(
            "a place",
            reached,
            within_s=_LIMIT_S,
            pause_s=0.02,
            or_end_of=self.process,
            said=self.log.read_text,
        )

    def reaches(self, place: str) -> None:
        """Wait until it has stopped at a place."""
        self.until((self.folder / f"{place}.reached").exists)
        assert self.process.poll() is None, self.said

    def go_on(self, place: str) -> None:
        """Let it go on."""
        (self.folder / f"{place}.go").touch()

    def ends(self) -> int:
        """Wait until it has ended; the exit status."""
        return self.process.wait(_LIMIT_S)

    def is_killed(self, *, after_s: float) -> None:
        """SIGKILL it when a while has passed, unless it has ended by then."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(after_s)
        self.process.kill()
        self.process.wait()


def _hold(place: str) -> None:
    """Stop here, if a test wants that."""
    if place not in os.environ.get("PAUSE_AT", "").split(","):
        return
    folder = Path(os.environ["PAUSE_IN"])
    (folder / f"{place}.reached").touch()
    wait_for("leave to go on", (folder / f"{place}.go").exists, within_s=_LIMIT_S, pause_s=0.02)


def _around(module: Any, name: str, place: str) -> None:  # noqa: ANN401
    """Let a function of a module stop before its work."""
    real = getattr(module, name)

    def held(*given: Any, **more: Any) -> Any:  # noqa: ANN401 - handed on
        _hold(place)
        return real(*given, **more)

    setattr(module, name, held)


def _make_up(folder: Path, version: str, release: str) -> Manifest:
    """Write an artifact of a version for a kernel, and return its manifest."""
    module = make_module(VERMAGIC.replace(KERNEL, release), version=version)
    return make_artifact(folder, pin=make_pin(version=version, kernel=release), module=module)


def _resolve(_settings: object, wanted: DriverRequest) -> Pin:
    """Stand in for ``resolve_pin``."""
    version = wanted.version or wanted.prefer or VERSIONS[-1]
    return make_pin(version=version, kernel=wanted.kernel or KERNEL)


def _obtain(
    settings: Settings,
    pin: Pin,
    *,
    replace: bool,
    **_more: object,
) -> Stored:
    """Stand in for ``obtain``: the store is the real one."""
    layout = Layout(settings.root, pin.driver.name)
    entry = layout.entry(pin.short_digest)
    made: list[Manifest] = []
    _hold("build")

    def fill(partial: Path) -> None:
        made.append(_make_up(partial, pin.driver.version, pin.kernel.release))

    add(layout, pin.short_digest, fill, replace=replace)
    manifest = made[0] if made else load_json(entry / "driver/manifest.json", Manifest)
    return Stored(manifest, entry, "build", {"total": 1.0})


def _engine(_host: object) -> FakeEngine:
    """An engine that has the images of all versions, for the kernel of the tests."""
    engine = FakeEngine()
    for version in VERSIONS:
        pin = make_pin(version=version)
        content = Path(os.environ["PAUSE_IN"]) / f"content-{version}"
        _make_up(content, version, KERNEL)
        labels = {DIGEST_LABEL: pin.digest, PIN_LABEL: pin.canonical_json()}
        image = Image(f"sha256:{pin.short_digest}", (pin.image,), labels=labels)
        engine.have(image, content)
        record_built(default_cache(), image.id, pin.image)
    return engine


def _replace_held(real: Callable[..., None]) -> Callable[..., None]:
    """Let a rename stop that is about to give a draft its name."""

    def replace(draft: str | Path, to: str | Path, **folders: int) -> None:
        for place in ("state", "status"):
            if Path(draft).name.startswith(f".{place}.json."):
                _hold(place)
        real(draft, to, **folders)

    return replace


def _main() -> None:
    _around(rollback, "reject", "reject")
    _around(actions, "activate", "activate")
    for place, name, stand_in in (
        (os, "replace", _replace_held(os.replace)),
        (prepare, "Prepare", partial(prepare.Prepare, resolve=_resolve, obtain=_obtain)),
        (docker_api, "connect", _engine),
    ):
        setattr(place, name, stand_in)
    entry.main(sys.argv[1:])


if __name__ == "__main__":
    _main()
