"""The demo's seven steps, in the order of their numbers."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo.choice import Choice, choose
from demo.containers import Client, Received, make_nodes, show
from demo.engines import Engines, open_engines
from demo.screen import DemoError, Screen
from demo.summary import print_summary
from kit.process import Completed
from kit.product import DECORATOR, RUNTIME, Provision, failure_of, write_runtime_config


@dataclass
class Demo:
    """One run: what the steps hand on to each other."""

    screen: Screen
    opened: ExitStack
    root: Path = field(init=False)
    engines: Engines = field(init=False)
    provision: Provision = field(init=False)
    facts: dict[str, Any] = field(init=False)
    choice: Choice = field(init=False)
    base: str = field(init=False)
    built: dict[str, Any] = field(init=False)
    entry: Path = field(init=False)
    received: Received = field(init=False)

    def run(self) -> None:
        """All steps.

        Raises:
            DemoError: a step failed; everything that was started is stopped by `opened`.
        """
        self.root = Path(tempfile.mkdtemp(prefix="provision-demo-"))
        self.opened.callback(shutil.rmtree, self.root, ignore_errors=True)
        steps = [
            ("provision facts: what this machine is", self.show_facts),
            ("provision resolve: everything that is pinned", self.resolve),
            ("provision build: modules and user space, as an image", self.build),
            ("provision verify --boot: is it whole, and does that kernel load it", self.verify),
            ("provision install: into the store below a folder", self.install),
            ("containers, with the flag and without", self.containers),
        ]
        self._prepare()
        for number, (title, step) in enumerate(steps, start=1):
            with self.screen.step(number, title):
                step()
        with self.screen.step(len(steps) + 1, "what came out of it"):
            self.summarise()

    def _prepare(self) -> None:
        config = write_runtime_config(
            self.root / "oci-decorator.toml",
            self.root / "etc/oci-decorator/oci-decorator.d",
            root=self.root,
        )
        environment = {"OCI_DECORATOR_CONFIG": str(config)}
        self.engines = open_engines(
            self.screen, self.opened, {"oci-decorator": RUNTIME}, environment
        )
        self.provision = Provision(self.engines.builder)

    def show_facts(self) -> None:
        """Step 1."""
        self._provision("facts")
        self.facts = self.provision.json("facts")

    def resolve(self) -> None:
        """Step 2, with the base image that a Pin names."""
        self.choice = choose(self.provision, self.facts)
        pick = self.choice
        self.screen.say(f"{pick.driver} for {pick.kernel} of {pick.distro}: {pick.why}")
        self.base = self.engines.ensure_base(self.screen, self.opened, self.provision, pick.distro)
        flags = (*self._target(), *self.engines.network_flags)
        self._provision("resolve", *flags, lines=60)
        pin = self.provision.json("resolve", *flags)
        self.screen.check(pin["digest"], "the Pin has a digest, which names the image", pin)

    def build(self) -> None:
        """Step 3."""
        flags = (*self._target(), *self.engines.network_flags)
        self.built = json.loads(self._provision("build", *flags, "--json", lines=0).stdout)
        self.screen.say(f"image {self.built['image']}")
        if self.built["built"]:
            self.engines.forget_image_at_end(self.opened, self.built["image"])
        else:
            self.screen.say("nothing changed since it was built last: no build was started")

    def verify(self) -> None:
        """Step 4."""
        image = self.built["image"]
        done = self._provision("verify", "--boot", image, *self.engines.network_flags)
        self.screen.check(
            done.returncode == 0, "checksums are right, and its kernel takes the modules", done
        )

    def install(self) -> None:
        """Step 5."""
        done = self._provision("install", self.built["image"], "--root", self.root)
        self.screen.check(done.returncode == 0, "it is in the store", done)
        driver = self.choice.driver
        current = self.root / "var/lib/provision" / driver / "current"
        self.screen.check(
            current.is_symlink(), f"{current.relative_to(self.root)} points at it", done
        )
        self.entry = current.resolve()
        self.screen.run(["find", self.root / "etc", "-type", "f"])
        configs = self.screen.run([DECORATOR, "check", *self._decorator_flags()], lines=12)
        self.screen.check(
            configs.returncode == 0, "oci-decorator accepts the vendor config", configs
        )

    def containers(self) -> None:
        """Step 6."""
        config = json.loads(self._vendor_config().read_text())
        self.received = Received.from_config(config)
        flag = config["activation_flag"]
        make_nodes(self.screen, self.choice.driver, self.root)
        archive = self.engines.share_base(self.base, self.root / "base.tar")
        for client in self._clients(archive):
            self.screen.say("")
            show(self.screen, client, self.base, flag, self.choice.driver, self.received)

    def summarise(self) -> None:
        """Step 7."""
        manifest = json.loads((self.entry / "driver/manifest.json").read_text())
        size = self.engines.image_size(self.built["image"])
        print_summary(self.screen, self.built, manifest, self.received, size)

    def _target(self) -> tuple[str, ...]:
        pick = self.choice
        # The newest of the distro's packages, which need the archive only.
        version = ("--version", "latest")
        return (pick.driver, *version, "--kernel", pick.kernel, "--distro", pick.distro)

    def _vendor_config(self) -> Path:
        return self.root / "etc/oci-decorator/oci-decorator.d" / f"{self.choice.driver}.json"

    def _decorator_flags(self) -> list[str]:
        folder = self.root / "etc/oci-decorator/oci-decorator.d"
        return ["--config-dir", str(folder), "--root", str(self.root)]

    def _clients(self, archive: Path) -> list[Client]:
        runner = self.engines.runner
        podman = self.engines.open_podman(self.opened, archive)
        return [
            Client("docker", ("docker", "--host", runner.host), {}),
            Client("podman", tuple(podman.command()), podman.variables()),
        ]

    def _provision(self, *words: str | Path, lines: int = 24) -> Completed:
        argv = [self.provision.program, *words]
        done = self.screen.run(argv, env=self.provision.variables(), live=True, lines=lines)
        if done.returncode != 0:
            raise DemoError(str(failure_of(done)))
        return done
