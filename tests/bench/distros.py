"""Rows about other distros than the host's: what each family's solver and build cost.

The distros of RPM are stand-ins (`kit.rpm_sites`); the kernel tree is the folder that a stand-in's
headers bring, with Debian's compiler.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.product import before_make, make_outside
from bench.rows import Group, Row
from bench.timing import Timed, base_environment, seconds_of
from kit.fileserver import served
from kit.hosts import DISTRO, OLD_KERNEL
from kit.made_up import MADE_UP, write_made_up
from kit.process import run
from kit.product import Provision
from kit.rpm_distros import leap_15, rocky_9
from kit.rpm_sites import site_of
from kit.upstream import write_tarball
from provision.distros import family_of, find_distro, release_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scene import Scene

__all__ = ["GROUPS"]

_FAMILIES = ("apt", "dnf", "zypper", "tree")
_SOLVED = ("apt", "dnf", "zypper")
_ROUNDS = 7
_TURNS = 2
_SOLVES = 4
# Enough to compile for some seconds with every processor.
_PARTS = 16
_VERSION = "1.0"
_MAKE = "make "
_PART = """\
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/usb.h>
int hello_part_{number}(struct net_device *device);
int hello_part_{number}(struct net_device *device) {{ return netif_running(device) + {number}; }}
"""
_MAIN = """\
#include <linux/module.h>
static int __init hello_init(void) { return 0; }
static void __exit hello_exit(void) { }
module_init(hello_init);
module_exit(hello_exit);
MODULE_LICENSE("GPL");
"""
_MAKEFILE = """\
obj-m := hello.o
hello-y := main.o {parts}
all:
\t$(MAKE) -C $(KDIR) M=$(CURDIR) modules
"""
_CONFIG = '[engine]\nnetwork = "host"\n'
_TREE = """
[[trees]]
kernels = "*"
kind = "prepared"
path = "/srv/build"
toolchain = "debian:12"
"""
# The files of a tree that name the kernel, and that a build reads.
_NAMING = (
    ".kernelvariables",
    "include/config/auto.conf",
    "include/config/kernel.release",
    "include/generated/autoconf.h",
    "include/generated/utsrelease.h",
)
# What a careful person types for the same: the headers, with fresh indexes; what their
# configuration says of the compiler; all that the build needs; and whether that is signed, where
# the program that downloads does not look. The files lie on the machine afterwards, as ours do.
_BY_HAND = {
    "apt": """\
mkdir -p /out/partial && get() {{
    apt-get -q install -y --no-install-recommends --download-only -o Dir::Cache::Archives=/out "$@"
}}
apt-get -q update && get {headers}
for file in /out/linux-headers-*.deb; do
    dpkg-deb --fsys-tarfile "$file" | tar -xO .{config} 2> /dev/null | grep CC_VERSION && break
done
get {headers} {compiler} {tools}
""",
    "dnf": """\
get() {{ dnf -y --setopt=install_weak_deps=False install --downloadonly --destdir=/out "$@"; }}
get {headers}
for file in /out/kernel-*.rpm; do
    rpm2archive - < "$file" | tar -xzO .{config} | grep CC_VERSION
done
get {headers} {compiler} {tools}
rpmkeys --import /etc/pki/rpm-gpg/* && rpmkeys --checksig /out/*.rpm
""",
    "zypper": """\
get() {{
    zypper --non-interactive --pkg-cache-dir=/out install --download-only --no-recommends \\
        --capability "$@"
}}
zypper --non-interactive refresh && get {headers}
for file in $(find /out -name 'kernel-default-devel*.rpm'); do
    rpm2archive - < "$file" | tar -xzO .{config} | grep CC_VERSION
done
get {headers} {compiler} {tools}
rpmkeys --import /usr/lib/rpm/gnupg/keys/* && find /out -name '*.rpm' | xargs rpmkeys --checksig
""",
}
# As each distro calls it.
_COMPILERS = {"apt": "gcc-12", "dnf": "gcc", "zypper": "gcc"}


@dataclass(frozen=True, slots=True)
class _Host:
    """A machine that builds for a distro of one family."""

    # Its name.
    family: str
    # Its root, with provision.toml.
    root: Path
    # As `--distro` takes it; None: the host's own.
    distro: str | None
    # The kernel that is built for.
    kernel: str
    # Where the driver is.
    catalogue: Path

    @property
    def words(self) -> tuple[str | Path, ...]:
        """What every command is asked for."""
        distro = ("--distro", self.distro) if self.distro else ()
        named = (MADE_UP, "--kernel", self.kernel, *distro)
        return (*named, "--catalogue", self.catalogue, "--root", self.root)

    def provision(self, scene: Scene, cache: Path | None = None) -> Provision:
        """The command, with a store of its own."""
        folder = cache or self.root / "cache"
        return Provision(scene.engine.host, {"XDG_CACHE_HOME": str(folder)})


def _driver(folder: Path) -> Path:
    """A driver whose build takes some seconds."""
    parts = {f"part{number}.c": _PART.format(number=number) for number in range(_PARTS)}
    objects = " ".join(name.replace(".c", ".o") for name in parts)
    files = {"main.c": _MAIN, "Makefile": _MAKEFILE.format(parts=objects), **parts}
    files["hello-tool"] = "#!/bin/sh\n"
    return write_tarball(folder, f"hello-{_VERSION}", files)


@contextmanager
def _host_of(scene: Scene, family: str) -> Iterator[_Host]:
    """A host of a family, while its mirror and the driver's server run."""
    folder = Path(tempfile.mkdtemp(dir=scene.folder))
    source = _driver(folder / "files")
    site = site_of(leap_15() if family == "zypper" else rocky_9())
    distro = site.distro
    root, catalogue = folder / family, folder / "drivers"
    (root / "etc/provision").mkdir(parents=True)
    # Of the machine itself: which mirrors it has, and whose keys.
    for name in ("etc/apt", "usr/share/keyrings"):
        shutil.copytree(Path("/", name), root / name, symlinks=True)
    with served(source.parent) as url, served(site.mirror()) as mirror:
        write_made_up(catalogue, {_VERSION: source}, url)
        config, os_release = _CONFIG, distro.os_release
        named: str | None = distro.name
        kernel = distro.headers.kernel
        if family == "apt":
            os_release, named, kernel = "ID=debian\nVERSION_ID=12\n", DISTRO, OLD_KERNEL
        elif family == "tree":
            config, os_release, named = _CONFIG + _TREE, "ID=vendor\nVERSION_ID=1\n", None
            kernel = _unpack_tree(site.mirror(), kernel, root / "srv/build")
        else:
            image = release_of(find_distro(distro.name))[1].image
            site.load(scene.engine, image, mirror)
        (root / "etc/os-release").write_text(os_release)
        (root / "etc/provision/provision.toml").write_text(config)
        yield _Host(family, root, named, kernel, catalogue)


def _unpack_tree(mirror: Path, kernel: str, build: Path) -> str:
    """The folder that a stand-in's headers bring, as of a kernel of its source's version."""
    (rpm,) = (path for path in mirror.rglob("kernel-devel-*.rpm") if kernel in path.name)
    with tempfile.TemporaryDirectory() as folder:
        run(["sh", "-c", 'rpm2archive - < "$2" | tar -xzC "$1"', "sh", folder, rpm])
        shutil.copytree(Path(folder, "usr/src/kernels", kernel), build, symlinks=True)
    text = (build / "Makefile").read_text()
    numbers = [
        found[1]
        for name in ("VERSION", "PATCHLEVEL", "SUBLEVEL")
        if (found := re.search(rf"^{name} = (\d+)$", text, re.MULTILINE))
    ]
    release = f"{'.'.join(numbers)}-bench"
    for name in _NAMING:
        path = build / name
        if path.is_file():
            path.write_text(path.read_text().replace(kernel, release))
    return release


def _measure_solving(scene: Scene, family: str) -> Iterator[Row]:
    with _host_of(scene, family) as host:
        yield _solving(scene, host)


def _measure(scene: Scene, family: str) -> Iterator[Row]:
    with _host_of(scene, family) as host:
        host.provision(scene).build(*host.words)
        yield from _again(scene, host)
        yield _making(scene, host)


def _again(scene: Scene, host: _Host) -> list[Row]:
    """`resolve` and `build` where nothing has changed."""
    provision = host.provision(scene)
    env = {**base_environment(), **provision.variables()}
    programs = [
        Timed(verb, [provision.program, verb, *host.words], env=env)
        for verb in ("resolve", "build")
    ]
    ms = scene.timer.medians_ms(programs, _ROUNDS)
    note = f"median of {_ROUNDS} each, in turns"
    return [
        Row(f"{verb}-{host.family}", f"{verb} again, {host.family}", ms[verb] / 1e3, 1, "s", note)
        for verb in ("resolve", "build")
    ]


def _solving(scene: Scene, host: _Host) -> Row:
    """A first `resolve` against the package manager downloading the same by hand."""
    distro, release = release_of(find_distro(host.distro or ""))
    query = family_of(distro).headers(distro, host.kernel, os.uname().machine)
    by_hand = _BY_HAND[host.family].format(
        headers=shlex.join(spec.text for spec in query.specs),
        config=shlex.quote(query.config),
        compiler=_COMPILERS[host.family],
        tools=shlex.join(distro.build_tools(release, ())),
    )
    ours, theirs = [], []
    for turn in range(_SOLVES):
        out = host.root / f"by-hand-{turn}"
        out.mkdir()
        container = ("run", "--rm", "--network=host", f"--volume={out}:/out", release.image)
        words = (*container, "sh", "-euc", by_hand)
        theirs.append(seconds_of(partial(scene.engine.docker, *words)))
        shutil.rmtree(out)
        fresh = host.provision(scene, host.root / f"fresh-{turn}")
        ours.append(seconds_of(partial(fresh.json, "resolve", *host.words)))
    note = (
        f"{min(ours):.1f} s; by hand {min(theirs):.1f} s; the fastest of {_SOLVES} each, in turns"
    )
    what = f"resolve for a new kernel / {host.family} downloading the same"
    return Row(f"solve-{host.family}", what, min(ours) / min(theirs), 1.2, "x", note)


def _making(scene: Scene, host: _Host) -> Row:
    """The modules in the build container against the same make outside."""
    tree, command = before_make(scene, host.provision(scene), *host.words)
    inside, outside = [], []
    for turn in range(_TURNS):
        steps = host.provision(scene).build(*host.words, "--rebuild")["steps"]
        inside.append(next(s["seconds"] for s in steps if _MAKE in s["instruction"]))
        copy = tree.with_name(f"{tree.name}-{turn}")
        run(["cp", "-a", tree, copy])
        outside.append(seconds_of(partial(make_outside, copy, command)))
        shutil.rmtree(copy)
    shutil.rmtree(tree)
    note = (
        f"{min(inside):.1f} s in docker build; {min(outside):.1f} s in a chroot of the same tree;"
        f" the faster of {_TURNS} each, in turns"
    )
    what = f"{_PARTS} files and a module in docker build / outside, {host.family}"
    return Row(f"make-{host.family}", what, min(inside) / min(outside), 1.15, "x", note)


def _group(family: str) -> Group:
    names = tuple(f"{what}-{family}" for what in ("resolve", "build", "make"))
    return Group(names, partial(_measure, family=family))


GROUPS = (
    *(Group((f"solve-{family}",), partial(_measure_solving, family=family)) for family in _SOLVED),
    *map(_group, _FAMILIES),
)
