"""The hook files as they are shipped: in podman, as root and not, and in runc and crun."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kit.bundles import Bundle, overlaid
from kit.cache import REPOSITORY
from kit.hosts import IMAGE, Host
from kit.installed import Installed
from kit.podman import Podman, without_hybrid_cgroups
from kit.probe import can_mount, can_run_crun, need, need_programs
from kit.process import Completed, run
from kit.product import write_runtime_config
from kit.rootless import END, SUBORDINATE, USER, give_account, open_folder, run_rootless
from kit.standins import ALLOWED, OPEN_NODES, stand_in

_PRECREATE = "10-oci-decorator-precreate.json"
_PRESTART = "20-oci-decorator-prestart.json"
_HOOKS_DIR = "/usr/share/containers/oci/hooks.d"
_RUNTIME = "/usr/bin/oci-decorator-runtime"
# A user may bring only nodes of the machine into a container, and only those that are open to all.
# Machines differ in what is; this one is made for the test, as another name for /dev/full.
_OPEN_TO_ALL = Path(f"/dev/provision-test-{os.getpid()}")
_FULL = os.makedev(1, 7)
_VENDOR: dict[str, Any] = {
    "activation_flag": "OCI_GPU",
    "driver_feature": ["run"],
    "inventory": {
        "run": {
            "devices": ["gpu0"],
            "libraries": ["/opt/gpu/lib/libgpu.so.1"],
            "directories": ["/opt/gpu/empty"],
        }
    },
}
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
    stand_in(host, _VENDOR)
    host.write_vendor("gpu", _VENDOR)
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
    with open_folder() as folder:
        run(["cp", "--archive", base_root, folder / "root"])
        run(["chown", "--recursive", f"{USER}:{USER}", folder / "root"])
        yield folder / "root"


@pytest.fixture
def users_folder(users_base: Path) -> Iterator[Path]:
    """A folder with a container's root of the user's, in `layer/merged`."""
    with open_folder() as folder, overlaid(users_base, folder / "layer") as root:
        os.chown(root, USER, USER)
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
    inventory = {"run": {**_VENDOR["inventory"]["run"], "devices": [open_node.name]}}
    document = {**_VENDOR, "root": str(host.root), "inventory": inventory}
    stand_in(host, _VENDOR)
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
        script = f"{_REPORT}\necho {END}"
        words = (f"--env={flag}", "--rootfs", users_folder / "layer/merged", "sh", "-c", script)
        return run_rootless(users_machine, users_folder, flags, *words)

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
    with open_folder() as folder:
        run(["cp", "--archive", base_root, folder / "root"])
        run(["chown", "--recursive", f"{SUBORDINATE}:{SUBORDINATE}", folder / "root"])
        yield folder / "root"


@pytest.fixture
def mapped_root(users_folder: Path, subordinates_base: Path, mapping: str) -> Iterator[Path]:
    """A container's root; where its user is mapped, below a folder that only the user may enter.

    podman's storage lies so, and its bundles always do. Where the user is not mapped, runc and crun
    can't enter such a root themselves.
    """
    home = users_folder / "home"
    with overlaid(subordinates_base, home) as root:
        os.chown(root, SUBORDINATE, SUBORDINATE)
        os.chown(home, USER, USER)
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
    give_account(users_machine)
    users_machine.hooks(_PRECREATE, _PRESTART)
    generate = ("oci-decorator", "cdi", "generate", "--vendor=gpu", "--output=/etc/cdi/gpu.json")
    run(users_machine.command(("mkdir", "--parents", "/etc/cdi")))
    run(users_machine.command(generate))
    options, request = _WAYS[way]
    cgroups = ("--cgroups=disabled",) if low_level == "crun" else ()

    def start(asked: Sequence[str]) -> Completed:
        script = f"{_REPORT}\necho {END}"
        words = (*cgroups, *_MAPPINGS[mapping], *asked, "--rootfs", mapped_root, "sh", "-c", script)
        return run_rootless(
            users_machine, users_folder, [f"--runtime={low_level}", *options], *words
        )

    assert start(()).stdout == ""
    decorated = start(request)
    expected = (0, f"{_OPEN_TO_ALL}: \n{_REST}")
    assert (decorated.returncode, decorated.stdout) == expected, decorated.stderr
