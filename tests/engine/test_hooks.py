"""The hook files as they are shipped: in podman, as root and not, and in runc and crun."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from kit.bundles import Bundle, overlaid
from kit.cache import REPOSITORY
from kit.foreign import program_root
from kit.hosts import IMAGE, Host
from kit.installed import Installed
from kit.podman import Podman, without_hybrid_cgroups
from kit.probe import can_mount, can_run_crun, need, need_programs
from kit.process import Completed, run, wait_for
from kit.product import write_runtime_config
from kit.standins import ALLOWED, GPU, OPEN_NODES, stand_in

# podman of a user who isn't root, without systemd or D-Bus:
# * Without an account one id is mapped, the user's own: containers get a tree that belongs to them
#   altogether.
# * A fresh home every time: podman remembers where a pause process keeps its namespaces open, and
#   would go into those, where nothing of a later machine (`kit.installed`) is to be seen.
# * A parent that collects what podman leaves behind, and ends the pause process.
# * The container's output goes by a log: in the foreground podman waits 20 s for its conmon to end,
#   which may not look after a container that podman still holds.
# * Nothing lies in pytest's folders: they are closed to others, and every session of pytest that
#   starts closes them again.
# Of no account, and so without any right that a group or an account would bring.
_USER = 61234
_NAME = "provision-test"
# The first of its subordinate ids, and how many they are.
_SUBORDINATE = 300000
_SUBORDINATES = 65536
_END = "end of the report"

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


def _give_account(installed: Installed) -> None:
    """Give _USER an account with subordinate ids on a machine, and the programs that map them."""
    etc = installed.layers / "etc"
    etc.mkdir(exist_ok=True)
    for name, line in (
        ("passwd", f"{_NAME}:x:{_USER}:{_USER}::/nonexistent:/bin/sh"),
        ("group", f"{_NAME}:x:{_USER}:"),
    ):
        (etc / name).write_text(Path("/etc", name).read_text() + f"{line}\n")
    for name in ("subuid", "subgid"):
        (etc / name).write_text(f"{_NAME}:{_SUBORDINATE}:{_SUBORDINATES}\n")
    programs = program_root("bookworm", "uidmap", alone=True) / "usr/bin"
    for name in ("newuidmap", "newgidmap"):
        shutil.copy2(programs / name, installed.layers / "usr/bin")


@contextmanager
def _open_folder() -> Iterator[Path]:
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


def _run_rootless(
    installed: Installed, folder: Path, engine: Sequence[str], *words: str | Path
) -> Completed:
    """`podman ENGINE run WORDS` as _USER on the machine `installed`, to the container's end.

    `folder` is where a home is made. The container has to print `_END` last.
    """
    home = Path(tempfile.mkdtemp(dir=folder))
    config = home / "containers.conf"
    config.write_text(_CONFIG)
    for path in (home, config):
        os.chown(path, _USER, _USER)
    variables = {
        "HOME": home,
        "XDG_RUNTIME_DIR": home,
        "TMPDIR": home,
        "CONTAINERS_CONF": config,
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    environment = [f"{name}={value}" for name, value in variables.items()]
    user = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"]
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
    """What a container has printed before `_END`; lines are "TIME STREAM F TEXT"."""

    def lines() -> list[str]:
        text = log.read_text() if log.exists() else ""
        return [line.split(" ", 3)[3] for line in text.splitlines() if line.count(" ") > 2]

    wait_for(_END, lambda: lines()[-1:] == [_END], within_s=_LIMIT_S, pause_s=0.02, said=lines)
    return "".join(f"{line}\n" for line in lines()[:-1])


_PRECREATE = "10-oci-decorator-precreate.json"
_PRESTART = "20-oci-decorator-prestart.json"
_HOOKS_DIR = "/usr/share/containers/oci/hooks.d"
_RUNTIME = "/usr/bin/oci-decorator-runtime"
# A user may bring only nodes of the machine into a container, and only those that are open to all.
# Machines differ in what is; this one is made for the test, as another name for /dev/full.
_OPEN_TO_ALL = Path(f"/dev/provision-test-{os.getpid()}")
_FULL = os.makedev(1, 7)
_REPORT = f"""
for name in gpu0 {_OPEN_TO_ALL.name}; do [ ! -e /dev/$name ] || set -- "$@" /dev/$name; done
{OPEN_NODES}
ldconfig -p | grep -o '/opt/.*'
ls -d /opt/gpu/empty 2>/dev/null
true
"""
_REST = "/opt/gpu/lib/libgpu.so.1\n/opt/gpu/empty\n"
_DECORATED = f"/dev/gpu0: {ALLOWED}\n{_REST}"
# Without what comes next: runc quotes the quotes of a message.
_REASON = "OCI_GPU asks for the unknown feature"


@pytest.fixture
def gpu(host: Host) -> Host:
    """A host with one vendor: a node, a library, an empty folder."""
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    stand_in(host, GPU)
    host.write_vendor("gpu", GPU)
    return host


@pytest.fixture
def installed(gpu: Host, tmp_path: Path) -> Installed:
    """A machine on which the program and its settings are where a package has them."""
    machine = Installed(tmp_path / "machine")
    with gpu.config.open("a") as settings:
        settings.write(f'log-file = "{tmp_path}/log"\n')
    machine.settings(gpu.config)
    return machine


@pytest.mark.parametrize("hooks", [(_PRECREATE, _PRESTART), (_PRESTART,)])
def test_podman_finds_the_hooks_and_needs_no_runtime_of_ours(
    podman: Podman, installed: Installed, tmp_path: Path, hooks: tuple[str, ...]
) -> None:
    installed.hooks(*hooks)

    def start(flag: str) -> Completed:
        words = [*podman.command(), "run", "--rm", f"--env={flag}", IMAGE, "sh", "-c", _REPORT]
        return run(installed.command(words), env=podman.variables(), check=False)

    assert start("OTHER=OCI_GPU").stdout == ""
    assert start("OCI_GPU=none").stdout == ""
    decorated = start("OCI_GPU=")
    assert (decorated.returncode, decorated.stdout) == (0, _DECORATED), decorated.stderr
    refused = start("OCI_GPU=fly")
    assert refused.returncode != 0
    assert _REASON in (tmp_path / "log").read_text()
    # What a filter says, podman keeps to itself; what a hook says, the runtime shows.
    assert (_REASON in refused.stderr) == (_PRECREATE not in hooks)


@pytest.fixture(params=["runc", "crun"])
def runtime(request: pytest.FixtureRequest) -> str:
    """A low-level runtime, without an engine and without ours in front."""
    name: str = request.param
    need_programs(name)
    need(name != "crun" or can_run_crun(), "cgroups that crun accepts", "use a newer machine")
    return name


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
@pytest.mark.parametrize("absolute", [False, True])
def test_runc_and_crun_with_nothing_but_the_hook(
    installed: Installed,
    runtime: str,
    fresh_root: Path,
    tmp_path: Path,
    stage: str,
    *,
    absolute: bool,
) -> None:
    bundle = Bundle(tmp_path / "bundle")
    hook = json.loads((REPOSITORY / "hooks/hooks.d" / _PRESTART).read_text())["hook"]
    hook["args"][-1] = stage

    def start(flag: str) -> Completed:
        bundle.write(
            *("sh", "-c", _REPORT),
            env=(flag,),
            root=fresh_root if absolute else Path("../layer/merged"),
            change=lambda spec: spec.update(hooks={stage: [hook]}),
        )
        argv = (runtime, "--root", bundle.state, "run", "--bundle", bundle.folder, "hooked")
        command = installed.command(argv)
        wrapped = without_hybrid_cgroups(command) if runtime == "crun" else command
        return run(wrapped, check=False, timeout_s=120)

    assert start("OCI_GPU=none").stdout == ""
    decorated = start("OCI_GPU=all")
    assert (decorated.returncode, decorated.stdout) == (0, _DECORATED), decorated.stderr
    refused = start("OCI_GPU=fly")
    assert refused.returncode != 0
    assert _REASON in (tmp_path / "log").read_text()
    # crun keeps to itself what a hook says.
    assert (_REASON in refused.stderr) == (runtime == "runc")


@pytest.fixture(scope="module")
def users_base(base_root: Path) -> Iterator[Path]:
    """The base image's files as the user's own."""
    need_programs("podman", "runc", "setpriv")
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    with _open_folder() as folder:
        run(["cp", "--archive", base_root, folder / "root"])
        run(["chown", "--recursive", f"{_USER}:{_USER}", folder / "root"])
        yield folder / "root"


@pytest.fixture
def users_folder(users_base: Path) -> Iterator[Path]:
    """A folder with a container's root of the user's, in `layer/merged`."""
    with _open_folder() as folder, overlaid(users_base, folder / "layer") as root:
        os.chown(root, _USER, _USER)
        yield folder


@pytest.fixture
def open_node() -> Iterator[Path]:
    """A node of the machine that every user may open."""
    os.mknod(_OPEN_TO_ALL, stat.S_IFCHR, _FULL)
    try:
        _OPEN_TO_ALL.chmod(0o666)
        yield _OPEN_TO_ALL
    finally:
        _OPEN_TO_ALL.unlink()


@pytest.fixture
def users_machine(users_folder: Path, open_node: Path) -> Installed:
    """A machine whose vendor brings a node of the real one, and files of a store."""
    host = Host(users_folder / "store", users_folder / "config.toml")
    inventory = {"run": {**GPU["inventory"]["run"], "devices": [open_node.name]}}
    document = {**GPU, "root": str(host.root), "inventory": inventory}
    stand_in(host, GPU)
    host.write_vendor("gpu", document)
    # Without a `root`: a user's runtime takes nodes from the machine's own /dev and nowhere else.
    write_runtime_config(host.config, host.config_dir)
    machine = Installed(users_folder / "machine")
    machine.settings(host.config)
    return machine


@pytest.mark.parametrize(
    "hooks", [(), (_PRECREATE, _PRESTART), (_PRESTART,)], ids=["runtime", "both", "prestart"]
)
def test_podman_of_a_user_who_is_not_root(
    users_machine: Installed, users_folder: Path, hooks: tuple[str, ...]
) -> None:
    users_machine.hooks(*hooks)
    flags = [f"--hooks-dir={_HOOKS_DIR}"] if hooks else [f"--runtime={_RUNTIME}"]

    def start(flag: str) -> Completed:
        script = f"{_REPORT}\necho {_END}"
        words = (f"--env={flag}", "--rootfs", users_folder / "layer/merged", "sh", "-c", script)
        return _run_rootless(users_machine, users_folder, flags, *words)

    assert start("OCI_GPU=none").stdout == ""
    decorated = start("OCI_GPU=all")
    expected = (0, f"{_OPEN_TO_ALL}: \n{_REST}")
    assert (decorated.returncode, decorated.stdout) == expected, decorated.stderr
    refused = start("OCI_GPU=fly")
    assert refused.returncode != 0
    assert (_REASON in refused.stderr) == (_PRECREATE not in hooks)


# How toolbox and distrobox start containers, and what else maps ids differently from the default.
_MAPPINGS = {
    "keep-id": ("--userns=keep-id",),
    "nomap": ("--userns=nomap",),
    "uidmap": ("--uidmap=0:1:5000", "--gidmap=0:1:5000"),
}
_WAYS = {
    "own kind": ((), ("--device=oci-decorator/gpu=all",)),
    "hooks": ((f"--hooks-dir={_HOOKS_DIR}",), ("--env=OCI_GPU=all",)),
}


@pytest.fixture(scope="module")
def subordinates_base(base_root: Path) -> Iterator[Path]:
    """The base image's files as those of the user's first subordinate id."""
    with _open_folder() as folder:
        run(["cp", "--archive", base_root, folder / "root"])
        run(["chown", "--recursive", f"{_SUBORDINATE}:{_SUBORDINATE}", folder / "root"])
        yield folder / "root"


@pytest.fixture
def mapped_root(users_folder: Path, subordinates_base: Path, mapping: str) -> Iterator[Path]:
    """A container's root; where its user is mapped, below a folder that only the user may enter.

    podman's storage lies so, and its bundles always do. Where the user is not mapped, runc and crun
    can't enter such a root themselves.
    """
    home = users_folder / "home"
    with overlaid(subordinates_base, home) as root:
        os.chown(root, _SUBORDINATE, _SUBORDINATE)
        os.chown(home, _USER, _USER)
        home.chmod(0o700 if mapping == "keep-id" else 0o755)
        yield root


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("low_level", "mapping", "way"),
    [
        cell
        for cell in product(("runc", "crun"), _MAPPINGS, _WAYS)
        # crun starts no CDI hook, whoever's, where the container's root may not enter the bundle.
        if cell[0] == "runc" or cell[1] == "keep-id" or cell[2] == "hooks"
    ],
)
def test_a_users_container_whose_ids_are_mapped(
    users_machine: Installed,
    users_folder: Path,
    mapped_root: Path,
    low_level: str,
    mapping: str,
    way: str,
) -> None:
    need_programs(low_level)
    _give_account(users_machine)
    users_machine.hooks(_PRECREATE, _PRESTART)
    generate = ("oci-decorator", "cdi", "generate", "--vendor=gpu", "--output=/etc/cdi/gpu.json")
    run(users_machine.command(("mkdir", "--parents", "/etc/cdi")))
    run(users_machine.command(generate))
    options, request = _WAYS[way]
    cgroups = ("--cgroups=disabled",) if low_level == "crun" else ()

    def start(asked: Sequence[str]) -> Completed:
        script = f"{_REPORT}\necho {_END}"
        words = (*cgroups, *_MAPPINGS[mapping], *asked, "--rootfs", mapped_root, "sh", "-c", script)
        return _run_rootless(
            users_machine, users_folder, [f"--runtime={low_level}", *options], *words
        )

    assert start(()).stdout == ""
    decorated = start(request)
    expected = (0, f"{_OPEN_TO_ALL}: \n{_REST}")
    assert (decorated.returncode, decorated.stdout) == expected, decorated.stderr
