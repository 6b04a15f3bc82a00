"""A whole host in a folder: a kernel that loads modules, a store, and builds that are made up."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest

from kit.artifact import (
    KERNEL,
    VERMAGIC,
    add,
    make_artifact,
    make_module,
    make_pin,
    with_program,
    write_manifest,
)
from kit.files import write
from kit.host_tree import DRIVER, HostTree
from provision.agent.actions import Preparations
from provision.agent.desired import load_desired
from provision.agent.model import Desired, Mode, Run
from provision.agent.prepare import Prepare, settings_of
from provision.agent.run import Result, apply
from provision.agent.status import ArtifactStatus
from provision.build.request import DriverRequest
from provision.errors import ProvisionError
from provision.manifest import Check, HostNeeds, Manifest, PciMatch
from provision.pin import ClosurePackage, Pin
from provision.progress import Event, Note, listening
from provision.store.layout import Layout
from provision.store.obtain import Stored

OLDER, NEWEST = "1.2", "2.0"


@dataclass
class Host(HostTree):
    """A host that should have the driver ``demo``."""

    # What is raised instead of making an artifact, by kernel or driver.
    broken: dict[str, ProvisionError] = field(default_factory=dict)
    # The version that ``auto``, ``latest`` and ``production`` are.
    newest: str = NEWEST
    # Whether versions that were chosen before are not offered any more.
    is_gone: bool = False
    # What the driver needs of its host.
    needs: HostNeeds = field(default_factory=HostNeeds)
    # What the driver says that it drives.
    drives: tuple[PciMatch, ...] = ()
    # How the driver checks itself, and the script that does it, by version.
    check: Check | None = None
    scripts: dict[str, str] = field(default_factory=dict)
    # The packages of a Pin, until they are solved for again.
    closure: tuple[ClosurePackage, ...] = ()
    # Stands in for a build; None: its artifact is made.
    builds: Callable[..., Stored] | None = None
    # What was resolved.
    wanted: list[DriverRequest] = field(default_factory=list)
    # What was said.
    notes: list[str] = field(default_factory=list)

    def ask_for(self, version: str) -> None:
        """Write a provision.toml that names a version."""
        self.configure(f'[drivers.{DRIVER}]\nversion = "{version}"\n')

    def desired(self) -> Desired:
        return load_desired(self.root)

    def remove_kernel(self, release: str) -> None:
        for name in (f"lib/modules/{release}/modules.dep", f"boot/vmlinuz-{release}"):
            (self.root / name).unlink()

    def apply(self, **mode: bool) -> Result:
        with listening(self.hear):
            flags = Mode(**mode)  # type: ignore[arg-type] # all but the kernels are
            return apply(Run(self.root, self.desired(), flags), self.preparations)

    def prepare(self, *extra_kernels: str) -> Result:
        """Run the agent once, with kernels that are yet to come."""
        with listening(self.hear):
            mode = Mode(extra_kernels=extra_kernels)
            return apply(Run(self.root, self.desired(), mode), self.preparations)

    def preparations(self, run: Run, held: ExitStack) -> Preparations:
        """Return what makes up artifacts, in place of builds."""
        settings = held.enter_context(settings_of(run).connected())
        return partial(Prepare, settings, run, resolve=self.resolve, obtain=self.obtain)

    def kinds(self, **mode: bool) -> list[str]:
        """Run the agent once; what it did."""
        return [f"{o.action.kind} {o.action.kernel}" for o in self.apply(**mode).outcomes]

    def artifact(self, release: str = KERNEL, **mode: bool) -> ArtifactStatus:
        """Run the agent once; what it says of a kernel."""
        (driver,) = self.apply(**mode).status.drivers
        return next(artifact for artifact in driver.kernels if artifact.release == release)

    def hear(self, event: Event) -> None:
        if isinstance(event, Note):
            self.notes.append(event.text)

    def current(self) -> str:
        manifest = Manifest.model_validate_json(
            (self.layout.current / "driver/manifest.json").read_text()
        )
        return manifest.pin.driver.version

    def module(self, release: str = KERNEL) -> Path:
        """The module file of a kernel's artifact."""
        (path,) = self.layout.kernel_link(release).resolve().glob("lib/modules/*/demo.ko")
        return path

    def resolve(self, _settings: object, wanted: DriverRequest) -> Pin:
        self.wanted.append(wanted)
        release = wanted.kernel or ""
        for what in (release, wanted.driver):
            if what in self.broken:
                raise self.broken[what]
        prefer = None if self.is_gone else wanted.prefer
        kinds = {None, "auto", "latest", "production"}
        named = None if wanted.version in kinds else wanted.version
        version = named or prefer or self.newest
        pin = make_pin(driver=wanted.driver, version=version, kernel=release)
        if not wanted.refresh:
            pin = pin.model_copy(update={"closure": self.closure})
        return pin

    def obtain(self, settings: object, pin: Pin, **more: bool) -> Stored:
        return (self.builds or self.build)(settings, pin, **more)

    def build(self, _settings: object, pin: Pin, **more: bool) -> Stored:
        """Put a made-up artifact into the store."""
        layout = Layout(self.root, pin.driver.name)
        entry = layout.entry(pin.short_digest)
        del more
        vermagic = VERMAGIC.replace(KERNEL, pin.kernel.release)
        module = make_module(vermagic, version=pin.driver.version)
        made: list[Manifest] = []

        def fill(partial: Path) -> None:
            manifest = make_artifact(partial, pin=pin, module=module)
            changes = {"host": self.needs, "cards": self.drives, "check": self.check}
            manifest = manifest.model_copy(update=changes)
            if script := self.scripts.get(pin.driver.version):
                manifest = with_program(partial, manifest, f"#!/bin/sh\n{script}\n".encode())
            made.append(manifest)
            write_manifest(partial, made[0])

        add(layout, pin.short_digest, fill, replace=True)
        return Stored(made[0], entry, "build", {"total": 1.5})


def make_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Make a host whose kernel runs."""
    host = Host.make(folder)
    for name, value in host.environment.items():
        monkeypatch.setenv(name, value)
    host.configure(f"[drivers.{DRIVER}]\n")
    return host


def dpkg_at_work(root: Path) -> BinaryIO:
    """Hold dpkg's lock until the file is closed, as another process does."""
    write(root / "var/lib/dpkg/lock", b"")
    stream = (root / "var/lib/dpkg/lock").open("wb")
    # A lock of an open file belongs to no process: fcntl(2), open file description locks.
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(stream, fcntl.F_OFD_SETLK, lock)
    return stream
