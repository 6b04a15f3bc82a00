"""Deployments made by Debian's own ostree, and what rpm-ostree would say of them: a recording.

The recording is of CentOS Stream 9 (`tests/data/updaters`); checksums and order are ostree's, as
Debian has no rpm-ostree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kit.cache import REPOSITORY
from kit.probe import need, need_programs
from kit.process import run

RECORDED = REPOSITORY / "tests/data/updaters/rpm-ostree_staged.json"
_OS = "fedora-coreos"
_BRANCH = "fedora/x86_64/coreos/stable"
_MAKE = """
mkdir -p '{sysroot}'
ostree admin init-fs '{sysroot}'
ostree --repo='{sysroot}/ostree/repo' config set sysroot.bootloader none
ostree admin os-init --sysroot='{sysroot}' {os}
"""
# Without the flag that makes a root immutable, whoever removes the folder would have to be told.
_DEPLOY = """
export OSTREE_SYSROOT_DEBUG=mutable-deployments
ostree admin deploy --sysroot='{sysroot}' --os={os} {checksum}
"""
_COMMIT = """
ostree --repo='{sysroot}/ostree/repo' commit --branch={branch} --tree=dir='{tree}' \\
    --owner-uid=0 --owner-gid=0 --no-xattrs
"""


def _here(script: str) -> str:
    # It converts names of files to UTF-8.
    return run(["sh", "-euc", script], env={"LC_ALL": "C.UTF-8"}).stdout


@dataclass(frozen=True, slots=True)
class Sysroot:
    """What ostree calls a physical root: its `ostree` has the deployments."""

    folder: Path | str
    # Runs a script where that is, and returns what it prints.
    execute: Callable[[str], str]

    @classmethod
    def here(cls, folder: Path) -> Sysroot:
        """One on this machine."""
        need_programs("ostree")
        need(run(["id", "-u"]).stdout == "0\n", "root", "run as root: deployments are its own")
        return cls(folder, _here)

    def make(self) -> None:
        """Make it, with no deployment yet."""
        self.execute(_MAKE.format(sysroot=self.folder, os=_OS))

    def commit(self, tree: Path | str) -> str:
        """Commit a tree, and return the name that its deployment will have."""
        words = {"sysroot": self.folder, "branch": _BRANCH, "tree": tree}
        return f"{self.execute(_COMMIT.format(**words)).split()[-1]}.0"

    def deploy(self, name: str) -> str:
        """Deploy a commit: it boots next. Returns the folder of the deployment."""
        checksum = name.partition(".")[0]
        self.execute(_DEPLOY.format(sysroot=self.folder, os=_OS, checksum=checksum))
        return f"{self.folder}/ostree/deploy/{_OS}/deploy/{name}"

    def undeploy(self, deployment: str) -> None:
        """Remove a deployment, as `rpm-ostree cleanup` does."""
        index = self.deployments().index(deployment)
        self.execute(f"ostree admin undeploy --sysroot='{self.folder}' {index}")

    def deployments(self) -> list[str]:
        """The names of all, in the order of the boot loader: CHECKSUM.SERIAL."""
        said = self.execute(f"ostree admin status --sysroot='{self.folder}'")
        return re.findall(rf"{_OS} ([0-9a-f]{{64}}\.[0-9]+)", said)

    def status(self, booted: str, *first: str) -> str:
        """What `rpm-ostree status --json` says on a host that runs `booted`; `first` come next."""
        document = json.loads(RECORDED.read_text())
        (recorded,) = document["deployments"]
        names = [*first, *self.deployments()]
        document["deployments"] = [
            recorded
            | {"osname": _OS, "id": f"{_OS}-{name}", "booted": name == booted}
            | {"checksum": name.partition(".")[0], "serial": int(name.partition(".")[2])}
            | {"staged": number < names.index(booted)}
            for number, name in enumerate(names)
        ]
        return json.dumps(document)
