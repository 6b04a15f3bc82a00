"""A host whose driver works: what doctor's tests break, one thing at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from kit.artifact import KERNEL, make_artifact, make_pin, write, write_manifest
from provision.doctor import Finding, diagnose, observe
from provision.manifest import DeviceNode, DriverFile, HostNeeds, Manifest
from provision.shipped import templates_dir
from provision.store.activate import apply, plan
from provision.store.entries import link_kernel
from provision.store.layout import Layout
from provision.store.state import DriverState, Failure, KernelState, store_state
from provision.store.units import DEBIAN_HOOKS, UnitSettings, apply_units, plan_units, unit_files

NEXT_KERNEL = "6.1.0-50-amd64"
DRIVER = "v4l2loopback"
FIRMWARE = "/lib/firmware/demo/fw.bin"


@dataclass
class DoctorHost:
    """A host's root with a driver of the catalogue that is loaded, with units and an engine."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.file("etc/os-release", 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n')
        self.file("proc/sys/kernel/osrelease", f"{KERNEL}\n")
        self.file("proc/version", "Linux version 6 (gcc-12 (Debian 12.2.0-14) 12.2.0, GNU ld)\n")
        self.file("usr/bin/skopeo", "")
        self.file("proc/modules", "demo 16384 0 - Live 0x0 (OE)\n")
        self.file("sys/module/demo/taint", "OE\n")
        self.file("dev/kmsg", "6,1,1,-;Linux version 6.1.0\n")
        self.file("usr/bin/dockerd", "")
        self.listen("/run/docker.sock")
        self.file(f"lib/modules/{KERNEL}/modules.dep", "")
        (self.root / "var/lib/dpkg").mkdir(parents=True)
        pin = make_pin(driver=DRIVER, version="0.12.7")
        self.layout = Layout(self.root, DRIVER)
        self.entry = self.layout.entry(pin.short_digest)
        self.manifest = make_artifact(self.entry, pin=pin)
        self.install()
        files = unit_files(
            templates_dir(),
            UnitSettings(program="/bin/true", documentation="file:///", hooks=DEBIAN_HOOKS),
        )
        apply_units(self.root, plan_units(self.root, files), on_change=lambda _change: None)

    def install(self) -> None:
        """Put the artifact to use."""
        apply(self.layout, plan(self.layout, self.manifest), on_change=lambda _change: None)
        link_kernel(self.layout, KERNEL, self.entry.name)

    def file(self, name: str, content: str) -> Path:
        """Write a file of the host."""
        write(self.root / name, content.encode())
        return self.root / name

    def need(
        self,
        *,
        conflicts: tuple[str, ...] = (),
        nodes: tuple[DeviceNode, ...] = (),
        firmware: bool = False,
    ) -> Manifest:
        """Let the driver need more of its host."""
        host = HostNeeds(conflicts=conflicts, nodes=nodes)
        files = self.manifest.files
        if firmware:
            write(self.entry / f"driver{FIRMWARE}", b"firmware")
            files += (
                DriverFile(path=FIRMWARE, kind="firmware", sha256="0" * 64, size=8, mode="0644"),
            )
        self.manifest = self.manifest.model_copy(update={"host": host, "files": files})
        write_manifest(self.entry, self.manifest)
        return self.manifest

    def fail(self, kernel: str, reason: str, message: str, *, attempts: int = 1) -> None:
        """Let the agent remember a failure."""
        failure = Failure(
            reason=reason,
            message=message,
            resolution="do this",
            details="file.c:1: error: no\nmore",
            inputs="0",
            time=0,
            attempts=attempts,
            log="/var/cache/provision/logs/x.log",
        )
        store_state(self.layout, DriverState(kernels={kernel: KernelState(failure=failure)}))

    def listen(self, *paths: str) -> None:
        """Let services listen on these sockets, and on no other."""
        rows = [f"0000000000000000: 00000002 00000000 00010000 0001 01 1 {path}" for path in paths]
        head = "Num       RefCount Protocol Flags    Type St Inode Path"
        client = "0000000000000000: 00000003 00000000 00000000 0001 03 2 /run/podman/podman.sock"
        self.file("proc/net/unix", "\n".join([head, *rows, client, ""]))

    def next_kernel(self) -> None:
        """Install a newer kernel."""
        self.file(f"lib/modules/{NEXT_KERNEL}/modules.dep", "")

    def results(self, check: str) -> list[Finding]:
        """What one check says."""
        scene = replace(observe(self.root), environment=self.environment)
        return [result for result in diagnose(scene) if result.check == check]
