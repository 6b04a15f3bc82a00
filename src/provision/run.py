"""The only place that starts processes.

Programs get an argument list (never a shell), ``/dev/null`` as standard input, no terminal that
they could ask on, and a small, known environment, so that neither the caller's locale nor its
variables can change a result. Each has limits of time, memory, output and, if it is given, size of
files, because much of what programs read comes from others: a registry may send tags without end
(docs/decisions/07-store-and-modules.md).
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from provision.errors import NotFoundError, ProvisionError, redact

log = logging.getLogger(__name__)

# Default limits in seconds, for a program and for one whose lines are shown as they come: several
# times what the slowest program takes on a slow host.
LIMIT_S = 300.0
LONG_LIMIT_S = 3600.0
# For a program that reads what others sent. Others may take half of the machine's memory, because
# compressors of an initramfs take some for each processor.
HOSTILE_MEMORY = 1 << 30
_MEMORY = max(HOSTILE_MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
# Bytes that a program may print, and that a line of it may have; a longer line comes in pieces.
MOST_OUTPUT = 64 << 20
_MOST_STREAMED = 1 << 30
_LONGEST_LINE = 64 << 10
# setrlimit(2) between fork and exec: the process and its children have the limits from their first
# instruction on. Kibibytes of data, and blocks of 512 bytes of files, as every sh counts them. A
# limit that is lower already stays.
_LIMITED = 'ulimit -d "$1" 2>/dev/null; [ -z "$2" ] || ulimit -f "$2"; shift 2; exec "$@"'
# Seconds that a program may take to end after it was killed, or after its work is done.
_END_S = 10.0
# Variables that a child inherits: where programs are, and how to reach the network.
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
_CHUNK = 1 << 16


class TimeLimitError(ProvisionError):
    """A program did not finish in time, and was killed."""


class Completed(NamedTuple):
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
    timeout: float = LIMIT_S,
    memory: int = _MEMORY,
    most_output: int = MOST_OUTPUT,
    largest_file: int | None = None,
) -> Completed:
    """Run a program to its end and return its output.

    Every user of the machine can read ``argv``, so it has no secrets; ``stdin`` may. ``why``
    completes "which is needed to …". After ``timeout`` seconds, or when it has printed more than
    ``most_output`` bytes, the program and its children are killed. With more than ``memory`` bytes,
    or a file of more than ``largest_file``, it fails in its own way.
    """
    args = tuple(str(arg) for arg in argv)
    deadline = time.monotonic() + timeout
    words = _limited([_needed_program(args, why), *args[1:]], memory, largest_file)
    with _input(stdin) as given:
        child = subprocess.Popen(
            words,
            env=_environment(env),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    with _ended(child, args, why, timeout, most_output):
        stdout, stderr = _outputs(child, deadline, most_output)
        child.wait(max(0.0, deadline - time.monotonic()))
    completed = Completed(
        argv=args,
        returncode=child.returncode,
        stdout=stdout.decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
    )
    if check and completed.returncode != 0:
        raise _failed(args, why, completed.returncode, completed.stderr.splitlines())
    return completed


def stream(
    argv: Sequence[str | Path],
    *,
    why: str,
    on_line: Callable[[str], None],
    env: Mapping[str, str] | None = None,
    timeout: float = LONG_LIMIT_S,
    first_within: float | None = None,
    is_isolated: bool = True,
) -> None:
    """Run a long program, passing on each line of its output as it comes.

    It does not outlive this process, however that ends. Other arguments as ``run``.

    Args:
        first_within: Seconds in which the first line has to come.
        is_isolated: Whether it runs in its own namespaces of processes and mounts, so that neither
            its children nor its mounts outlive it. That takes root.
    """
    args = tuple(str(arg) for arg in argv)
    begun = time.monotonic()
    deadline = begun + timeout
    program = _needed_program(args, why)
    container = [_needed_program(("setpriv",), why), *_WITH_PARENT]
    if is_isolated:
        container += [_needed_program(("unshare",), why), *_OWN_NAMESPACES]
    last: deque[str] = deque(maxlen=_STDERR_LINES)
    child = subprocess.Popen(
        _limited([*container, program, *args[1:]], _MEMORY, None),
        env=_environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    with _ended(child, args, why, timeout, _MOST_STREAMED):
        first = deadline if first_within is None else min(begun + first_within, deadline)
        for line in _lines(child.stdout, first, deadline):
            last.append(line)
            on_line(line)
        status = child.wait(max(0.0, deadline - time.monotonic()))
    if status != 0:
        raise _failed(args, why, status, list(last))


def unconfined(argv: Sequence[str]) -> list[str]:
    """Return the words that run a program outside of the confinement of the unit that this is.

    Units may not write to /boot; a unit of its own may.
    """
    if os.geteuid() != 0 or not Path("/run/systemd/system").is_dir():
        return list(argv)
    outside = ["systemd-run", "--quiet", "--wait", "--collect", "--pipe"]
    return [*outside, "--property=DefaultDependencies=no", *argv]


@contextmanager
def beside(argv: Sequence[str | Path], *, why: str) -> Iterator[None]:
    """Run a program until the block or this process ends; its output and status are dropped.

    It must end when its standard input does, a pipe that nothing is written to; else it is killed.
    """
    args = tuple(str(arg) for arg in argv)
    child = subprocess.Popen(
        _limited([_needed_program(args, why), *args[1:]], HOSTILE_MEMORY, None),
        env=_environment(None),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        _close(child)
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            log.debug("'%s' (process %d) does not end: killed", _shown(args), child.pid)
            _end(child)


class _OutputError(Exception):
    """A program prints more than it may."""


def _limited(argv: Sequence[str], memory: int, largest_file: int | None) -> list[str]:
    blocks = "" if largest_file is None else str(-(-largest_file // 512))
    return ["/bin/sh", "-c", _LIMITED, "sh", str(memory >> 10), blocks, *argv]


@contextmanager
def _input(data: bytes | None) -> Iterator[int]:
    """Yield a descriptor from which a program reads some bytes; they lie in memory only."""
    if data is None:
        yield subprocess.DEVNULL
        return
    handle = os.memfd_create("stdin")
    try:
        with os.fdopen(os.dup(handle), "wb") as stream:
            stream.write(data)
        os.lseek(handle, 0, os.SEEK_SET)
        yield handle
    finally:
        os.close(handle)


def _outputs(child: subprocess.Popen[bytes], deadline: float, most: int) -> tuple[bytes, bytes]:
    outputs = (bytearray(), bytearray())
    with selectors.DefaultSelector() as selector:
        for pipe, output in zip((child.stdout, child.stderr), outputs, strict=True):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, output)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready or time.monotonic() > deadline:
                raise TimeoutError
            for key, _events in ready:
                chunk = os.read(key.fd, _CHUNK)
                key.data.extend(chunk)
                if not chunk:
                    selector.unregister(key.fd)
            if sum(map(len, outputs)) > most:
                raise _OutputError
    return bytes(outputs[0]), bytes(outputs[1])


def _lines(pipe: IO[bytes] | None, first: float, deadline: float) -> Iterator[str]:
    """Yield the lines of a pipe: the first one until ``first``, the last one until ``deadline``."""
    if pipe is None:
        return
    rest = b""
    left = _MOST_STREAMED
    end = first
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, end - time.monotonic())):
            chunk = os.read(pipe.fileno(), _CHUNK)
            left -= len(chunk)
            if left < 0:
                raise _OutputError
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                lines.append(rest)
                rest = b""
            if lines:
                end = deadline
            yield from (line.decode(errors="replace") for line in lines)
            if not chunk:
                if rest:
                    yield rest.decode(errors="replace")
                return
            if time.monotonic() > end:
                break
    raise TimeoutError


@contextmanager
def _ended(
    child: subprocess.Popen[bytes], args: Sequence[str], why: str, timeout: float, most: int
) -> Iterator[None]:
    """Kill a program if the block fails, such as for its time or its output."""
    try:
        yield
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        raise _too_slow(args, why, timeout, ended=_end(child)) from error
    except _OutputError as error:
        _end(child)
        raise _too_much(args, why, most) from error
    except BaseException:
        _end(child)
        raise
    _close(child)


def _end(child: subprocess.Popen[bytes]) -> bool:
    """Kill a program and what it started; return whether it is gone.

    The kernel doesn't end a process while it waits for a device: such a one is left behind.
    """
    with suppress(ProcessLookupError):
        # It leads a session, and so a group, of its own.
        os.killpg(child.pid, signal.SIGKILL)
    _close(child)
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _close(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            # What it was to read may be still to be written, and it is gone.
            with suppress(OSError):
                pipe.close()


def _too_slow(args: Sequence[str], why: str, timeout: float, *, ended: bool) -> TimeLimitError:
    left = "" if ended else " It can't be killed: the kernel waits for a device on its behalf."
    return TimeLimitError(
        f"'{_shown(args)}' did not finish within {timeout:g} s while it had to {why}.{left}",
        resolution=None if ended else "Look into the kernel's log (dmesg), and reboot.",
    )


def _too_much(args: Sequence[str], why: str, most: int) -> ProvisionError:
    return ProvisionError(
        f"'{_shown(args)}' printed more than {most >> 20} MiB while it had to {why}, and was"
        " killed.",
        resolution="What it reads is damaged, or was made to fill the memory. If it came from a"
        " registry or a mirror, tell its operators, and take another.",
    )


def _failed(args: Sequence[str], why: str, status: int, lines: Sequence[str]) -> ProvisionError:
    return ProvisionError(
        f"'{_shown(args)}' failed with exit status {status} while it had to {why}.",
        resolution="Run the command again with --verbose to see all that the program prints.",
        details="\n".join(lines[-_STDERR_LINES:]) or None,
    )


def _shown(args: Sequence[str]) -> str:
    return redact(shlex.join(args))


def _needed_program(args: Sequence[str], why: str) -> str:
    """Return the path of the program and log the command line."""
    program = find_program(args[0])
    if program is None:
        raise NotFoundError(
            f"The program '{args[0]}' was not found, which is needed to {why}.",
            resolution=f"Install the package that holds '{args[0]}' and try again.",
        )
    log.debug("+ %s", _shown(args))
    return program


def _search_path() -> str:
    """Return the absolute folders of PATH, and the system folders that a user's PATH may lack.

    An empty or relative one is the current folder, where anyone may have put a program. A Python
    for hosts that have none brings programs along, beside it.
    """
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    folders = ["/usr/sbin", "/sbin"]
    if sys.base_prefix != "/usr":
        folders.append(f"{sys.base_prefix}/bin")
    return os.pathsep.join(dict.fromkeys(d for d in (*path, *folders) if d.startswith("/")))


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**env, "PATH": _search_path(), "LC_ALL": "C.UTF-8", **(extra or {})}


# A slow machine takes less for a driver.
_LIMIT_S = 900.0


def decompress(source: Path, target: Path, *, limit: int, why: str) -> None:
    """Write the content of a file; its memory (a window of 128 MiB) and its bytes are limited.

    Raises:
        OSError: ``EFBIG``: it has more bytes than the limit. ``ENOSPC``: the disk is full.
        ValueError: It is damaged, in zstd's words.
    """
    argv = ["zstd", "--decompress", "--quiet", "--force", "--memory=128MB"]
    argv += ["-o", str(target), str(source)]
    # It has no limit of its own, and some kB may become more than a disk holds.
    done = run(
        argv,
        why=why,
        check=False,
        timeout=_LIMIT_S,
        memory=HOSTILE_MEMORY,
        largest_file=limit,
    )
    code = 0
    if done.returncode == -signal.SIGXFSZ or "File too large" in done.stderr:
        code = errno.EFBIG
    elif done.returncode and not shutil.disk_usage(target.parent).free:
        code = errno.ENOSPC
    if code:
        raise OSError(code, os.strerror(code))
    if done.returncode:
        raise ValueError(done.stderr.strip())
