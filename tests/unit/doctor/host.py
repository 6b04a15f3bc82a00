"""A host whose driver works: what doctor's tests break, one thing at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kit.artifact import KERNEL, make_artifact, make_pin, write, write_manifest
from kit.host_tree import HostTree
from provision.agent.desired import load_desired, read_inputs
from provision.agent.model import Desired
from provision.agent.use import activate
from provision.config import DriverConfig
from provision.doctor import Finding, diagnose, observe
from provision.files import templates_dir
from provision.manifest import DriverFile, HostNeeds, Manifest
from provision.store.entries import link_kernel
from provision.store.layout import Layout
from provision.store.state import Failure, update_state
from provision.store.units import DEBIAN_HOOKS, UnitSettings, apply_units, plan_units, unit_files

NEXT_KERNEL = "6.1.0-50-amd64"
DRIVER = "v4l2loopback"
FIRMWARE = "/lib/firmware/demo/fw.bin"
_PIN = make_pin(driver=DRIVER, version="0.12.7")


@dataclass
class DoctorHost(HostTree):
    """A host with a driver of the catalogue that is loaded, with units and an engine."""

    variables: dict[str, str] = field(default_factory=dict)
    manifest: Manifest = field(init=False)

    @classmethod
    def make(cls, folder: Path) -> Self:
        """Make a host on which nothing is wrong."""
        host = super().make(folder)
        host.have("demo")
        host.write("sys/module/demo/taint", "OE\n")
        host.write("dev/kmsg", "6,1,1,-;Linux version 6.1.0\n")
        for program in ("skopeo", "dockerd"):
            host.write(f"usr/bin/{program}", "")
        host.listen("/run/docker.sock")
        (host.root / "var/lib/dpkg").mkdir(parents=True)
        host.manifest = make_artifact(host.entry, pin=_PIN)
        host.install()
        files = unit_files(
            templates_dir(),
            UnitSettings(program="/bin/true", documentation="file:///", hooks=DEBIAN_HOOKS),
        )
        apply_units(host.root, plan_units(host.root, files))
        return host

    @property
    def layout(self) -> Layout:
        """The driver's places."""
        return Layout(self.root, DRIVER)

    @property
    def desired(self) -> Desired:
        """What provision.toml asks for, and the driver."""
        desired = load_desired(self.root)
        drivers = {DRIVER: DriverConfig(), **desired.drivers}
        return desired._replace(config=desired.config.model_copy(update={"drivers": drivers}))

    @property
    def entry(self) -> Path:
        """The driver in the store."""
        return self.layout.entry(_PIN.short_digest)

    def install(self) -> None:
        """Put the artifact to use."""
        link_kernel(self.layout, KERNEL, self.entry.name)
        activate(self.layout, self.entry)
        inputs = read_inputs(self.root, self.desired).of(DRIVER, KERNEL)
        update_state(self.layout, lambda state: state.changed(KERNEL, inputs=inputs))

    def need(
        self,
        *,
        conflicts: tuple[str, ...] = (),
        firmware: bool = False,
    ) -> Manifest:
        """Let the driver need more of its host."""
        host = HostNeeds(conflicts=conflicts)
        files = self.manifest.files
        if firmware:
            write(self.entry / f"driver{FIRMWARE}", b"firmware")
            files += (
                DriverFile(path=FIRMWARE, kind="firmware", sha256="0" * 64, size=8, mode="0644"),
            )
        self.manifest = self.manifest.model_copy(update={"host": host, "files": files})
        write_manifest(self.entry, self.manifest)
        return self.manifest

    def fail(self, kernel: str, reason: str, message: str) -> None:
        """Let the agent remember a failure."""
        failure = Failure(
            reason=reason,
            message=message,
            resolution="do this",
            details="file.c:1: error: no\nmore",
            inputs=read_inputs(self.root, self.desired).of(DRIVER, kernel),
            time=0,
            log="/var/cache/provision/logs/x.log",
        )
        update_state(self.layout, lambda state: state.changed(kernel, failure=failure))

    def listen(self, *paths: str) -> None:
        """Let services listen on these sockets, and on no other."""
        rows = [f"0000000000000000: 00000002 00000000 00010000 0001 01 1 {path}" for path in paths]
        head = "Num       RefCount Protocol Flags    Type St Inode Path"
        client = "0000000000000000: 00000003 00000000 00000000 0001 03 2 /run/podman/podman.sock"
        self.write("proc/net/unix", "\n".join([head, *rows, client, ""]))

    def next_kernel(self) -> None:
        """Install a newer kernel."""
        self.add_kernel(NEXT_KERNEL)

    def results(self, check: str) -> list[Finding]:
        """What one check says."""
        scene = observe(self.root)._replace(environment=self.variables)
        return [result for result in diagnose(scene) if result.check == check]
