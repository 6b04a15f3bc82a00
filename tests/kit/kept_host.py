"""A host as a release left it, which later ones read: `python -m kit.kept_host VERSION` keeps one.

Run it with the code of that release, once; the files are never made again.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path

from kit.cache import REPOSITORY
from kit.host_tree import KERNEL, NEXT, HostTree
from kit.process import run
from provision.agent.desired import load_desired, read_inputs

_FOLDER = REPOSITORY / "tests/data/kept-hosts"
# All but what `HostTree` makes anew, and what names the folder that it was in.
_KEPT = ("etc", "lib", "proc/modules", "proc/sys", "srv", "sys", "usr", "var")


def have_kept_host(host: HostTree, version: str) -> None:
    """Lay out a host on which a release has two versions of a driver, and the next kernel's."""
    boot_id = (host.root / "proc/sys/kernel/random/boot_id").read_text()
    run(["tar", "-C", host.root, "-xpJf", _FOLDER / f"{version}.tar.xz"])
    # It runs now, and not since the boot in which it was kept.
    host.write("proc/sys/kernel/random/boot_id", boot_id)
    host.add_kernel(NEXT)
    # Templates and distros' data have changed since, on which a resolved Pin need not depend.
    desired = load_desired(host.root)
    inputs = read_inputs(host.root, desired)
    for driver in desired.drivers:
        path = host.root / "var/lib/provision" / driver / "state.json"
        state = json.loads(path.read_text())
        for release, kernel in state["kernels"].items():
            kernel["inputs"] = inputs.of(driver, release)
        path.write_text(json.dumps(state, indent=2) + "\n")


def _keep(version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        host = HostTree.make(Path(folder))
        host.want()
        host.offer()
        _apply(host)
        host.add_kernel(NEXT)
        for kernel in (KERNEL, NEXT):
            host.offer("2.0", kernel=kernel)
        host.want(version="2.0")
        _apply(host)
        _FOLDER.mkdir(exist_ok=True)
        with tarfile.open(_FOLDER / f"{version}.tar.xz", "x:xz") as archive:
            for name in _KEPT:
                if (host.root / name).exists():
                    archive.add(host.root / name, arcname=name)


def _apply(host: HostTree) -> None:
    program = Path(sys.executable).parent / "provision"
    run([program, "apply", "--root", host.root], env=host.environment)


if __name__ == "__main__":
    _keep(sys.argv[1])
