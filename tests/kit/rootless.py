"""podman of a user who isn't root, without systemd or D-Bus.

* Without an account (`give_account`), one id is mapped, the user's own: containers get a tree that
  belongs to them altogether.
* A fresh home every time: podman remembers where a pause process keeps its namespaces open, and
  would go into those, where nothing of a later machine (`kit.installed`) is to be seen.
* A parent that collects what podman leaves behind, and ends the pause process.
* The container's output goes by a log: in the foreground podman waits 20 s for its conmon to end,
  which may not look after a container that podman still holds.
* Nothing lies in pytest's folders: they are closed to others, and every session of pytest that
  starts closes them again.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kit.foreign import program_root
from kit.installed import Installed
from kit.podman import without_hybrid_cgroups
from kit.process import Completed, run, wait_for

# Of no account, and so without any right that a group or an account would bring.
USER = 61234
_NAME = "provision-test"
# The first of its subordinate ids, and how many they are.
SUBORDINATE = 300000
_SUBORDINATES = 65536
END = "end of the report"

_LIMIT_S = 180
# What podman takes to clean up after a container, and much more.
_CLEANUP_S = 30

_CONFIG = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
# 36: PR_SET_CHILD_SUBREAPER, prctl(2).
_COLLECT = """\
import ctypes, os, pathlib, subprocess, sys
home, *argv = sys.argv[1:]
if ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) != 0:
    sys.exit("can't become the one who collects")
child = subprocess.Popen(argv)
status = None
while status is None:
    pid, ended = os.wait()
    status = ended if pid == child.pid else None
for pause in pathlib.Path(home).rglob("pause.pid"):
    os.kill(int(pause.read_text()), 9)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def give_account(installed: Installed) -> None:
    """Give USER an account with subordinate ids on a machine, and the programs that map them."""
    etc = installed.layers / "etc"
    etc.mkdir(exist_ok=True)
    for name, line in (
        ("passwd", f"{_NAME}:x:{USER}:{USER}::/nonexistent:/bin/sh"),
        ("group", f"{_NAME}:x:{USER}:"),
    ):
        (etc / name).write_text(Path("/etc", name).read_text() + f"{line}\n")
    for name in ("subuid", "subgid"):
        (etc / name).write_text(f"{_NAME}:{SUBORDINATE}:{_SUBORDINATES}\n")
    programs = program_root("bookworm", "uidmap", alone=True) / "usr/bin"
    for name in ("newuidmap", "newgidmap"):
        shutil.copy2(programs / name, installed.layers / "usr/bin")


@contextmanager
def open_folder() -> Iterator[Path]:
    """A fresh folder that every user may look into."""
    with tempfile.TemporaryDirectory(prefix="provision-rootless-") as name:
        Path(name).chmod(0o755)
        try:
            yield Path(name)
        finally:
            _end_those_left(name)


def _end_those_left(folder: str) -> None:
    """End what podman still does in a folder after a container's output has come to its end.

    Its conmon cleans up after the container then, and would write while the folder is removed.
    """
    with suppress(TimeoutError):
        wait_for("podman's end", lambda: not _working_in(folder), within_s=_CLEANUP_S)
    for pid in _working_in(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _working_in(folder: str) -> list[int]:
    """The processes that have a folder's name among their words or variables."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # It may end while it is read.
        with suppress(OSError):
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if os.fsencode(folder) in said:
                found.append(int(process.name))
    return found


def run_rootless(
    installed: Installed, folder: Path, engine: Sequence[str], *words: str | Path
) -> Completed:
    """`podman ENGINE run WORDS` as USER on the machine `installed`, to the container's end.

    `folder` is where a home is made. The container has to print `END` last.
    """
    home = Path(tempfile.mkdtemp(dir=folder))
    config = home / "containers.conf"
    config.write_text(_CONFIG)
    for path in (home, config):
        os.chown(path, USER, USER)
    variables = {
        "HOME": home,
        "XDG_RUNTIME_DIR": home,
        "TMPDIR": home,
        "CONTAINERS_CONF": config,
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    environment = [f"{name}={value}" for name, value in variables.items()]
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    podman: list[str | Path] = [*user, "env", "-i", "-C", home, *environment]
    podman += ["podman", "--storage-driver=vfs", *engine, "run", "--detach"]
    podman += ["--log-driver=k8s-file", f"--log-opt=path={home}/log", *words]
    collect: list[str | Path] = [sys.executable, "-I", "-S", "-c", _COLLECT, home]
    command = installed.command([*collect, *podman])
    if "--runtime=crun" in engine:
        command = without_hybrid_cgroups(command)
    done = run(command, check=False, timeout_s=_LIMIT_S)
    if done.returncode != 0:
        return done
    return replace(done, stdout=_output(home / "log"))


def _output(log: Path) -> str:
    """What a container has printed before `END`; lines are "TIME STREAM F TEXT"."""

    def lines() -> list[str]:
        text = log.read_text() if log.exists() else ""
        return [line.split(" ", 3)[3] for line in text.splitlines() if line.count(" ") > 2]

    wait_for(END, lambda: lines()[-1:] == [END], within_s=_LIMIT_S, pause_s=0.02, said=lines)
    return "".join(f"{line}\n" for line in lines()[:-1])
