"""Commands and files in a guest, over one ssh connection that stays open."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kit.process import CommandFailedError, Completed, Daemon, run

_USER = "root@guest"
# ssh's own status when it, and not the command, failed.
_SSH_FAILED = 255
# How long sshd may take to begin with its banner before the connection is tried again: longer each
# time, as in emulation on a busy machine to begin takes longer than a connection should that was
# made before the guest's network was up.
_BANNER_S = 5.0
_LONGEST_BANNER_S = 20.0
_LONGER = 1.25
_PAUSE_S = 0.3


class NotReachableError(RuntimeError):
    """The guest's sshd did not answer."""


@dataclass(frozen=True, slots=True)
class Shell:
    """An open connection to a guest's root."""

    # The ssh process that holds it.
    master: Daemon
    # The words that make another ssh use it.
    options: tuple[str, ...]

    @classmethod
    def open(
        cls, folder: Path, key: Path, port: int, *, within_s: float, alive: Callable[[], bool]
    ) -> Shell:
        deadline = time.monotonic() + within_s
        patience = _BANNER_S
        while not _has_banner(port, patience):
            if not alive() or time.monotonic() > deadline:
                raise NotReachableError(f"no sshd at port {port} within {within_s:.0f} s")
            patience = min(patience * _LONGER, _LONGEST_BANNER_S)
            time.sleep(_PAUSE_S)
        control = folder / "ssh"
        control.unlink(missing_ok=True)
        # -F none: the developer's own configuration is for other machines.
        common = ("-F", "none", "-o", f"ControlPath={control}", "-o", "LogLevel=ERROR")
        login = (
            *("-i", str(key), "-p", str(port), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
            *("-o", "HostName=127.0.0.1", "-o", "StrictHostKeyChecking=no"),
            *("-o", "UserKnownHostsFile=/dev/null", "-o", "ServerAliveInterval=60"),
            *("-o", "ConnectTimeout=60"),
        )
        try:
            master = Daemon(
                ["ssh", *common, *login, "-M", "-N", _USER],
                log=folder / "ssh.log",
                ready=control.exists,
                ready_within_s=max(deadline - time.monotonic(), 60),
            )
        except RuntimeError as error:
            raise NotReachableError(str(error)) from error
        return cls(master, common)

    def run(self, script: str, *, check: bool, timeout_s: float, stdin: str | None) -> Completed:
        argv = ["ssh", *self.options, _USER, script]
        done = run(argv, check=False, timeout_s=timeout_s, stdin=stdin)
        if done.returncode == _SSH_FAILED and not self.master.alive:
            raise NotReachableError(f"the connection broke: {done.stderr.strip()}")
        if check and done.returncode != 0:
            raise CommandFailedError(done)
        return done

    def interactive(self) -> list[str]:
        """The command that opens it at a terminal."""
        return ["ssh", *self.options, _USER]

    def copy(self, *words: str | Path) -> None:
        """Copy with scp; a path in the guest begins with `guest:`."""
        named = [str(word).replace("guest:", f"{_USER}:", 1) for word in words]
        run(["scp", "-q", "-r", "-p", *self.options, *named])

    def close(self) -> None:
        self.master.stop()


def _has_banner(port: int, within_s: float) -> bool:
    """Whether sshd answers; slirp itself accepts connections as soon as QEMU runs."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=within_s) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
