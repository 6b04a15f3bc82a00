"""Ubuntu, made from Debian's packages; real apt reads its archive, which `kit.apt_archive` writes.

The image has Ubuntu's os-release, sources and keyring. The headers of its kernels are Debian's, in
the packages that Ubuntu splits them into, with zstd inside, as Ubuntu packs them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kit.apt_archive import AptArchive
from kit.cache import cached, key_of
from kit.debian import apt_sources
from kit.engine import Engine
from kit.files import HostFiles, write_all
from kit.fileserver import served
from kit.kernels import kernels
from kit.process import run
from kit.product import IMAGE

UBUNTU = "ubuntu:24.04"
_IMAGE = "ubuntu:noble"
KEYRING = "usr/share/keyrings/ubuntu-archive-keyring.gpg"
_COMPONENTS = ("main", "restricted", "universe", "multiverse")
# What builds install besides the headers: the tools of every build and of archives as sources.
_TOOLS = "ca-certificates gcc-12 kmod libarchive-tools make patch python3 xz-utils"
# What the flavour's headers depend on besides those that flavours share.
_NEEDS = "libc6, libelf1, libssl3, zlib1g"
_OS_RELEASE = """\
PRETTY_NAME="Ubuntu 24.04.3 LTS"
NAME="Ubuntu"
VERSION_ID="24.04"
VERSION="24.04.3 LTS (Noble Numbat)"
VERSION_CODENAME=noble
ID=ubuntu
ID_LIKE=debian
UBUNTU_CODENAME=noble
"""
# As of the official image, with a mirror that answers.
_SOURCES_FILE = "etc/apt/sources.list.d/ubuntu.sources"
_SOURCES = """\
Types: deb
URIs: {url}/ubuntu/
Suites: noble noble-updates noble-backports
Components: main universe restricted multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg

Types: deb
URIs: {url}/ubuntu/
Suites: noble-security
Components: main universe restricted multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""
_CC = "x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-17ubuntu1) 12.3.0"
# Quoted in the one file, and not in the other.
_CC_LINE = re.compile(r'^(CONFIG_CC_VERSION_TEXT="?)[^"\n]*', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class UbuntuHost:
    """A host of UBUNTU, and the archive that its packages come from."""

    root: Path
    archive: Path
    # What is served beside the archive, and where.
    site: Path
    url: str


def ubuntu_kernel() -> str:
    """The kernel of such a host: one of Debian's under a name of Ubuntu's."""
    return f"{kernels()[1].removesuffix('-amd64')}-generic"


def shared_headers() -> str:
    """The package of that kernel's headers that flavours share."""
    abi = ubuntu_kernel().removesuffix("-generic")
    return f"linux-hwe-{'.'.join(abi.split('.')[:2])}-headers-{abi}"


@contextmanager
def ubuntu_host(engine: Engine, folder: Path) -> Iterator[UbuntuHost]:
    """A host whose archive is served meanwhile, and _IMAGE in an engine.

    The compiler of the kernel lies in universe, as it does for the kernels of HWE.
    """
    site = folder / "www"
    debs = [d for d in _packages_of(engine).glob("*.deb") if not d.name.startswith("linux-")]
    gcc = [deb for deb in debs if deb.name.startswith("gcc-12_")]
    archive = _archive(site / "ubuntu")
    empty: dict[str, list[Path]] = {component: [] for component in _COMPONENTS}
    archive.publish("noble", {**empty, "main": [deb for deb in debs if deb not in gcc]})
    name = f"linux-headers-{ubuntu_kernel()}"
    own, shared = headers_of(engine, name, ubuntu_kernel(), shared_headers())
    archive.publish("noble-updates", {**empty, "main": [own, shared], "universe": gcc})
    archive.publish("noble-security", empty)
    archive.publish("noble-backports", empty)
    keyring = archive.key.keyring
    with served(site) as url:
        _make_image(engine, folder, keyring, url)
        root = _root(folder / "host", keyring, url)
        yield UbuntuHost(root, archive.folder, site, url)


def _archive(folder: Path) -> AptArchive:
    """An archive below a folder whose suites say of themselves what Ubuntu's do."""
    fields = {
        "Origin": "Ubuntu",
        "Label": "Ubuntu",
        "Version": "24.04",
        "Codename": "noble",
        "Description": "Ubuntu Noble 24.04",
        "Acquire-By-Hash": "yes",
    }
    return AptArchive(folder, fields=fields)


def _make_image(engine: Engine, folder: Path, keyring: Path, url: str) -> None:
    """Make _IMAGE from the base image of Debian 12: other names, sources and keys."""
    context = folder / "image"
    context.mkdir()
    (context / "os-release").write_text(_OS_RELEASE)
    (context / "ubuntu.sources").write_text(_SOURCES.format(url=url))
    shutil.copy(keyring, context / "keyring.gpg")
    (context / "Dockerfile").write_text(
        f"FROM {IMAGE}\n"
        "RUN rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*"
        " /usr/share/keyrings/* /etc/apt/trusted.gpg.d/*\n"
        "COPY os-release /usr/lib/os-release\n"
        f"COPY ubuntu.sources /{_SOURCES_FILE}\n"
        f"COPY keyring.gpg /{KEYRING}\n"
        "COPY keyring.gpg /etc/apt/trusted.gpg.d/ubuntu-keyring-2018-archive.gpg\n"
        f"RUN chmod 644 /{KEYRING} /etc/apt/trusted.gpg.d/*\n"
    )
    engine.docker("build", "--quiet", "--network", "none", "--tag", _IMAGE, context)


def _root(root: Path, keyring: Path, url: str) -> Path:
    """Make the tree of the host; its root."""
    files = {
        "etc/os-release": _OS_RELEASE,
        _SOURCES_FILE: _SOURCES.format(url=url),
        "etc/provision/provision.toml": '[engine]\nnetwork = "host"\n',
    }
    write_all(root, files)
    HostFiles(root).add_kernel(ubuntu_kernel())
    HostFiles(root).boot(ubuntu_kernel())
    (root / KEYRING).parent.mkdir(parents=True)
    shutil.copy(keyring, root / KEYRING)
    return root


def _packages_of(engine: Engine) -> Path:
    """A folder with every package that a build on _IMAGE installs, but for the headers.

    Beside them lie the headers of Debian's newer kernel, which Ubuntu's are made from.
    """
    release = kernels()[1]

    def make(draft: Path) -> None:
        draft.mkdir()
        script = (
            f"rm -rf /etc/apt/sources.list.d/* && echo '{apt_sources('bookworm')}'"
            " > /etc/apt/sources.list"
            " && apt-get -qq update && apt-get -qq install --yes --no-install-recommends"
            f" --download-only -o APT::Keep-Downloaded-Packages=true {_TOOLS}"
            f" linux-headers-{release} && cp /var/cache/apt/archives/*.deb /out/"
        )
        words = ["run", "--rm", "--network", "host", "--volume", f"{draft}:/out", IMAGE]
        engine.docker(*words, "sh", "-c", script)

    return cached(f"ubuntu-packages-{key_of(_TOOLS, release)}", make)


def headers_of(engine: Engine, name: str, kernel: str, shared: str) -> tuple[Path, Path]:
    """The packages of a kernel's headers: its flavour's own, and those that flavours share.

    `shared` is the name of the second, such as `linux-hwe-6.1-headers-6.1.0-56`.
    """
    source = _packages_of(engine)

    def make(draft: Path) -> None:
        parts = draft / "parts"
        parts.mkdir(parents=True)
        for package in ("linux-headers-*-amd64_*", "linux-headers-*-common_*", "linux-kbuild-*"):
            (found,) = source.glob(f"{package}.deb")
            run(["dpkg-deb", "--extract", found, parts])
        flavour, common = draft / "flavour", draft / "common"
        _fill(parts, flavour, common, kernel, shared)
        version = f"{re.split('-[a-z]', kernel)[0]}.1~24.04.1"
        _pack(common, shared, version, "all", "coreutils | busybox", draft)
        needs = f"{shared}, {_NEEDS}"
        _pack(flavour, name, version, "amd64", needs, draft)
        for folder in (parts, flavour, common):
            shutil.rmtree(folder)

    key = key_of(source.name, name, shared, Path(__file__))
    made = cached(f"ubuntu-headers-{kernel}-{key}", make)
    (own,) = made.glob(f"{name}_*.deb")
    (other,) = made.glob(f"{shared}_*.deb")
    return own, other


def _fill(parts: Path, flavour: Path, common: Path, kernel: str, shared: str) -> None:
    """Lay the trees of both packages out of what Debian's packages hold."""
    debian = next(path for path in (parts / "usr/src").glob("linux-headers-*-amd64"))
    old = debian.name.removeprefix("linux-headers-")
    (common / "usr/src").mkdir(parents=True)
    (debians,) = (parts / "usr/src").glob("linux-headers-*-common")
    run(["cp", "-a", debians, common / f"usr/src/{shared}"])
    tree = flavour / f"usr/src/linux-headers-{kernel}"
    tree.parent.mkdir(parents=True)
    run(["cp", "-a", debian, tree])
    (kbuild,) = (parts / "usr/lib").glob("linux-kbuild-*")
    for name in ("scripts", "tools"):
        for place in (tree, common / f"usr/src/{shared}"):
            (place / name).unlink()
            run(["cp", "-a", kbuild / name, place / name])
    # Debian's says which compiler; Ubuntu's tree has no such file.
    (tree / ".kernelvariables").unlink()
    (tree / "Makefile").write_text(f"include /usr/src/{shared}/Makefile\n")
    for name in ("include/generated/utsrelease.h", "include/config/kernel.release"):
        text = (tree / name).read_text()
        (tree / name).write_text(text.replace(old, kernel))
    for name in (".config", "include/config/auto.conf"):
        text = (tree / name).read_text()
        (tree / name).write_text(_CC_LINE.sub(rf"\g<1>{_CC}", text))
    link = flavour / f"lib/modules/{kernel}/build"
    link.parent.mkdir(parents=True)
    link.symlink_to(f"/usr/src/linux-headers-{kernel}")


def _pack(tree: Path, name: str, version: str, arch: str, depends: str, target: Path) -> None:
    """Make a package as Ubuntu's are: zstd inside."""
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        f"Package: {name}\nSource: linux-hwe-6.1\nVersion: {version}\nArchitecture: {arch}\n"
        f"Maintainer: A test <test@example.org>\nDepends: {depends}\nSection: devel\n"
        "Priority: optional\nDescription: headers of a kernel, made for tests\n"
    )
    run(["dpkg-deb", "-Zzstd", "-z1", "--root-owner-group", "--build", tree, target])
