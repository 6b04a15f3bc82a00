"""The only place that starts processes.

Programs get an argument list (never a shell), ``/dev/null`` as standard input and a small, known
environment, so that neither the caller's locale nor its variables can change a result.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provision.errors import NotFoundError, ProvisionError

log = logging.getLogger(__name__)

# What a child may inherit: where programs are, and how to reach the network.
_INHERITED = (
    "PATH",
    "HOME",
    "TMPDIR",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
)
_STDERR_LINES = 20
# setpriv(1), unshare(1): killed with this process, and with them everything that they started.
_WITH_PARENT = ("--pdeathsig", "KILL")
_OWN_NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child")


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished program: its argument list, exit status and output as text."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def find_program(name: str) -> str | None:
    """Return the absolute path of a program on PATH (``/usr/sbin`` included), or None."""
    return shutil.which(name, path=_search_path())


def run(
    argv: Sequence[str | Path],
    *,
    why: str,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
) -> Completed:
    """Run a program to its end and return its output.

    Args:
        argv: Program and arguments.
        why: What the program is for, as it completes "which is needed to …".
        check: Whether a non-zero exit status is an error.
        env: Variables to add to the small inherited environment.
        stdin: What the program reads; nothing by default.
        timeout: Seconds after which the program is killed; None waits for ever.

    Raises:
        NotFoundError: The program is not installed.
        ProvisionError: It failed (with ``check``) or ran past its timeout.
    """
    args = tuple(str(arg) for arg in argv)
    program = _needed_program(args, why)
    try:
        done = subprocess.run(
            [program, *args[1:]],
            check=False,
            env=_environment(env),
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(
            f"'{shlex.join(args)}' did not finish within {timeout:g} s while it had to {why}."
        ) from error
    completed = Completed(
        argv=args,
        returncode=done.returncode,
        stdout=done.stdout.decode(errors="replace"),
        stderr=done.stderr.decode(errors="replace"),
    )
    if check and completed.returncode != 0:
        raise ProvisionError(
            f"'{shlex.join(args)}' failed with exit status {completed.returncode}"
            f" while it had to {why}.",
            details="\n".join(completed.stderr.splitlines()[-_STDERR_LINES:]) or None,
        )
    return completed


def stream(argv: Sequence[str | Path], *, why: str, on_line: Callable[[str], None]) -> None:
    """Run a long program as root, handing on each line that it prints as it comes.

    It gets namespaces of its own for processes and mounts, so that nothing of it outlives this
    process however that ends: not its children, nor what it mounted.

    Args:
        argv: Program and arguments.
        why: What the program is for, as it completes "which is needed to …".
        on_line: Called with each line of its output and errors.

    Raises:
        NotFoundError: The program is not installed.
        ProvisionError: It failed.
    """
    args = tuple(str(arg) for arg in argv)
    program = _needed_program(args, why)
    container = [_needed_program(("setpriv",), why), *_WITH_PARENT]
    container += [_needed_program(("unshare",), why), *_OWN_NAMESPACES]
    last: deque[str] = deque(maxlen=_STDERR_LINES)
    with subprocess.Popen(
        [*container, program, *args[1:]],
        env=_environment(None),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        try:
            for line in child.stdout or ():
                last.append(line.rstrip("\n"))
                on_line(last[-1])
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        raise ProvisionError(
            f"'{shlex.join(args)}' failed with exit status {child.returncode}"
            f" while it had to {why}.",
            details="\n".join(last) or None,
        )


@contextmanager
def beside(argv: Sequence[str | Path], *, why: str) -> Iterator[None]:
    """Have a program run until the block ends, or this process does, however that happens.

    Args:
        argv: Program and arguments; it has to end when its standard input does, which is a pipe
            that nobody writes to. What it prints is dropped, and so is how it ends.
        why: What the program is for, as it completes "which is needed to …".

    Raises:
        NotFoundError: The program is not installed.
    """
    args = tuple(str(arg) for arg in argv)
    program = _needed_program(args, why)
    with subprocess.Popen(
        [program, *args[1:]],
        env=_environment(None),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as child:
        try:
            yield
        finally:
            # Popen closes the pipe and waits.
            log.debug("end of '%s' (process %d)", shlex.join(args), child.pid)


def _needed_program(args: Sequence[str], why: str) -> str:
    """Return the path of the program and log the command line."""
    program = find_program(args[0])
    if program is None:
        raise NotFoundError(
            f"The program '{args[0]}' was not found, which is needed to {why}.",
            resolution=f"Install the package that holds '{args[0]}' and try again.",
        )
    log.debug("+ %s", shlex.join(args))
    return program


def _search_path() -> str:
    """Return PATH with the system folders that a user's PATH may lack."""
    path = os.environ.get("PATH", os.defpath)
    missing = [d for d in ("/usr/sbin", "/sbin") if d not in path.split(os.pathsep)]
    return os.pathsep.join([path, *missing])


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**env, "PATH": _search_path(), "LC_ALL": "C.UTF-8", **(extra or {})}
