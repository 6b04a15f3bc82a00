"""Runs a command in a world of its own: a bare Debian, entered by namespaces, as root.

`python -m kit.world debian:13[,KIND…] COMMAND…`; `make TARGET WORLD=debian:13` is the same for a
target. The command runs in a fresh clone of this checkout, with what is not committed on top, and
its exit status is ours. The world has nothing but what debootstrap installs, git, make and
certificates. Its tree is no layer on another, because engines keep images in it. The kernel, its
devices and the network are the machine's. When it ends, its processes and files are gone.

A KIND is one of these:

    cgroup2     only version 2 of cgroups is mounted
    NAME=VALUE  a variable of the command's environment, such as TZ=X-5:45; `umask=077` is its umask

apt, pip and cargo reach the network as this machine's do. What they download is kept in the cache
for the next world of that release.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Self

from kit.cache import REPOSITORY, cache_dir, cached, key_of
from kit.debian import apt_sources, mirror
from kit.files import remove_tree
from kit.probe import is_root
from kit.process import run, run_here

# Releases by the names that they have in provision; the archive's own names for later ones.
_SUITES = {"debian:12": "bookworm", "debian:13": "trixie", "debian:testing": "testing"}
_INCLUDED = "git,make,ca-certificates"
# In the cache, whose file system can share its packages by links.
_PREFIX = ".running-world-"
_CLONE = "/root/provision"
# What of the environment says how the network is reached, and what a person watches.
_KEPT = (
    *("CI", "TERM", "COLUMNS", "GOPROXY", "GOSUMDB"),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_CERT", "PIP_RETRIES"),
    "PIP_DEFAULT_TIMEOUT",
)
_KEPT_ENDS = ("_proxy", "_PROXY")
_KEPT_BEGINNINGS = ("CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTRIES_", "CARGO_SOURCE_")
_APT_SETTINGS = ("Acquire::http::", "Acquire::https::", "Acquire::Retries")

# Becomes the world's first process: it waits for the command, and for what daemons leave behind.
_ENTER = """\
set -eu
root=$1 downloads=$2 cgroups=$3 mask=$4 folder=$5; shift 5
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
for kernel in sys dev; do mount --rbind "/$kernel" "$kernel"; done
mount -t tmpfs -o mode=755 tmpfs run
mount --bind "$downloads/pip" root/.cache/pip
mount --bind "$downloads/cargo" root/.cargo/registry
if [ "$cgroups" = 2 ]; then
    umount -R sys/fs/cgroup
    mount -t cgroup2 cgroup2 sys/fs/cgroup
fi
# Not chroot: nobody could make user namespaces there.
mkdir -p .machine
pivot_root . .machine
umount -l /.machine
rmdir /.machine
cd "$folder"
umask "$mask"
exec bash -c '"$@"; exit $?' world "$@"
"""


@dataclass
class World:
    """One world; `with World("debian:13") as world: world.run(...)`."""

    distro: str
    only_cgroup2: bool = False
    umask: str = "022"
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The world that words such as `debian:13,cgroup2,umask=077` describe."""
        distro, *kinds = text.split(",")
        if distro not in _SUITES:
            raise ValueError(f"there is no world '{distro}', but {', '.join(_SUITES)}")
        variables: dict[str, str] = {}
        for kind in kinds:
            name, is_variable, value = kind.partition("=")
            if not is_variable and kind != "cgroup2":
                raise ValueError(f"there is no kind of world '{kind}', but cgroup2, NAME=VALUE")
            variables[name] = value
        cgroup2 = variables.pop("cgroup2", None) is not None
        umask = variables.pop("umask", "022")
        return cls(distro, cgroup2, umask, variables)

    def __enter__(self) -> Self:
        _remove_forgotten()
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=cache_dir()))
        self._lock = os.open(draft, os.O_RDONLY)
        flock(self._lock, LOCK_EX)
        # A world that nobody holds is one whose process was killed.
        self._folder = draft.rename(draft.with_name(f"{_PREFIX}{draft.name}"))
        self.root = self._folder / "root"
        try:
            run(["cp", "-a", "--reflink=auto", self._tree(), self.root])
            self._have_downloads()
            self._connect()
            self._clone()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it; what it downloaded stays for the next one."""
        self._link_packages(self._archives, self._downloads / "apt")
        remove_tree(self._folder)
        os.close(self._lock)

    def run(self, argv: Sequence[str | Path], *, folder: str = _CLONE) -> int:
        """Run a command with our own standard streams; its exit status."""
        return run_here(
            [
                # Whatever ends us ends it: a PID namespace ends with its first process.
                *("setpriv", "--pdeathsig", "KILL"),
                *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
                *("--propagation=private", "sh", "-c", _ENTER, "sh"),
                *(self.root, self._downloads, "2" if self.only_cgroup2 else ""),
                *(self.umask, folder),
                *argv,
            ],
            env=self._variables(),
        )

    @property
    def _suite(self) -> str:
        return _SUITES[self.distro]

    @property
    def _downloads(self) -> Path:
        return cache_dir() / f"debs-world-{self._suite}"

    @property
    def _archives(self) -> Path:
        return self.root / "var/cache/apt/archives"

    def _tree(self) -> Path:
        def make(draft: Path) -> None:
            words = ["debootstrap", "--variant=minbase", f"--include={_INCLUDED}"]
            scripts = Path("/usr/share/debootstrap/scripts")
            # That of an older Debian knows no later release; all of them are made as sid is.
            known = scripts / self._suite
            script = known if known.exists() else scripts / "sid"
            run([*words, self._suite, draft, mirror(), script])

        return cached(f"world-{self._suite}-{key_of(_INCLUDED, mirror())}", make)

    def _connect(self) -> None:
        """Have apt, pip, cargo and git reach the network as this machine's do."""
        sources = apt_sources(self._suite)
        if self._suite == "testing":
            sources = f"deb {mirror()} testing main\n"
        (self.root / "etc/apt/sources.list").write_text(sources)
        settings = run(["apt-config", "dump"]).stdout.splitlines()
        said = "".join(f"{line}\n" for line in settings if line.startswith(_APT_SETTINGS))
        (self.root / "etc/apt/apt.conf.d/00machine").write_text(said)
        for name in (
            *("/etc/resolv.conf", "/etc/hosts", "/etc/hostname", "/etc/pip.conf"),
            *("/etc/apt/auth.conf", "/etc/apt/auth.conf.d", "/usr/local/share/ca-certificates"),
        ):
            self._copy(Path(name), name)
        home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
        self._copy(home / "config.toml", "/root/.cargo/config.toml")
        refresh = ["sh", "-c", "exec update-ca-certificates >/dev/null 2>&1"]
        if self.run(refresh, folder="/") != 0:
            raise RuntimeError(f"the certificates of {self.root} could not be set up")

    def _copy(self, source: Path, name: str) -> None:
        target = self.root / name.removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            target.unlink(missing_ok=True)
            shutil.copy(source, target)

    def _have_downloads(self) -> None:
        """Give it what earlier worlds downloaded; apt locks its folder, so that it gets links."""
        for folder in (
            *(self._downloads / name for name in ("apt", "pip", "cargo")),
            *(self.root / "root" / name for name in (".cache/pip", ".cargo/registry")),
        ):
            folder.mkdir(parents=True, exist_ok=True)
        # The note of this use.
        os.utime(self._downloads)
        self._link_packages(self._downloads / "apt", self._archives)

    def _link_packages(self, source: Path, target: Path) -> None:
        found = list(source.glob("*.deb"))
        run(["cp", "--link", "--no-clobber", *found, "-t", target], check=False)

    def _clone(self) -> None:
        """Clone what is committed, as a user would, and copy on top what is not."""
        bare = self.root / "root/provision.git"
        run(["git", "clone", "--quiet", "--bare", REPOSITORY, bare])
        if self.run(["git", "clone", "--quiet", "/root/provision.git", _CLONE], folder="/") != 0:
            raise RuntimeError("git could not clone this checkout")
        listed: list[str | Path] = ["git", "-C", REPOSITORY, "ls-files", "-z", "--exclude-standard"]
        gone = run([*listed, "--deleted"]).stdout.split("\0")
        changed = run([*listed, "--modified", "--others"]).stdout.split("\0")
        clone = self.root / _CLONE.removeprefix("/")
        for name in filter(None, gone):
            (clone / name).unlink(missing_ok=True)
        for name in set(filter(None, changed)) - set(gone):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, clone / name, follow_symlinks=False)

    def _variables(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in _KEPT or name.endswith(_KEPT_ENDS) or name.startswith(_KEPT_BEGINNINGS)
        }
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {**kept, "HOME": "/root", "PATH": path, "SHELL": "/bin/bash", **self.environment}


def _remove_forgotten() -> None:
    for folder in cache_dir().glob(f"{_PREFIX}*"):
        handle = os.open(folder, os.O_RDONLY)
        try:
            flock(handle, LOCK_EX | LOCK_NB)
            remove_tree(folder)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)


def main() -> int:
    """The command's exit status; 2 for words that describe no world."""
    parser = argparse.ArgumentParser(prog="kit.world", usage="%(prog)s WORLD COMMAND...")
    parser.add_argument("world")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    said = parser.parse_args()
    if not is_root():
        parser.error("a world has namespaces and a tree of its own: run it as root")
    try:
        described = World.parse(said.world)
    except ValueError as error:
        parser.error(str(error))
    with described as world:
        return world.run(said.command)


if __name__ == "__main__":
    sys.exit(main())
