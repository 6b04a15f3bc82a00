"""What this machine can do, asked of the machine and not of its name.

A test says what it needs with `need(...)`. Where that is missing it skips on a developer's
machine and fails in CI (`CI=true`), so that CI never goes green by leaving tests out.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

import pytest

from kit.process import run

# Where Debian keeps programs of the admin; a user's PATH may lack them.
_ADMIN_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


def need(available: object, what: str, remedy: str) -> None:
    """Go on when `available`; otherwise skip the test, or fail it in CI."""
    if available:
        return
    message = f"needs {what} ({remedy})"
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(f"{message}; CI=true, so this is a failure", pytrace=False)
    pytest.skip(message)


def find_program(name: str) -> Path | None:
    """The program `name` on PATH or among the admin's programs."""
    found = shutil.which(name) or shutil.which(name, path=_ADMIN_PATH)
    return Path(found) if found else None


def installed_program(name: str) -> Path:
    """The same program, which has to be there."""
    found = find_program(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed; `make test-all` and `make demo` install it")
    return found


def need_programs(*names: str) -> None:
    for name in names:
        need(find_program(name), f"the program {name}", ".ci/setup nightly")


def need_vagrant(*others: str) -> None:
    """Go on when Vagrant and these programs are there.

    Debian 12 is the last that packages it: elsewhere it can't be had, in CI neither.
    """
    packaged = run(["apt-cache", "show", "vagrant-libvirt"], check=False).returncode == 0
    if not packaged and find_program("vagrant") is None:
        pytest.skip("this distro has no Vagrant")
    need_programs("vagrant", *others)


def is_root() -> bool:
    """Whether we are root: engines, mounts and debootstrap want that."""
    return os.geteuid() == 0


@cache
def can_mount() -> bool:
    """Whether a tmpfs can be mounted in a mount namespace of our own."""
    script = "mount -t tmpfs none /mnt"
    done = run(["unshare", "--mount", "--propagation", "private", "sh", "-c", script], check=False)
    return done.returncode == 0


@cache
def has_hybrid_cgroups() -> bool:
    """Whether v1 controllers are mounted with a v2 hierarchy beside them that has controllers too.

    crun refuses that: "cgroups in hybrid mode not supported, drop all controllers from cgroupv2".
    """
    controllers = Path("/sys/fs/cgroup/unified/cgroup.controllers")
    return controllers.exists() and controllers.read_text().strip() != ""


def can_run_crun() -> bool:
    """Whether crun can start containers here, if need be without the v2 part of the cgroups."""
    return find_program("crun") is not None and (not has_hybrid_cgroups() or can_mount())
