"""One QEMU process: its arguments, its monitor (QMP), its end.

Source of the protocol: QEMU's docs/interop/qmp-spec.rst.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kit.guest.recipe import CONTROL_MAC, WORLD_MAC
from kit.process import Daemon, run, wait_for

# One: emulated, a second one doubles what everything costs this machine (locks, and interrupts
# between the two), and tests run beside each other anyway.
_PROCESSORS = 1
_MEMORY_MB = 1280
_CONTROL = "control"
_WORLD = "world"
_DISK = "first"
_SECOND = "second"
# How long one command of the monitor may take: writing a snapshot is the longest.
_ANSWER_WITHIN_S = 120


def accelerator() -> str:
    """`$PROVISION_TEST_ACCELERATOR`, such as `kvm`; else `tcg`: emulation, which works anywhere.

    That /dev/kvm can be opened says little: a machine that is itself a guest may have one in which
    no BIOS runs.
    """
    return os.environ.get("PROVISION_TEST_ACCELERATOR", "tcg")


# A processor with few features is cheaper to emulate: a boot of a Nehalem, an x86-64-v2, takes 60 %
# of what it takes on `max`, whose AVX libraries use wherever they find it.
_MACHINE = (
    "qemu-system-x86_64",
    *("-accel", accelerator()),
    *("-cpu", "Nehalem" if accelerator() == "tcg" else "max"),
)


def machine_id() -> str:
    """What snapshots of such a machine have in their names: no other can go on from them."""
    machine = [*_MACHINE, str(_PROCESSORS), str(_MEMORY_MB)]
    return hashlib.sha256("\0".join(machine).encode()).hexdigest()[:8]


class Monitor:
    """QEMU's monitor, over a socket."""

    def __init__(self, path: Path) -> None:
        """Connect, and leave the mode in which only capabilities are negotiated."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_ANSWER_WITHIN_S)

        def is_connected() -> bool:
            with suppress(ConnectionRefusedError):
                self._socket.connect(str(path))
                return True
            return False

        # The socket's file is there a moment before QEMU listens.
        wait_for("QEMU's monitor", is_connected, within_s=60)
        self._lines = self._socket.makefile("r")
        self._lines.readline()
        self.execute("qmp_capabilities")

    def execute(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """Run a command; what it returns, in a form that is the command's own."""
        request = {"execute": command, **({"arguments": arguments} if arguments else {})}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        while line := self._lines.readline():
            answer = json.loads(line)
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise RuntimeError(f"QEMU refuses {command}: {answer['error']['desc']}")
        raise RuntimeError(f"QEMU ended before it answered {command}")

    def human(self, line: str) -> str:
        """Run a command of the monitor for people (some exist only there); what it prints."""
        return str(self.execute("human-monitor-command", {"command-line": line}))

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Qemu:
    process: Daemon
    monitor: Monitor

    @classmethod
    def start(
        cls,
        folder: Path,
        disk: Path,
        *,
        snapshot: str | None = None,
        port: int = 0,
        firmware: Sequence[str] = (),
    ) -> Qemu:
        """Start a machine, or go on from a snapshot; its console goes to `folder/console.log`.

        Args:
            folder: For its socket and logs; short, as a socket's path may have 107 bytes.
            port: Of the loopback interface, behind which its sshd is; 0: any.
            firmware: Arguments for another firmware than a BIOS.
        """
        control = folder / "qmp"
        control.unlink(missing_ok=True)
        argv = [*_MACHINE, *_arguments(folder, disk, port), *firmware]
        if snapshot is not None:
            argv += ["-loadvm", snapshot]
        process = Daemon(argv, log=folder / "qemu.log", ready=control.exists)
        try:
            return cls(process, Monitor(control))
        except OSError as error:
            process.stop()
            printed = (folder / "qemu.log").read_text(errors="replace")
            raise RuntimeError(f"QEMU ended at once: {printed}") from error

    def ssh_port(self) -> int:
        """The port of the loopback interface behind which the guest's sshd is."""
        listed = self.monitor.human("info usernet")
        found = re.search(r"TCP\[HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", listed)
        if found is None:
            raise RuntimeError(f"QEMU forwards no port:\n{listed}")
        return int(found[1])

    def set_network(self, *, on: bool) -> None:
        """Plug the cable of the network with the world in or out; ssh has one of its own."""
        self.monitor.execute("set_link", {"name": _WORLD, "up": on})

    def save(self, snapshot: str) -> None:
        """Write a snapshot of everything into the disk's file."""
        printed = self.monitor.human(f"savevm {snapshot}")
        if printed.strip():
            raise RuntimeError(f"QEMU could not write a snapshot: {printed}")

    def copy_disk(self, disk: Path, target: Path) -> None:
        """Copy the disk as a power cut at this moment would leave it."""
        # Stopping waits for requests that are under way; what the guest only has in memory is lost.
        self.monitor.execute("stop")
        try:
            run(["cp", "--reflink=auto", "--sparse=always", disk, target])
        finally:
            self.monitor.execute("cont")

    def slow_disk(self, requests_per_second: int) -> None:
        """Let the disk serve only so many requests; 0: as many as it can."""
        self.monitor.human(f"block_set_io_throttle {_DISK} 0 0 0 {requests_per_second} 0 0")

    def attach(self, disk: Path) -> None:
        """Plug in another disk, qcow2."""
        file = {"driver": "file", "filename": str(disk)}
        node = {"driver": "qcow2", "node-name": _SECOND, "file": file}
        self.monitor.execute("blockdev-add", node)
        device = {"driver": "virtio-blk-pci", "drive": _SECOND, "id": _SECOND}
        self.monitor.execute("device_add", device)

    def detach(self) -> None:
        """Unplug it, which is no longer used."""
        self.monitor.execute("device_del", {"id": _SECOND})

        def is_removed() -> bool:
            with suppress(RuntimeError):
                self.monitor.execute("blockdev-del", {"node-name": _SECOND})
                return True
            return False

        wait_for("the guest to let go of a disk", is_removed, within_s=_ANSWER_WITHIN_S)

    def wait(self, within_s: float) -> None:
        """Wait until the guest has switched itself off, or has reset."""
        wait_for("the guest's end", lambda: not self.process.alive, within_s=within_s)

    def stop(self) -> None:
        """End it at once: for the guest that is a power cut."""
        self.process.kill()
        self.monitor.close()


def _arguments(folder: Path, disk: Path, port: int) -> list[str]:
    forward = f"hostfwd=tcp:127.0.0.1:{port}-:22"
    # writeback, not unsafe: what the guest has flushed has to be in the file when QEMU is killed.
    drive = f"id={_DISK},file={disk},format=qcow2,if=virtio,cache=writeback,discard=unmap"
    return [
        *("-smp", str(_PROCESSORS), "-m", str(_MEMORY_MB)),
        *("-nodefaults", "-no-user-config", "-display", "none"),
        *("-drive", drive),
        *("-device", "virtio-rng-pci"),
        # Nothing but ssh: what the guest does in the world has to be cut off with the other one.
        *("-netdev", f"user,id={_CONTROL},net=10.0.9.0/24,restrict=on,{forward}"),
        *("-device", f"virtio-net-pci,netdev={_CONTROL},mac={CONTROL_MAC},romfile="),
        *("-netdev", f"user,id={_WORLD}"),
        *("-device", f"virtio-net-pci,netdev={_WORLD},mac={WORLD_MAC},romfile="),
        *("-serial", f"file:{folder}/console.log"),
        *("-qmp", f"unix:{folder}/qmp,server=on,wait=off"),
        *("-rtc", "base=utc", "-action", "reboot=shutdown"),
    ]
