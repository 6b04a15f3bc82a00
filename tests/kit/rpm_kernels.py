"""Headers of Debian's kernels in the packages of EL, Fedora and SUSE; rpm, kbuild read them.

The layout was written by hand after the spec files of those kernels.

What is built with them has the release that the package is for, and Debian's compiler under the
name and in the words that these distros use.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kit.process import run
from kit.repackaged import Rpm, write_rpm

# The files of a headers package that name the release, and that a build reads.
_NAMING = (
    ".kernelvariables",
    ".config",
    "include/config/auto.conf",
    "include/generated/autoconf.h",
    "include/generated/utsrelease.h",
    "include/config/kernel.release",
)
_COMPILER = re.compile(r"gcc-(?P<major>\d+) \(Debian [^)]*\) (?P<version>[\d.]+)")
_EL_NEEDS = ("elfutils-libelf", "findutils", "openssl-libs", "perl-interpreter")
_SUSE_NEEDS = ("findutils", "libelf1", "libopenssl3", "perl-base")


@dataclass(frozen=True, slots=True)
class DebianHeaders:
    """A kernel's unpacked header packages."""

    # Its release, such as `6.1.0-56-amd64`.
    kernel: str
    # What it shares with other flavours: sources of headers, the Makefile.
    common: Path
    # What is its own: configuration, generated headers, Module.symvers.
    own: Path
    # The programs that a build runs.
    kbuild: Path


def unpack_headers(kernel: str, debs: Sequence[Path], folder: Path) -> DebianHeaders:
    """Unpack those of `debs` that are `kernel`'s headers."""
    starts = (f"linux-headers-{kernel}_", f"linux-headers-{_common(kernel)}", "linux-kbuild-")
    folder.mkdir(parents=True)
    for start in starts:
        found = [deb for deb in debs if deb.name.startswith(start)]
        if not found:
            raise LookupError(f"no package {start}* among the downloaded ones")
        for deb in found:
            run(["dpkg-deb", "-x", deb, folder])
    own = folder / f"usr/src/linux-headers-{kernel}"
    (common,) = own.parent.glob("linux-headers-*-common")
    (kbuild,) = (folder / "usr/lib").glob("linux-kbuild-*")
    return DebianHeaders(kernel, common, own, kbuild)


def _common(kernel: str) -> str:
    """`6.1.0-56-common_` of `6.1.0-56-amd64`."""
    return f"{kernel.rpartition('-')[0]}-common_"


@dataclass(frozen=True, slots=True)
class El:
    """`kernel-devel` of EL and Fedora: one tree in /usr/src/kernels/K."""

    # Of the package, and so of the kernel: `6.1.0`.
    version: str
    # `56.el9`.
    release: str
    # The kernel's release; None: VERSION-RELEASE.x86_64, as these distros have it.
    uname: str | None = None
    # What the package needs besides what every one does: newer ones name the compiler.
    requires: tuple[str, ...] = ()

    package: ClassVar[str] = "kernel-devel"

    @property
    def kernel(self) -> str:
        """What `uname -r` says."""
        return self.uname or f"{self.version}-{self.release}.x86_64"

    def write(self, headers: DebianHeaders, folder: Path) -> list[Path]:
        """Write the package into `folder`."""
        root = folder.parent / f"{folder.name}.kernel-devel-{self.release}"
        tree = root / "usr/src/kernels" / self.kernel
        _copy(headers.common, tree, but=("scripts", "tools"))
        _copy(headers.own, tree, but=("Makefile", "scripts", "tools"))
        _copy(headers.kbuild, tree)
        _rename(
            tree, headers.kernel, self.kernel, compiler="gcc (GCC) {version} (Red Hat {version}-1)"
        )
        modules = root / "usr/lib/modules" / self.kernel
        modules.mkdir(parents=True)
        (modules / "build").symlink_to(f"/usr/src/kernels/{self.kernel}")
        rpm = Rpm(
            self.package,
            self.version,
            self.release,
            summary="Development package for building kernel modules to match the kernel",
            requires=(*_EL_NEEDS, *self.requires),
            provides=(
                f"kernel-devel-uname-r = {self.kernel}",
                "kernel-devel(x86-64)",
                "installonlypkg(kernel)",
            ),
        )
        made = write_rpm(rpm, root, folder)
        shutil.rmtree(root)
        return [made]


@dataclass(frozen=True, slots=True)
class Suse:
    """`kernel-default-devel` and `kernel-devel` of SUSE: a build folder, and the sources."""

    # `6.1.0`.
    version: str
    # Of the kernel, without the count of its rebuilds: `150600.56`.
    release: str

    package: ClassVar[str] = "kernel-default-devel"

    @property
    def kernel(self) -> str:
        """What `uname -r` says."""
        return f"{self.version}-{self.release}-default"

    def write(self, headers: DebianHeaders, folder: Path) -> list[Path]:
        """Write both packages into `folder`."""
        edition = f"{self.version}-{self.release}"
        # The packages' release ends with the count of rebuilds, and the kernel's doesn't.
        rebuilt = f"{self.release}.1"
        sources = f"/usr/src/linux-{edition}"
        build = f"/usr/src/linux-{edition}-obj/x86_64/default"
        root = folder.parent / f"{folder.name}.kernel-default-devel-{self.release}"
        tree = root / build.lstrip("/")
        _copy(headers.own, tree, but=("Makefile", "scripts", "tools"))
        _copy(headers.kbuild, tree)
        _rename(tree, headers.kernel, self.kernel, compiler="gcc (SUSE Linux) {version}")
        (tree / "Makefile").write_text(f"include {sources}/Makefile\n")
        modules = root / "usr/lib/modules" / self.kernel
        modules.mkdir(parents=True)
        (modules / "build").symlink_to(build)
        (modules / "source").symlink_to(sources)
        own = Rpm(
            self.package,
            self.version,
            rebuilt,
            summary="Development files necessary for building kernel modules",
            requires=(f"kernel-devel = {edition}", *_SUSE_NEEDS),
            # Without the count of rebuilds, as every package of a kernel asks for others of it.
            provides=("multiversion(kernel)", f"kernel-default-devel = {edition}"),
        )
        made = [write_rpm(own, root, folder)]
        shutil.rmtree(root)
        tree = root / sources.lstrip("/")
        _copy(headers.common, tree, but=("scripts", "tools"))
        # Programs can't be in a package of no architecture.
        for part in ("scripts", "tools"):
            (tree / part).symlink_to(f"{build}/{part}")
        shared = Rpm(
            "kernel-devel",
            self.version,
            rebuilt,
            summary="Development files needed for building kernel modules",
            noarch=True,
            provides=("multiversion(kernel)", f"kernel-devel = {edition}"),
        )
        made.append(write_rpm(shared, root, folder))
        shutil.rmtree(root)
        return made


def _copy(source: Path, target: Path, *, but: Sequence[str] = ()) -> None:
    """Add the content of a folder to another, except for these names at its top."""
    target.mkdir(parents=True, exist_ok=True)
    parts = [part for part in source.iterdir() if part.name not in but]
    run(["cp", "-a", "-t", target, *parts])


def _rename(tree: Path, old: str, new: str, *, compiler: str) -> None:
    """Have a tree say that it is of the kernel `new`, built with a compiler called `gcc`."""
    for name in _NAMING:
        path = tree / name
        if not path.exists():
            continue
        text = path.read_text().replace(old, new)
        text = _COMPILER.sub(lambda found: compiler.format(version=found["version"]), text)
        path.write_text(re.sub(r"(\$\(CROSS_COMPILE\))gcc-\d+", r"\1gcc", text))
