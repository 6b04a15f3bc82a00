"""The validation of opencontainers/runtime-tools finds of our runtime what it finds of runc.

Each program makes bundles of its own and starts them by `$RUNTIME`. A driver is in every container:
ours adds it because of a variable, and for runc alone the bundle has the same mount and device.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kit.files import write
from kit.go_modules import go_module, go_programs
from kit.probe import is_root, need, need_programs
from kit.process import run
from kit.product import DECORATOR, RUNTIME, write_runtime_config

_MODULE = "github.com/opencontainers/runtime-tools"
_VERSION = "v0.9.1-0.20221107090550-2e043c6bd626"
_SUM = "h1:DmNGcqH3WDbV5k8OJ+esPWbqUOX5rMLR2PMvziDMJi0="
_INSIDE = "runtimetest"
_PROGRAMS = 58
_FILE = "/opt/probe/file"
_NODE = "/dev/probe"
_CGROUPS = Path("/sys/fs/cgroup")
_NULL = (1, 3)
# A limit of memory that one of them sets, before runc's own work is done, does not always suffice.
_TRIES = 3

_VENDOR = {
    "version": "1",
    "log_level": "LOG_INFO",
    "activation_flag": "OCI_PROBE",
    "driver_feature": ["probe"],
    "inventory": {"probe": {"devices": [_NODE], "miscellaneous": [_FILE]}},
}

# $RUNTIME: adds the lists of a document to those of a bundle, and goes on as the runtime behind it.
_ADDING = f"""\
#!{sys.executable} -I
import json, os, sys
from pathlib import Path

def add(document, more):
    for key, value in more.items():
        if isinstance(value, list):
            document[key] = (document.get(key) or []) + value
        else:
            add(document.setdefault(key, {{}}), value)

if "create" in sys.argv and "--bundle" in sys.argv:
    bundle = Path(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    # Some have none, or none that is JSON, for the runtime to refuse.
    try:
        document = json.loads(bundle.read_text())
    except (OSError, ValueError):
        pass
    else:
        add(document, json.loads(os.environ["MORE"]))
        bundle.write_text(json.dumps(document))
os.execv(os.environ["BEHIND"], [os.environ["BEHIND"], *sys.argv[1:]])
"""

# A mount that a program leaves behind, and what it removes through one, is in this view only.
_IN_VIEW = """
set -eu
mount -t tmpfs -o mode=755 tmpfs /dev
while read -r name numbers; do mknod -m 666 "/dev/$name" c $numbers; done <<END
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
END
mkdir /dev/pts /dev/shm /dev/mqueue
mount -t devpts -o newinstance,ptmxmode=666 devpts /dev/pts
ln -s pts/ptmx /dev/ptmx
ln -s /proc/self/fd /dev/fd
for stream in 0:stdin 1:stdout 2:stderr; do
    ln -s "/proc/self/fd/${stream%:*}" "/dev/${stream#*:}"
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 755 /run/bundles
cd /run/bundles
cp "$1" "$2/runtimetest" .
TMPDIR=$PWD exec "$2/$3" </dev/null
"""
_VIEW = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def _found(programs: Path, name: str, root_archive: Path, env: Mapping[str, str]) -> list[str]:
    """What a program finds, in no order and without numbers: some go through a map of Go's."""
    words: list[str | Path] = [*_VIEW, "sh", "-c", _IN_VIEW, "sh", root_archive, programs, name]
    done = run(words, env=env, check=False, timeout_s=300)
    results = re.findall(r"^((?:not )?ok)\b[ \d]*(.*)", done.stdout, re.MULTILINE)
    return [f"exit status {done.returncode}", *sorted(map(" ".join, results))]


@pytest.fixture
def _no_cgroups_left() -> Iterator[None]:
    """Remove the empty cgroups that some programs leave."""
    yield
    for left in [*_CGROUPS.glob("**/testdir/cgrouptest"), *_CGROUPS.glob("**/testdir")]:
        left.rmdir()


@pytest.mark.nightly
@pytest.mark.minutes(8)
@pytest.mark.usefixtures("_no_cgroups_left")
def test_what_holds_of_runc_holds_of_our_runtime_before_it(tmp_path: Path) -> None:
    need(is_root(), "root", "run as root: it starts containers")
    need_programs("runc")
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    programs = go_programs("runtime-tools", f"{_MODULE}/cmd/{_INSIDE}", f"{_MODULE}/validation/...")
    root_archive = go_module(_MODULE, _VERSION, _SUM) / "rootfs-amd64.tar.gz"
    names = sorted({path.name for path in programs.iterdir()} - {_INSIDE})
    assert len(names) == _PROGRAMS

    host = tmp_path / "host"
    for path in (_FILE, _NODE):
        (host / path[1:]).parent.mkdir(parents=True)
    (host / _FILE[1:]).write_text("of the host\n")
    os.mknod(host / _NODE[1:], 0o666 | stat.S_IFCHR, os.makedev(*_NULL))
    (tmp_path / "vendors").mkdir()
    (tmp_path / "vendors/probe.json").write_text(json.dumps(_VENDOR))
    config = write_runtime_config(tmp_path / "config.toml", tmp_path / "vendors", root=host)
    adding = write(tmp_path / "adding", _ADDING, 0o755)

    asked = {"process": {"env": ["OCI_PROBE=all"]}}
    options = ["bind", "ro", "nosuid", "nodev"]
    mount = {"destination": _FILE, "type": "bind", "source": f"{host}{_FILE}", "options": options}
    number = {"type": "c", "major": _NULL[0], "minor": _NULL[1]}
    device = number | {"path": _NODE, "fileMode": 0o666, "uid": 0, "gid": 0}
    allowed = {"devices": [number | {"allow": True, "access": "rwm"}]}
    given = asked | {"mounts": [mount], "linux": {"devices": [device], "resources": allowed}}
    common = {"RUNTIME": str(adding), "OCI_DECORATOR_CONFIG": str(config)}
    ours = common | {"BEHIND": str(RUNTIME), "MORE": json.dumps(asked)}
    alone = common | {"BEHIND": "/usr/sbin/runc", "MORE": json.dumps(given)}

    differ: dict[str, list[str]] = {}
    for name in names:
        for _ in range(_TRIES):
            expected, found = (_found(programs, name, root_archive, env) for env in (alone, ours))
            if found == expected:
                differ.pop(name, None)
                break
            differ[name] = sorted(set(expected) ^ set(found))
    assert differ == {}
