"""What a person or the agent asks for: a driver for a kernel, and what that kernel is built in.

A ``DriverRequest`` may leave everything but the driver open. With what the host and the driver's
vendor say, it becomes a ``VersionRequest``, from which a build is decided, or an ``ArtifactQuery``,
with which registries and the store are searched. A ``TreeChoice`` is a kernel whose headers are not
packages. This module loads nothing that builds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from pydantic import ValidationError

from provision.build.workspace import Settings
from provision.catalogue.fields import DEFAULT_VERSION, NEWEST_WITHOUT_KINDS, is_of
from provision.catalogue.suitability import Card
from provision.config import TreeConfig
from provision.distros.distro import distro_on, find_distro, uses_archive
from provision.errors import NotFoundError, UsageError
from provision.pin import DistroPin

_IMAGE = "image"
# Source: https://docs.fedoraproject.org/en-US/packaging-guidelines/DistTag/
_FEDORA = re.compile(r"\.fc([1-9][0-9]+)(?=\.|$)")
_FLATCAR = "flatcar"
_COS = "cos"
# Flatcar's hosts have the build folder of their kernel here, since the first release with Linux 6.
_FLATCAR_TREE = "/usr/lib/modules/{kernel}/build"
# Debian's tools prepare the tree, because COS publishes only a compiler.
_COS_TOOLCHAIN = "debian:12"


class VersionRequest(NamedTuple):
    """The version of a driver that is asked for."""

    # A version; or a branch (``535``, ``0.12``), which stands for its newest version; or a kind of
    # branch (``lts``); None: the newest version of all.
    name: str | None = None
    # The branches that are of the kind that ``name`` names, in the order of preference; None: it
    # names none.
    branches: tuple[str, ...] | None = None
    # A version to stay with, as long as it is there and fits.
    prefer: str | None = None
    # Those of ``branches`` that their vendor no longer supports.
    ended: frozenset[str] = frozenset()
    # What the version has to serve, unless it is named as a whole.
    cards: tuple[Card, ...] = ()
    # All branches that are known, where a version of an unknown one is accepted too, after those of
    # ``branches`` that are supported; None: it is not.
    known: frozenset[str] | None = None
    # The versions whose files the vendor has, for a source that takes any version.
    published: tuple[str, ...] = ()

    @property
    def exact(self) -> str | None:
        """The name, where it may be a whole version; None without one, or for a kind."""
        return self.name if self.branches is None else None

    def branch_of(self, version: str) -> str | None:
        """Return the branch of the named kind that a version belongs to; None: it has none."""
        return next((branch for branch in self.branches or () if is_of(version, branch)), None)

    def accepts(self, version: str) -> bool:
        """Return whether a version is one of those that are asked for."""
        return any(True for _ in self.accepted((version,)))

    def accepted(self, versions: Iterable[str]) -> list[str]:
        """Return the versions that are asked for, by branch, else in the order in which they come.

        The version to stay with has no say in that.
        """
        there = [
            v for v in versions if v == self.name or all(c.takes_version(v) for c in self.cards)
        ]
        if self.name is None:
            return there
        branches = (self.name,) if self.branches is None else self.branches
        ranks: dict[str, tuple[bool, int]] = {}
        for version in there:
            mine = next((n for n, branch in enumerate(branches) if is_of(version, branch)), None)
            if mine is not None:
                ranks[version] = branches[mine] in self.ended, mine
            elif self.known is not None and not any(is_of(version, one) for one in self.known):
                ranks[version] = False, len(branches)
        return sorted(ranks, key=ranks.__getitem__)


def is_whole(name: str) -> bool:
    """Return whether a name may be a version, and not only a branch."""
    return re.fullmatch(r"[0-9]+(\.[0-9]+)+", name) is not None


@dataclass(frozen=True, slots=True)
class DriverRequest:
    """A request for a driver, on a kernel of some host."""

    driver: str
    _: KW_ONLY
    kernel: str | None = None
    distro: str | None = None
    # The driver's version, a branch of it, a kind of branch (``lts``), or ``latest`` for the newest
    # that suits the kernel; None: that of provision.toml's default.
    version: str | None = None
    flavour: str | None = None
    base: str | None = None
    # Whether to try a kernel on which the driver is known to fail, or that a policy refuses.
    force: bool = False
    # Whether to solve for packages again although the store has a closure.
    refresh: bool = False
    # A version to stay with, as long as it is there and fits.
    prefer: str | None = None

    @property
    def version_name(self) -> str | None:
        """The version, branch or kind of branch; None: ``latest``, the newest."""
        name = self.version or DEFAULT_VERSION
        return None if name == "latest" else name

    def version_request(
        self, branches: tuple[str, ...] | None, ended: frozenset[str] = frozenset()
    ) -> VersionRequest:
        """Return the request for a version.

        Args:
            branches: Those of the kind that it names.
            ended: Branches that their vendor no longer supports.
        """
        name = self.version_name
        # The default of a driver without kinds of branches is its newest version.
        has_no_kinds = name in NEWEST_WITHOUT_KINDS and branches is None
        named = None if has_no_kinds else name
        return VersionRequest(named, branches, self.prefer, ended)


def own_kernel(settings: Settings) -> str:
    """Return the kernel of the host."""
    if settings.facts.kernel is None:
        raise NotFoundError(
            f"There is no kernel under '{settings.root}'.",
            resolution="Name the one to build for with --kernel.",
        )
    return settings.facts.kernel


def choose_distro(settings: Settings, name: str | None) -> DistroPin:
    """Return the distro of a name, else that of provision.toml, else the host's."""
    named = name or settings.config.kernel_distro
    return find_distro(named or _hosts_distro(settings, settings.facts.kernel or ""))


def packaged_distro(settings: Settings, name: str | None, kernel: str) -> str:
    """Return the distro that a kernel's headers come from.

    On Fedora, CoreOS included, that is the release that the kernel's name says.
    """
    named = name or settings.config.kernel_distro
    if named is None and settings.facts.distro.id == "fedora":
        # The deployment that boots next may be of another release than the one that runs.
        match = _FEDORA.search(kernel)
        named = f"fedora:{match[1]}" if match else None
    return named or _hosts_distro(settings, kernel)


def _hosts_distro(settings: Settings, kernel: str) -> str:
    """Return the host's own distro.

    Hosts of Proxmox VE say that they are Debian: their kernels' names tell them apart.
    """
    facts = settings.facts.distro
    own = f"{facts.id}:{facts.version}"
    return distro_on(facts.id, facts.version or "", kernel) or own


def distro_of_kernel(settings: Settings, kernel: str, name: str | None) -> DistroPin:
    """Return the distro that a Pin for a kernel names."""
    choice = choose_tree(settings, kernel, name)
    if choice is not None:
        return choice.distro
    return choose_distro(settings, packaged_distro(settings, name, kernel))


class TreeChoice(NamedTuple):
    """The tree in which modules for a kernel are built."""

    distro: DistroPin
    # The place of the tree; None: COS's files for the ``build_id``.
    tree: TreeConfig | None
    toolchain: DistroPin | None
    build_id: str = ""


def choose_tree(settings: Settings, kernel: str, name: str | None) -> TreeChoice | None:
    """Return the tree in which modules for a kernel are built; None: its headers are packages."""
    named = name or settings.config.kernel_distro
    distro, build_id = _distro(settings, named)
    configured = settings.config.tree_of(kernel)
    if configured is not None:
        if configured.toolchain == _IMAGE:
            return TreeChoice(distro, configured, None)
        return TreeChoice(distro, configured, _compiling_distro(configured.toolchain))
    if distro.id == _FLATCAR:
        tree = (
            TreeConfig(kernels="*", kind="prepared", path=_FLATCAR_TREE, toolchain=_IMAGE)
            if named is None
            else TreeConfig(kernels="*", kind="image", toolchain=_IMAGE)
        )
        return TreeChoice(distro, tree, None)
    if distro.id == _COS:
        return TreeChoice(distro, None, find_distro(_COS_TOOLCHAIN), build_id=build_id)
    return None


def _compiling_distro(name: str) -> DistroPin:
    distro = find_distro(name)
    if not uses_archive(distro):
        raise NotFoundError(
            f"Packages of '{name}' can't compile in a kernel tree yet: only those of Debian and"
            " Ubuntu can.",
            resolution="Name such a distro under [[trees]] in /etc/provision/provision.toml:"
            ' toolchain = "debian:12", or an image that has everything: toolchain = "image".',
        )
    return distro


def _distro(settings: Settings, named: str | None) -> tuple[DistroPin, str]:
    facts = settings.facts.distro
    if named is None:
        version = facts.version or "0"
        codename = facts.codename or facts.id
        return _pinned(f"{facts.id}:{version}", facts.id, version, codename), facts.build_id
    name, _, version = named.partition(":")
    if name not in {_FLATCAR, _COS}:
        # Any distro will do, because only the tree counts: a vendor's kernel on any distro.
        return _pinned(named, name, version or "0", name), ""
    if not version:
        raise UsageError(
            f"'{named}' lacks a version.",
            resolution=f"Give it as {name}:VERSION; os-release on such a host has it.",
        )
    return _pinned(named, name, version, name), version


def _pinned(text: str, name: str, version: str, codename: str) -> DistroPin:
    try:
        return DistroPin(id=name, version=version, codename=codename)
    except ValidationError:
        # Its error lists the known distros, and the one that was probably meant.
        return find_distro(text)


def developer_image(distro: DistroPin) -> str | None:
    """Return the name of the image that is made of Flatcar's developer container.

    None: the distro has no such image, so one has to be named.
    """
    return f"flatcar-developer:{distro.version}" if distro.id == _FLATCAR else None
