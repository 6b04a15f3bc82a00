"""Which kernels are built for in a kernel tree, and where that tree comes from."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from provision.config import TreeConfig
from provision.distros import find_distro
from provision.distros.debian.distro_archive import uses_archive
from provision.errors import NotFoundError, UsageError
from provision.host.facts import read_facts
from provision.pin import DistroPin, TreePin
from provision.pipeline.trees import Tree, configured_tree, have_cos_tree, have_tree
from provision.pipeline.workspace import Settings
from provision.progress import Progress, silent

_IMAGE = "image"
_FLATCAR = "flatcar"
_COS = "cos"
# Where Flatcar has what its kernel's build left, on hosts since the first release with Linux 6.
_FLATCAR_TREE = "/usr/lib/modules/{kernel}/build"
# Prepared by Debian's tools: COS's own folders hold a compiler, and nothing else.
_COS_TOOLCHAIN = "debian:12"


@dataclass(frozen=True, slots=True)
class TreeChoice:
    """A kernel that is built for in a tree.

    Attributes:
        distro: The distro that the kernel comes from.
        tree: Where the tree is; None: among COS's files for its ``build_id``.
        toolchain: The distro whose packages compile; None: everything is in the base image.
        image: The base image that has everything, unless another is named; None: that of the
            toolchain, or one that has to be named.
        build_id: Of the distro's image, as os-release has it.
    """

    distro: DistroPin
    tree: TreeConfig | None
    toolchain: DistroPin | None
    image: str | None = None
    build_id: str = ""


def choose_tree(settings: Settings, kernel: str, name: str | None) -> TreeChoice | None:
    """Return how a kernel is built for in a tree; None: its headers are packages.

    Args:
        settings: The host.
        kernel: The kernel's release.
        name: The distro that was named, such as ``flatcar:3227.2.4``; None: the host's, or
            what provision.toml says.

    Raises:
        NotFoundError: The toolchain that [[trees]] names is unknown.
        UsageError: A distro with trees needs its version.
    """
    named = name or settings.config.kernel_distro
    distro, build_id = _distro(settings, named)
    configured = configured_tree(settings, kernel)
    if configured is not None:
        if configured.toolchain == _IMAGE:
            return TreeChoice(distro, configured, None, image=_developer(distro))
        return TreeChoice(distro, configured, _toolchain(configured.toolchain))
    if distro.id == _FLATCAR:
        tree = (
            TreeConfig(kernels="*", kind="prepared", path=_FLATCAR_TREE, toolchain=_IMAGE)
            if named is None
            else TreeConfig(kernels="*", kind="image", toolchain=_IMAGE)
        )
        return TreeChoice(distro, tree, None, image=_developer(distro))
    if distro.id == _COS:
        return TreeChoice(distro, None, find_distro(_COS_TOOLCHAIN), build_id=build_id)
    return None


def _toolchain(name: str) -> DistroPin:
    """Return the distro whose packages compile.

    Raises:
        NotFoundError: It is unknown, or its packages are not apt's.
    """
    distro = find_distro(name)
    if not uses_archive(distro):
        raise NotFoundError(
            f"Packages of '{name}' can't compile in a kernel tree yet: only those of Debian and"
            " Ubuntu can.",
            resolution="Name such a distro under [[trees]] in /etc/provision/provision.toml:"
            ' toolchain = "debian:12", or an image that has everything: toolchain = "image".',
        )
    return distro


def fetch_tree(
    settings: Settings,
    choice: TreeChoice,
    kernel: str,
    *,
    update: bool = False,
    progress: Progress = silent,
) -> Tree:
    """Have the files of a tree, and what the Pin says of it.

    Args:
        settings: The host.
        choice: Which tree.
        kernel: The kernel's release.
        update: Whether files are had again that are in the package store.
        progress: Receives what goes on.

    Raises:
        NotFoundError: Something of it is not there.
        ProvisionError: A download failed or is not what it should be.
    """
    if choice.tree is None:
        architecture = read_facts(settings.root).arch
        return have_cos_tree(
            settings, choice.build_id, architecture, update=update, progress=progress
        )
    if choice.tree.kind == "image":
        return Tree(TreePin(kind="image"))
    return have_tree(settings, choice.tree, kernel, update=update, progress=progress)


def _distro(settings: Settings, named: str | None) -> tuple[DistroPin, str]:
    """Return the kernel's distro, and the id of its image's build.

    Raises:
        NotFoundError: It has a name that no distro has.
        UsageError: It needs its version.
    """
    facts = read_facts(settings.root).distro
    if named is None:
        version = facts.version or "0"
        codename = facts.codename or facts.id
        return _pinned(f"{facts.id}:{version}", facts.id, version, codename), facts.build_id
    name, _, version = named.partition(":")
    if name not in {_FLATCAR, _COS}:
        # Whatever it is, the tree is what counts: a vendor's kernel on any distro.
        return _pinned(named, name, version or "0", name), ""
    if not version:
        raise UsageError(
            f"'{named}' lacks a version.",
            resolution=f"Give it as {name}:VERSION; os-release on such a host has it.",
        )
    return _pinned(named, name, version, name), version


def _pinned(text: str, name: str, version: str, codename: str) -> DistroPin:
    """Return a distro that there need be no data of.

    Raises:
        NotFoundError: A Pin can't have it, and it is not one that is known.
    """
    try:
        return DistroPin(id=name, version=version, codename=codename)
    except ValidationError:
        # Says what there is, and what may have been meant.
        return find_distro(text)


def _developer(distro: DistroPin) -> str | None:
    """Return the name of Flatcar's developer container as an image, as ``provision base`` makes.

    None: the distro has no such image, and one has to be named.
    """
    return f"flatcar-developer:{distro.version}" if distro.id == _FLATCAR else None


def no_image(distro: DistroPin) -> NotFoundError:
    """Return what to say where no image is named that has everything to build for a distro."""
    return NotFoundError(
        f"There is no image that has everything to build for {distro.id} {distro.version}.",
        resolution='Name the distro whose packages compile: toolchain = "debian:12" of'
        " [[trees]] in /etc/provision/provision.toml; or an image, with --base or there: [distros."
        f'{distro.id}] base_images = {{ "{distro.version}" = "NAME:TAG" }}.',
    )
