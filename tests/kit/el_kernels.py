"""Kernels of Debian 13 as an EL host installs them, and what else a guest of EL consists of.

`kernel-core` has the kernel and the few modules that a guest needs, and scriptlets that call
kernel-install, as EL's has; `kernel` depends on it. Two kernels: the oldest of the archive, with
which a guest begins, and the current one, which `kit.rpm_sites` has the headers of. Their names are
Debian's own, which an RPM may have, so what is built for them loads.

What lies in the cache, served as a mirror:

    kernels/    kernel, kernel-core and kernel-devel of both
    guest/      what a booting system needs besides a base image
    koji/       kernel-devel of both, as Fedora's build system lays packages out
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kit.cache import cached, key_of
from kit.engine import Engine
from kit.process import run
from kit.repackaged import Rpm, download, packaged, repackage, sign_rpms, write_rpm
from kit.rpm_distros import Repository, rocky_10
from kit.rpm_kernels import El, unpack_headers
from kit.rpm_sites import Site, packaged_kernel, repository_file, site_of
from provision.distros import version_key

_SUITE = "trixie"
# A package without files that stands for Debian's base-files.
BASE_FILES = "guest-base-files"
# What a system takes to boot, to be reached, and to install kernels; essential packages of Debian
# are a dependency of nothing.
GUEST_PACKAGES = (
    *("bash", "busybox-static", "cpio", "dbus", "dnf", "e2fsprogs", "grub-common", "grub-pc-bin"),
    *("hostname", "iproute2", "kmod", "ncurses-base", "openssh-server", "procps", "python3"),
    *("systemd", "systemd-sysv", "udev", "util-linux", "xz-utils"),
)
# What QEMU's machine and systemd want, and what comes with each.
_MODULES = (
    *("autofs4", "binfmt_misc", "configfs", "crc32c_generic", "dummy", "ext4", "loop", "overlay"),
    *("virtio-rng", "virtio_blk", "virtio_net"),
)
_HEADERS = "linux-headers-"
_RELEASE = re.compile(r"[\d.]+\+deb13(\.\d+)?-amd64")
_KERNEL_STARTS = ("linux-headers-", "linux-image-", "linux-kbuild-")
# As EL's kernel-core.spec has them: a kernel is there when the transaction is at its end.
_SCRIPTS = """\
%posttrans
/usr/bin/kernel-install add {kernel} /usr/lib/modules/{kernel}/vmlinuz || exit $?
%preun
/usr/bin/kernel-install remove {kernel} || :
"""
_KERNELS = Repository("kernels", "kernels", ())
_GUEST = Repository("guest", "guest", ())


@dataclass(frozen=True, slots=True)
class ElHost:
    """What hosts of the EL stand-in are made from, and install from."""

    # The distro's image and mirror.
    site: Site
    folder: Path
    # The kernel that a guest begins with.
    older: str
    # The one that it is upgraded to.
    newer: str

    @property
    def newer_number(self) -> str:
        """`6.12.117` of `6.12.117+deb13-amd64`."""
        return self.newer.partition("+")[0]

    def mirror(self) -> Path:
        """The folder that a mirror serves: that of the site, and the repositories besides."""
        return self.folder / "mirror"

    def repositories(self, url: str) -> str:
        """What /etc/yum.repos.d of a host has for the mirror at `url`."""
        distro = self.site.distro
        every = (*distro.repositories, _KERNELS, _GUEST)
        return repository_file(distro, every, url)

    def load(self, engine: Engine, tag: str, url: str) -> str:
        """Have the base image in an engine, set up with the mirror at `url`; its id."""
        distro = self.site.distro
        wider = replace(distro, repositories=(*distro.repositories, _KERNELS))
        return Site(wider, self.site.folder).load(engine, tag, url)


@cache
def el_host() -> ElHost:
    """Rocky Linux 10 on Debian 13, made where the cache has it not. Needs root, and minutes."""
    newer = packaged_kernel(_SUITE)
    site = site_of(rocky_10(newer))
    debs = _debs(newer)
    older = (debs / "older").read_text()
    name = f"rpm-el-host-{key_of(site.folder.name, debs.name, Path(__file__))}"
    folder = cached(name, lambda draft: _make(site, debs, (older, newer), draft))
    return ElHost(site, folder, older, newer)


def _debs(newer: str) -> Path:
    """A folder with what guests are made from, and the name of the older kernel in `older`."""

    def make(folder: Path) -> None:
        folder.mkdir()
        names = [name.removeprefix(_HEADERS) for name in packaged(_SUITE, _HEADERS)]
        older = min(filter(_RELEASE.fullmatch, names), key=version_key)
        if older == newer:
            raise LookupError(f"the archive of Debian 13 has no other kernel than {newer}")
        kernels = [f"linux-{kind}-{k}" for kind in ("image", "headers") for k in (older, newer)]
        download(_SUITE, (*GUEST_PACKAGES, *kernels), folder)
        (folder / "older").write_text(older)

    return cached(f"rpm-el-debs-{key_of(newer, GUEST_PACKAGES)}", make)


def _make(site: Site, debs: Path, kernels: Sequence[str], draft: Path) -> None:
    mirror = draft / "mirror"
    mirror.mkdir(parents=True)
    known = {rpm.name.rsplit("-", 2)[0] for rpm in site.mirror().rglob("*.rpm")}
    every = sorted(debs.glob("*.deb"))
    missing = [
        deb
        for deb in every
        if not deb.name.startswith(_KERNEL_STARTS) and deb.name.split("_")[0] not in known
    ]
    repackage(missing, mirror / _GUEST.path)
    # Debian's base-files has another os-release; some ask for a newer one than the image has. And
    # scriptlets ask for their shell by its path before the merge of /usr.
    (draft / "none").mkdir()
    provides = ("base-files = 99", "/bin/sh")
    instead = Rpm(BASE_FILES, "1", "1", noarch=True, provides=provides)
    sign_rpms([write_rpm(instead, draft / "none", mirror / _GUEST.path)])
    target = mirror / _KERNELS.path
    target.mkdir()
    for kernel in kernels:
        version = kernel.rpartition("-")[0]
        own = [deb for deb in every if f"-{version}-" in deb.name or f"-{version}_" in deb.name]
        _pack_kernel(kernel, own, draft / "work", target)
        _pack_headers(kernel, own, draft / "work", target, mirror / "koji/packages/kernel")
        shutil.rmtree(draft / "work")
    sign_rpms(sorted(target.glob("*.rpm")))
    for headers in target.glob("kernel-devel-*.rpm"):
        (found,) = mirror.rglob(f"koji/**/{headers.name}")
        shutil.copy(headers, found)
    for name in (_GUEST.path, _KERNELS.path, "koji"):
        run(["createrepo_c", "--quiet", "--no-database", mirror / name])
    (mirror / "pub").symlink_to(site.mirror() / "pub")


def _pack_kernel(kernel: str, debs: Sequence[Path], work: Path, target: Path) -> None:
    """Write `kernel-core` and `kernel` into a folder."""
    (image,) = (deb for deb in debs if deb.name.startswith(f"linux-image-{kernel}_"))
    unpacked = work / "image"
    work.mkdir()
    run(["dpkg-deb", "-x", image, unpacked])
    modules = unpacked / "usr/lib/modules" / kernel
    if not (unpacked / "lib").exists():
        (unpacked / "lib").symlink_to("usr/lib")
    run(["depmod", "-b", unpacked, kernel])
    kept = _needed_modules(unpacked, kernel, _MODULES)
    root = work / "core"
    folder = root / "usr/lib/modules" / kernel
    for name in (*sorted(kept), "modules.builtin", "modules.builtin.modinfo", "modules.order"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(modules / name, folder / name)
    shutil.copy(unpacked / f"boot/vmlinuz-{kernel}", folder / "vmlinuz")
    shutil.copy(unpacked / f"boot/config-{kernel}", folder / "config")
    version, _, release = kernel.partition("-")
    core = Rpm(
        "kernel-core",
        version,
        release,
        requires=("kmod", "systemd", "cpio", "busybox-static"),
        provides=("installonlypkg(kernel)", f"kernel-core-uname-r = {kernel}"),
        scripts=_SCRIPTS.format(kernel=kernel),
    )
    write_rpm(core, root, target, directories=True)
    (work / "none").mkdir()
    needs = (f"kernel-core-uname-r = {kernel}",)
    both = Rpm("kernel", version, release, requires=needs, provides=("installonlypkg(kernel)",))
    write_rpm(both, work / "none", target)


def _pack_headers(kernel: str, debs: Sequence[Path], work: Path, target: Path, koji: Path) -> None:
    """Write `kernel-devel` into a folder, and to where koji would have it."""
    version, _, release = kernel.partition("-")
    headers = El(version, release, uname=kernel, requires=("gcc", "make", "pahole"))
    unpacked = unpack_headers(kernel, debs, work / "headers")
    place = koji / version / release / "x86_64"
    place.mkdir(parents=True)
    for rpm in headers.write(unpacked, target):
        shutil.copy(rpm, place)


def _needed_modules(folder: Path, kernel: str, wanted: Iterable[str]) -> set[str]:
    """The files of modules, and of all that they depend on; none of what is built in."""
    words = ("modprobe", "--dirname", folder, "--set-version", kernel, "--show-depends", "--all")
    said = run([*words, *wanted]).stdout
    place = re.compile(rf"^insmod \S*/lib/modules/{re.escape(kernel)}/(\S+)", re.MULTILINE)
    return set(place.findall(said))
