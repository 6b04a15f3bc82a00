"""The engines of the demo: one that builds, one that runs containers with our runtime.

They are the same one, private, unless an engine answers already: then that one builds. It can't
run the containers, because it doesn't know the runtime `oci-decorator`, and an engine that serves
others is not reconfigured by a demo.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path

from demo.screen import DemoError, Screen
from kit.cache import cache_dir
from kit.engine import Engine, answers
from kit.podman import Podman
from kit.process import run
from kit.product import BUILD_NETWORK, Provision, base_archive, error_text, have_base


@dataclass(frozen=True, slots=True)
class Engines:
    """Where images are built and where containers run."""

    # DOCKER_HOST of the engine that builds; None: the one that answers by itself.
    builder: str | None
    # The private engine.
    runner: Engine

    @property
    def network_flags(self) -> tuple[str, ...]:
        """Options of commands whose containers download: an engine without a bridge has no network.

        `resolve` solves in a container, `build` fetches commits in one.
        """
        bridges = self._builder_docker("network", "ls", "--quiet", "--filter", "driver=bridge")
        return () if bridges else BUILD_NETWORK

    def ensure_base(
        self, screen: Screen, opened: ExitStack, provision: Provision, distro: str
    ) -> str:
        """Have the base image of `distro` in the builder; its name."""
        if self.builder is not None:
            archive = base_archive(self.runner, distro)
            self.runner.docker("load", "--quiet", "--input", archive)
        screen.say(f"The base image of {distro} is pulled or made, if the engine has none.")
        base = have_base(provision, distro)
        if "error" in base:
            raise DemoError(f"there is no base image of {distro}: {error_text(base['error'])}")
        if base["made"]:
            self.forget_image_at_end(opened, base["image"])
        return str(base["image"])

    def share_base(self, image: str, archive: Path) -> Path:
        """The base image as an archive, and in the runner too."""
        self._builder_docker("save", "--output", str(archive), image)
        if self.builder is None:
            self.runner.docker("load", "--quiet", "--input", archive)
        return archive

    def image_size(self, image: str) -> int:
        """Bytes of an image."""
        return int(self._builder_docker("image", "inspect", "--format", "{{.Size}}", image))

    def forget_image_at_end(self, opened: ExitStack, image: str) -> None:
        """Remove our image from an engine of the machine; in a private one it is the cache."""
        if self.builder is None:
            opened.callback(run, ["docker", "image", "rm", image], check=False)

    def open_podman(self, opened: ExitStack, archive: Path) -> Podman:
        """A private podman with the runner's runtimes and the base image."""
        podman = Podman(self.runner.runtimes, self.runner.environment)
        opened.enter_context(podman)
        podman.load(archive)
        return podman

    def _builder_docker(self, *words: str) -> str:
        host = ["--host", self.builder] if self.builder else []
        return run(["docker", *host, *words]).stdout.strip()


def open_engines(
    screen: Screen, opened: ExitStack, runtimes: Mapping[str, Path], environment: Mapping[str, str]
) -> Engines:
    """Start what has to be started; `opened` stops it."""
    folder = cache_dir() / "demo-engine"
    lock = opened.enter_context((cache_dir() / ".demo-engine.lock").open("w"))
    flock(lock, LOCK_EX)
    runner = opened.enter_context(Engine(folder, runtimes, environment))
    if answers():
        screen.say(
            "An engine answers: it builds. Containers with our runtime run in a private one."
        )
        return Engines(None, runner)
    screen.say("No engine answers: started a private one.")
    screen.say(f"$ export DOCKER_HOST={runner.host}")
    screen.say(f"$ export OCI_DECORATOR_CONFIG={environment['OCI_DECORATOR_CONFIG']}")
    return Engines(runner.host, runner)
