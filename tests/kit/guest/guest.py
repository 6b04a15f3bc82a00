"""A real Debian in QEMU: started from a snapshot in seconds, rebooted, cut off, removed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kit.files import remove_tree
from kit.guest.qemu import Qemu
from kit.guest.shell import NotReachableError, Shell
from kit.playbooks import ssh_variables
from kit.process import Completed, run

SNAPSHOT = "booted"
# In emulation, with other tests at work on the same processors.
BOOT_WITHIN_S = 420
_SHOWN_LINES = 40
_WATCH_S = 0.2


@dataclass(frozen=True, slots=True)
class Base:
    """What guests of one recipe share."""

    folder: Path

    @property
    def disk(self) -> Path:
        """The disk, qcow2."""
        return self.folder / "disk.qcow2"

    @property
    def key(self) -> Path:
        """The private key that root's shell opens to."""
        return self.folder / "key"


@dataclass
class Guest:
    """A guest with a disk of its own. `with Guest(base) as guest:` ends it and removes its disk."""

    # The disk that it begins with, and the key to it.
    base: Base
    # A disk upon that one, with a machine that has booted; None: it boots.
    snapshot: Path | None = None
    # Its name in an Ansible inventory.
    name: str = "guest"
    # QEMU's arguments for another firmware than a BIOS, from the next start on.
    firmware: Sequence[str] = ()
    _shell: Shell | None = field(default=None, init=False)
    _machine: Qemu | None = field(default=None, init=False)
    _network: bool = field(default=True, init=False)

    def __enter__(self) -> Self:
        # Short, and not below the cache: a socket's path may have 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="provision-guest-"))
        try:
            self._make_disk()
            self.start(snapshot=SNAPSHOT if self.snapshot else None)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(
        self, script: str, *, check: bool = True, timeout_s: float = 600, stdin: str | None = None
    ) -> Completed:
        return self._open_shell().run(script, check=check, timeout_s=timeout_s, stdin=stdin)

    @property
    def disk(self) -> Path:
        """Its disk: what differs from the base."""
        return self.folder / "disk.qcow2"

    @property
    def console(self) -> str:
        """What its kernel and its services wrote to the serial line since the last start."""
        log = self.folder / "console.log"
        return log.read_text(errors="replace") if log.exists() else ""

    @property
    def machine(self) -> Qemu:
        if self._machine is None:
            raise RuntimeError("the guest has no power: start() it first")
        return self._machine

    def start(
        self, *, snapshot: str | None = None, within_s: float = BOOT_WITHIN_S, port: int = 0
    ) -> None:
        """Switch it on, with its sshd behind `port` or any, and wait until its shell answers."""
        self._machine = Qemu.start(
            self.folder,
            self.disk,
            snapshot=snapshot,
            port=port,
            firmware=self.firmware,
        )
        self._machine.set_network(on=self._network)
        self._connect(within_s)
        if snapshot is not None:
            # The clock stood still while the snapshot lay on the disk.
            self(f"date -u -s @{int(time.time())}")

    def kill(self) -> None:
        """Cut its power: what it had not flushed to its disk is lost."""
        if self._machine is not None:
            self._machine.stop()
            self._machine = None
        self._close_shell()

    def reboot(self, command: str = "systemctl reboot", *, within_s: float = BOOT_WITHIN_S) -> None:
        """Reboot by `command`, and wait until the shell answers again."""
        with suppress(NotReachableError):
            self(command, check=False)
        self._close_shell()
        # A reset ends QEMU: going on in the same process after a snapshot was loaded into it, the
        # next kernel's timers may never fire.
        self.machine.wait(within_s)
        self.kill()
        self.start(within_s=within_s)

    @contextmanager
    def restarting(self) -> Iterator[None]:
        """Start it again behind the same port when it resets meanwhile, as firmware does.

        For another program that reboots it; its own shell must not be used meanwhile.
        """
        port = self.machine.ssh_port()
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_WATCH_S):
                if not self.machine.process.alive:
                    self.kill()
                    self.start(port=port)

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            try:
                yield
            finally:
                ended.set()
            watching.result()

    def variables(self) -> dict[str, object]:
        return ssh_variables(self.folder, self.base.key, self.machine.ssh_port())

    def boot_id(self) -> str:
        done = self("cat /proc/sys/kernel/random/boot_id", check=False)
        if done.returncode != 0:
            raise NotReachableError(done.output.strip())
        return done.stdout.strip()

    def kernel(self) -> str:
        return self("uname -r").stdout.strip()

    def install(self, product: Path) -> None:
        """Install the product, as `vm/conftest.py` has packed it."""
        self.put(product, "/root/product.tar")
        self("tar -C / -xf /root/product.tar && rm /root/product.tar")

    def set_network(self, *, on: bool) -> None:
        """Plug its network in or out, until the next call; this shell stays."""
        self._network = on
        self.machine.set_network(on=on)

    def put(self, source: Path, target: str) -> None:
        """Copy a file or a folder into the guest."""
        self._open_shell().copy(source, f"guest:{target}")

    def get(self, source: str, target: Path) -> None:
        """Copy a file or a folder out of the guest."""
        self._open_shell().copy(f"guest:{source}", target)

    def write(self, path: str, text: str) -> None:
        self(f"mkdir -p \"$(dirname '{path}')\" && cat >'{path}'", stdin=text)

    def keep(self, folder: Path) -> str:
        """End it, and keep it as it is in a new folder; returns how to look at it.

        `python -m kit.guest` goes on with it.
        """
        with suppress(RuntimeError, OSError):
            self.machine.save(SNAPSHOT)
        self.kill()
        remove_tree(folder)
        folder.mkdir()
        for name in (self.disk.name, "console.log"):
            shutil.copy(self.folder / name, folder)
        (folder / "base").symlink_to(self.base.folder)
        return f"to go on with the guest: PYTHONPATH=tests .venv/bin/python -m kit.guest {folder}"

    def open_shell(self) -> None:
        """Let the person at this terminal use its shell, until they leave it."""
        subprocess.run(self._open_shell().interactive(), check=False)

    def close(self) -> None:
        self.kill()
        remove_tree(self.folder)

    def _make_disk(self) -> None:
        if self.snapshot is None:
            formats = ["-f", "qcow2", "-F", "qcow2"]
            run(["qemu-img", "create", "-q", *formats, "-b", self.base.disk, self.disk])
        else:
            # A copy, because a snapshot can be loaded only from a machine's own disk.
            run(["cp", "--reflink=auto", "--sparse=always", self.snapshot, self.disk])

    def _connect(self, within_s: float) -> None:
        machine = self.machine
        try:
            self._shell = Shell.open(
                self.folder,
                self.base.key,
                machine.ssh_port(),
                within_s=within_s,
                alive=lambda: machine.process.alive,
            )
        except NotReachableError as error:
            tail = "\n".join(self.console.splitlines()[-_SHOWN_LINES:])
            message = f"the guest does not answer: {error}\nthe end of its console:\n{tail}"
            raise RuntimeError(message) from error

    def _open_shell(self) -> Shell:
        if self._shell is None:
            raise RuntimeError("the guest has no power: start() it first")
        return self._shell

    def _close_shell(self) -> None:
        if self._shell is not None:
            self._shell.close()
            self._shell = None
