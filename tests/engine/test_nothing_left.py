"""Many starts: nothing stays behind on the host or in an image, and none is in another's way."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kit.bundles import Bundle
from kit.engine import Engine
from kit.hosts import Containers, Host
from kit.probe import can_mount, need, need_programs
from kit.process import run
from kit.product import DECORATOR, RUNTIME
from kit.standins import ALLOWED, GPU, OPEN_NODES, stand_in

_LIBRARY = "/opt/gpu/lib/libgpu.so.1"
_REPORT = f"set -- /dev/gpu0; {OPEN_NODES}; ldconfig -p | grep -o '/opt/.*'; cat /opt/gpu/version"

# A host of its own, as systemd sets them up: what is mounted anywhere shows everywhere else.
# No one else's mounts and files are in sight, so that all that is new is ours.
_ON_A_SHARED_HOST = """
set -eu
times=$1 bundle=$2 root=$3 upper=$4; shift 4
mount --make-rshared /
mount -t tmpfs tmpfs /run
everything() {
    # By their numbers: where a folder of others is renamed, so is what is mounted in it.
    sed 's/ .*/ is mounted/' /proc/self/mountinfo | sort
    find /run "$upper" -printf '%p %y %s\\n' | sort
    find "$root" -maxdepth 3 | sort
    ls -A "$bundle" | grep -v -e '^after$' -e '^mounts$'
}
start() {
    cp "$bundle/saved.json" "$bundle/config.json"
    if [ -e "$bundle/cache" ]; then cp "$bundle/cache" "$root/etc/ld.so.cache"; fi
    "$@" >"$bundle/said" 2>&1 || { cat "$bundle/said" >&2; exit 1; }
}
start "$@"
: >"$bundle/before"
everything >"$bundle/before"
while [ "$times" -gt 0 ]; do times=$((times - 1)); start "$@"; done
everything >"$bundle/after"
cat /proc/self/mountinfo >"$bundle/mounts"
"""


@pytest.fixture
def gpu(host: Host) -> Host:
    """A host with a driver of one node, one library, one file and an empty folder in its store."""
    entry = Host(host.store("gpu") / "v1", host.config)
    stand_in(entry, GPU, content="v1 ")
    (entry.root / "dev").rename(host.root / "dev")
    (host.store("gpu") / "current").symlink_to("v1")
    host.write_vendor("gpu", {**GPU, "root": "/var/lib/provision/gpu/current"})
    return host


def _by_the_runtime(_host: Host, _spec: dict[str, Any]) -> Path | str:
    return RUNTIME


def _by_the_hook(host: Host, spec: dict[str, Any]) -> Path | str:
    words = ["oci-decorator", "--config", str(host.config), "createRuntime"]
    spec["hooks"] = {"createRuntime": [{"path": str(DECORATOR), "args": words, "env": []}]}
    return "runc"


@pytest.mark.parametrize(
    ("times", "front_end", "cache"),
    [
        (100, _by_the_runtime, None),
        pytest.param(1000, _by_the_runtime, None, marks=pytest.mark.nightly),
        (100, _by_the_hook, None),
        # One that can't be read is made again by ldconfig, in namespaces with mounts of their own.
        (50, _by_the_runtime, "garbage"),
        (50, _by_the_hook, "garbage"),
    ],
)
def test_starts_leave_nothing_behind(
    times: int,
    front_end: Callable[[Host, dict[str, Any]], Path | str],
    cache: str | None,
    *,
    gpu: Host,
    fresh_root: Path,
    tmp_path: Path,
) -> None:
    need_programs("runc")
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    bundle = Bundle(tmp_path / "bundle")
    bundle.write("sh", "-c", _REPORT, env=("OCI_GPU=all",), root=fresh_root)
    spec = bundle.spec()
    program = front_end(gpu, spec)
    (bundle.folder / "saved.json").write_text(json.dumps(spec))
    if cache is not None:
        (bundle.folder / "cache").write_text(cache)
    script = ["unshare", "--mount", "--propagation=private", "sh", "-c", _ON_A_SHARED_HOST, "sh"]
    places = [bundle.folder, fresh_root, fresh_root.parent / "upper"]
    start = [program, "--root", bundle.state, "run", "--bundle", bundle.folder, "again"]
    run([*script, str(times), *places, *start], env={"OCI_DECORATOR_CONFIG": str(gpu.config)})

    before, after = (
        Counter((bundle.folder / name).read_text().splitlines()) for name in ("before", "after")
    )
    # Others on this machine may take mounts of theirs away meanwhile, here as well.
    assert after - before == Counter(), (bundle.folder / "mounts").read_text()
    assert any(str(fresh_root) in line for line in before)
    said = (bundle.folder / "said").read_text()
    assert said == f"/dev/gpu0: {ALLOWED}\n{_LIBRARY}\nv1 /opt/gpu/version\n"


def _mounts_and_files(engine: Engine) -> list[str]:
    """What of the engine and the hosts of these tests the machine has mounted, and /run has."""
    # Without the numbers in front, which are others after each unmounting.
    mounts = [
        line.split(" ", 3)[3]
        for line in Path("/proc/self/mountinfo").read_text().split("\n")
        if line
    ]
    ours = [mount for mount in mounts if str(engine.folder) in mount or "oci-decorator" in mount]
    # Unlike pathlib, it does not mind folders of others that go meanwhile.
    files = [
        f"{folder}/{name}"
        for folder, folders, names in os.walk("/run")
        for name in (*folders, *names)
        if "oci-decorator" in name
    ]
    return sorted(ours + files)


@pytest.mark.usefixtures("gpu")
def test_a_hundred_containers_at_once(engine: Engine, containers: Containers) -> None:
    before = _mounts_and_files(engine)

    def start(number: int) -> str:
        flags = (f"--env=OCI_GPU={'all' if number % 2 else 'none'}",)
        return containers.docker("sh", "-c", _REPORT, flags=flags, check=False).stdout

    with ThreadPoolExecutor(100) as pool:
        said = list(pool.map(start, range(100)))
    decorated = f"/dev/gpu0: {ALLOWED}\n{_LIBRARY}\nv1 /opt/gpu/version\n"
    assert set(said[1::2]) == {decorated}
    assert not any("opt" in plain for plain in said[::2])
    assert _mounts_and_files(engine) == before
