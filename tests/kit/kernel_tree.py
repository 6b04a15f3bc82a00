"""A kernel built here from Debian's linux-source, with a configuration of our own, as Flatcar's.

Small enough to be compiled in some minutes, and large enough to boot a guest with containers. It is
compiled twice: the second release differs in its number, as the kernel of an update does, and most
of its objects are the first's. What lies in the cache:

    RELEASE/vmlinuz  RELEASE/config  RELEASE/Module.symvers
    RELEASE/modules/    as in /usr/lib/modules/RELEASE, with build/ as Flatcar has it
    linux.tar.xz                        the source, as kernel.org publishes one
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kit.cache import REPOSITORY, cache_dir, cached
from kit.debian import mirror
from kit.engine import Engine
from kit.files import remove_tree
from kit.process import run

_PACKAGE = "linux-source-6.1"
_CONFIG = REPOSITORY / "tests/data/kernel/small.config"
# The folders of `make headers`-like trees: what an external module's build reads.
# Source: scripts/package/install-extmod-build of Linux 6.7, which Flatcar uses too.
_EXTMOD = """\
set -eu
cd "$1"
build() { find "$@" \\( -name 'Makefile*' -o -name 'Kconfig*' -o -name Kbuild \\) -print; }
files() { find "$@" ! -name '*.o' ! -name '.*.cmd' \\( -type f -o -type l \\) -print; }
{
    find . -mindepth 1 -maxdepth 1 -type d ! -name arch ! -name debian | while read -r folder; do
        build "$folder"
    done
    build . -maxdepth 1
    build arch/x86
    find arch/x86 \\( -name '*.tbl' -o -name 'module.lds*' \\) -print
    files arch/x86/include include scripts
    printf '%s\\n' .config Module.symvers tools/objtool/objtool
} | sort -u | tar --create --no-recursion --files-from=- | tar --extract --directory "$2"
"""
_COMPILER_IMAGE = "kit-compiler:1"
_DOCKERFILE = """\
FROM debian:bookworm
RUN echo deb {mirror} bookworm main >/etc/apt/sources.list \\
 && apt-get -qq update \\
 && apt-get -qq install -y --no-install-recommends gcc libc6-dev libelf1 make kmod patch python3
"""


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """One release of the kernel, in the cache."""

    # As `uname -r` prints it.
    release: str
    folder: Path

    @property
    def modules(self) -> Path:
        """The content of its folder in /usr/lib/modules, the tree for external modules included."""
        return self.folder / "modules"

    @property
    def symvers(self) -> dict[str, str]:
        """The CRC of each symbol that it exports, as 0x and eight digits."""
        lines = (self.folder / "Module.symvers").read_text().splitlines()
        return {fields[1]: fields[0] for fields in map(str.split, lines)}


def make_compiler_image(engine: Engine) -> str:
    """Have an image with the kernel's compiler and all tools, as Flatcar's developer container.

    Returns:
        Its name.
    """
    if _COMPILER_IMAGE not in engine.images():
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "Dockerfile").write_text(_DOCKERFILE.format(mirror=mirror()))
            engine.docker("build", "--network=host", "--tag", _COMPILER_IMAGE, folder)
    return _COMPILER_IMAGE


def kernel_source() -> Path:
    """The source as a tar file, with the folder `linux-source-6.1` in it."""
    return _entry() / "linux.tar.xz"


def built_kernels() -> tuple[BuiltKernel, BuiltKernel]:
    """The kernel that runs, and the one of the update: made where the cache hasn't got them."""
    entry = _entry()
    older, newer = (entry / "releases").read_text().split()
    return BuiltKernel(older, entry / older), BuiltKernel(newer, entry / newer)


def _entry() -> Path:
    digest = hashlib.sha256(_CONFIG.read_bytes() + _EXTMOD.encode()).hexdigest()[:12]
    return cached(f"kernel-{digest}", _make)


def _make(draft: Path) -> None:
    draft.mkdir()
    tree = cache_dir() / f".kernel-tree-{os.getpid()}"
    try:
        unpack(draft, tree)
        build(draft, tree)
    finally:
        remove_tree(tree)


def unpack(draft: Path, tree: Path) -> None:
    """Download the source's package, and unpack it."""
    run(["apt-get", "download", "-o", "APT::Sandbox::User=root", _PACKAGE], cwd=draft)
    (package,) = draft.glob("*.deb")
    run(["dpkg-deb", "--extract", package, draft / "package"])
    (draft / f"package/usr/src/{_PACKAGE}.tar.xz").rename(draft / "linux.tar.xz")
    package.unlink()
    shutil.rmtree(draft / "package")
    tree.mkdir()
    run(["tar", "-xJf", draft / "linux.tar.xz", "-C", tree, "--strip-components=1"])


def build(draft: Path, tree: Path) -> None:
    """Compile both releases and keep what hosts have of them."""
    run(["make", f"KCONFIG_ALLCONFIG={_CONFIG}", "allnoconfig"], cwd=tree)
    version = run(["make", "-s", "kernelversion"], cwd=tree).stdout.strip()
    base, _, last = version.rpartition(".")
    # The first has the source's own number; the update's is one more.
    makefile = (tree / "Makefile").read_text()
    releases = []
    for sublevel in (int(last), int(last) + 1):
        numbered = makefile.replace(f"SUBLEVEL = {last}\n", f"SUBLEVEL = {sublevel}\n", 1)
        (tree / "Makefile").write_text(numbered)
        words = ["make", f"-j{os.cpu_count()}"]
        run(["nice", "-n", "10", *words, "bzImage", "modules"], cwd=tree, timeout_s=7200)
        releases.append(f"{base}.{sublevel}-flatcar")
        _keep(draft / releases[-1], tree)
    (draft / "releases").write_text(" ".join(releases))


def _keep(folder: Path, tree: Path) -> None:
    folder.mkdir()
    for name, kept in (
        ("arch/x86/boot/bzImage", "vmlinuz"),
        (".config", "config"),
        ("Module.symvers", "Module.symvers"),
    ):
        shutil.copy(tree / name, folder / kept)
    target = f"INSTALL_MOD_PATH={folder / 'installed'}"
    run(["make", "INSTALL_MOD_STRIP=1", target, "modules_install"], cwd=tree)
    (installed,) = (folder / "installed/lib/modules").iterdir()
    installed.rename(folder / "modules")
    shutil.rmtree(folder / "installed")
    for link in ("build", "source"):
        (folder / "modules" / link).unlink(missing_ok=True)
    (folder / "modules/build").mkdir()
    run(["sh", "-c", _EXTMOD, "sh", tree, folder / "modules/build"])
