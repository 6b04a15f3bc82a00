"""Kernels without packaged headers: a tree of the kernel's source, or of its own build.

These pure functions choose a tree's compiler and packages, and refuse a tree that can't serve its
kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from provision.distros.known import distro_named
from provision.distros.prepare_tree import (
    TreeError,
    check_symvers,
    compiler_of,
    parse_config,
)
from provision.errors import NotFoundError, ProvisionError
from provision.pin import names_of

# What the kernel's own build calls.
# Source: https://docs.kernel.org/process/changes.html, checked with Linux 6.1 to 6.12.
_FOR_SOURCE = ("bc", "bison", "flex", "libelf-dev", "libssl-dev")
# What a prepared tree's own programs are linked with: objtool, sign-file.
_FOR_PREPARED = ("libelf-dev", "libssl-dev")
_ALWAYS = ("libc6-dev",)
# The kernel's build names the type information of modules after the tool that makes it.
_BTF = "CONFIG_DEBUG_INFO_BTF"
_BTF_PACKAGE = "dwarves"
_FEDORA = re.compile(r"\.fc([1-9][0-9]+)(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What compiles in a tree."""

    # What the kernel's configuration says of the compiler that built it; None: the compiler is no
    # package.
    cc_version_text: str | None
    # Further packages, by Debian's names.
    packages: tuple[str, ...]
    llvm: str | None = None


def release_address(distro_id: str, version: str, architecture: str, *, mirror: str | None) -> str:
    """Return the address of the folder with the files of a distro's release.

    Args:
        mirror: Another server, which has the release below its version; None: the distro's own.
    """
    if mirror is not None:
        return f"{mirror.rstrip('/')}/{version}"
    distro = distro_named(distro_id)
    places = (
        [place for archive in distro.archives for place in archive.repositories] if distro else []
    )
    if not places:
        raise NotFoundError(
            f"It is not known where '{distro_id}' publishes the files of its kernels.",
            resolution="Name the tree under [[trees]] in /etc/provision/provision.toml.",
        )
    return places[0].format(version=version, arch=names_of(architecture).go)


def read_config(text: str, *, name: str) -> Mapping[str, str]:
    """Return the options of a kernel's configuration."""
    options = parse_config(text)
    if not any(option in options for option in ("CONFIG_64BIT", "CONFIG_MODULES", "CONFIG_SMP")):
        raise ProvisionError(
            f"'{name}' is not the configuration of a kernel.",
            resolution="Name the right file as 'config' of [[trees]] in"
            " /etc/provision/provision.toml. A kernel with CONFIG_IKCONFIG_PROC says its own:"
            " zcat /proc/config.gz",
        )
    return options


def require_symvers(config: Mapping[str, str], kernel: str, *, has_symvers: bool) -> None:
    """Refuse a kernel with modversions whose Module.symvers is not there."""
    try:
        check_symvers(config, has_symvers=has_symvers, kernel=kernel)
    except TreeError as error:
        raise NotFoundError(
            f"The kernel {kernel} has modversions (CONFIG_MODVERSIONS=y), and its Module.symvers is"
            " not there: the modules would hold no CRCs, and the kernel would refuse them.",
            resolution="The build of this kernel writes it. Distros ship it as"
            f" /boot/symvers-{kernel}.gz or in their headers; who builds a kernel finds it in the"
            " folder of the build: cp Module.symvers /etc/provision/. Name it as 'symvers' of"
            " [[trees]] in /etc/provision/provision.toml.",
        ) from error


def compiler_package(config: Mapping[str, str], kernel: str) -> Toolchain:
    """Return what compiles as the kernel was compiled, from a distro's packages."""
    compiler = compiler_of(config)
    if compiler is None:
        raise NotFoundError(
            f"The configuration of the kernel {kernel} does not say which compiler built it"
            " (CONFIG_CC_VERSION_TEXT).",
            resolution="Take the configuration that the kernel was built with, as it lies in"
            " /proc/config.gz or in the build's folder; Linux has that option since 4.18.",
        )
    text = config["CONFIG_CC_VERSION_TEXT"].strip('"')
    if compiler.name == "clang":
        more = (f"lld-{compiler.major}", f"llvm-{compiler.major}")
        return Toolchain(text, more, llvm=f"-{compiler.major}")
    return Toolchain(text, ())


def compiler_beside(config: Mapping[str, str] | None) -> Toolchain:
    """Return what compiles where that is no package: the build compares its major version."""
    compiler = None if config is None else compiler_of(config)
    return Toolchain(None, (), llvm="1" if compiler and compiler.name == "clang" else None)


def build_packages(kind: str, config: Mapping[str, str]) -> tuple[str, ...]:
    """Return names of the packages that a tree takes besides the compiler."""
    if kind != "source":
        return (*_ALWAYS, *_FOR_PREPARED)
    more = (_BTF_PACKAGE,) if config.get(_BTF) == "y" else ()
    return (*_ALWAYS, *_FOR_SOURCE, *more)


def fedora_of_kernel(kernel: str) -> str | None:
    """Return the release of Fedora that a kernel was built in (``fedora:42``); None for others.

    The deployment that boots next may be of another release than the one that runs: what counts is
    the ``fcN`` in the kernel's name.

    Source: https://docs.fedoraproject.org/en-US/packaging-guidelines/DistTag/
    """
    match = _FEDORA.search(kernel)
    return f"fedora:{match[1]}" if match else None
