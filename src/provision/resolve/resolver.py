"""Decides every input of a build."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import ValidationError

from provision.archive import ArchiveIndex, IndexedPackage
from provision.catalogue import Entry
from provision.distros.apt_headers import require_headers
from provision.documents import mistakes_of, refusing
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.pin import (
    ArchiveSource,
    BasePin,
    ClosurePackage,
    DistroPin,
    DriverPin,
    FilePin,
    GitSource,
    KernelPin,
    PackagePin,
    PackageSource,
    Pin,
)
from provision.recipe import DebSource, Recipe
from provision.resolve.kernels import buildable_kernels, known_ranges, suitable_versions
from provision.resolve.recipe_digest import recipe_digest
from provision.resolve.request import KernelTree, Request
from provision.upstream import CHANNELS
from provision.versions import (
    driver_version,
    offered_versions,
    package_of_version,
)

Source = PackageSource | ArchiveSource | GitSource


class Solved(Protocol):
    """What a distro's solver decided: packages at their exact versions, and everything else."""

    @property
    def compiler(self) -> PackagePin | None:
        """The compiler that built the kernel; None: it is no package."""

    @property
    def headers(self) -> tuple[PackagePin, ...]:
        """The packages that hold the kernel's headers."""

    @property
    def tools(self) -> tuple[PackagePin, ...]:
        """Further build tools."""

    @property
    def packages(self) -> tuple[ClosurePackage, ...]:
        """Everything that is installed."""


@dataclass(frozen=True, slots=True)
class _Nothing:
    """Nothing is installed: the base image has everything."""

    compiler: PackagePin | None = None
    headers: tuple[PackagePin, ...] = ()
    tools: tuple[PackagePin, ...] = ()
    packages: tuple[ClosurePackage, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything but the base image and the packages, for which an engine is needed.

    Attributes:
        pin: Makes a Pin from these two.
        urls: Addresses of the packages that are the driver's source, by sha256.
    """

    pin: Callable[[BasePin, Solved], Pin]
    urls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def decide(
    request: Request,
    *,
    entry: Entry,
    distro: DistroPin,
    index: ArchiveIndex | None,
    template: str,
    is_complete: bool = True,
    tree: KernelTree | None = None,
) -> Decision:
    """Decide everything but the base image and the packages, for which a distro's solver runs.

    So whoever asks for something that does not exist is told so, with or without an engine.

    Args:
        request: What is wanted.
        entry: The driver.
        distro: What it is built for, and with.
        index: The archive of the distro, with the components that the recipe names; None: it has
            none of Debian's kind.
        template: Digest of the templates.
        is_complete: Whether the index has every kernel that the solver may find.
        tree: The kernel's tree, where its headers are no packages; the packages of ``distro``
            compile.

    Raises:
        NotFoundError: An unknown version, flavour or kernel, or one that the driver is not known
            to build on; or its source is not packaged, or another distro's.
        UsageError: The kernel's name is none.
    """
    recipe = entry.recipe
    flavour = _flavour(recipe, request.flavour)
    kernel = _kernel(request)
    if index is not None and is_complete and tree is None:
        require_headers(index, request.kernel)
    version = _version(recipe, flavour, request, index, f"{distro.id} {distro.version}")
    _check_kernel(recipe, version, request, index)
    debs = _packages(recipe, flavour, version, index)
    with refusing(f"The version {version} of '{recipe.name}' can't be pinned."):
        driver = DriverPin(name=recipe.name, version=version, flavour=flavour)

    def pin(base: BasePin, solved: Solved) -> Pin:
        return Pin(
            driver=driver,
            kernel=kernel,
            distro=tree.distro if tree else distro,
            base=base,
            compiler=solved.compiler,
            headers=solved.headers,
            packages=solved.tools,
            closure=solved.packages,
            sources=tuple(map(_deb, debs)) or _releases(recipe, version),
            patches=_patches(entry, version=version, flavour=flavour),
            recipe=recipe_digest(recipe, flavour),
            template=template,
            tree=tree.pin if tree else None,
        )

    return Decision(pin, {package.sha256: (package.url,) for package in debs})


def decide_in_image(
    request: Request, *, entry: Entry, template: str, tree: KernelTree
) -> Callable[[BasePin], Pin]:
    """Decide everything but a base image that has the compiler and all tools.

    Args:
        request: What is wanted.
        entry: The driver; its source is no package, because no archive belongs to the image.
        template: Digest of the templates.
        tree: The kernel's tree.

    Raises:
        NotFoundError: An unknown version or flavour, a kernel that the driver is not known to
            build on, or a driver whose source is packages.
        UsageError: The kernel's name is none.
    """
    recipe = entry.recipe
    if isinstance(recipe.source, DebSource):
        raise NotFoundError(
            f"The source of '{recipe.name}' is packages of Debian, and the base image that builds"
            f" for {tree.distro.id}:{tree.distro.version} has no archive of Debian.",
            resolution="Have Debian's packages compile, with the kernel's tree: under [[trees]] in"
            ' /etc/provision/provision.toml, set kernels, path and toolchain = "debian:12".',
        )
    decision = decide(
        request, entry=entry, distro=tree.distro, index=None, template=template, tree=tree
    )
    return lambda base: decision.pin(base, _Nothing())


def components_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the sections of the distro's archive that a recipe needs besides ``main``."""
    if not isinstance(recipe.source, DebSource):
        return ()
    return tuple(sorted(set(recipe.source.components) - {"main"}))


def _patches(entry: Entry, *, version: str, flavour: str) -> tuple[FilePin, ...]:
    return tuple(
        FilePin(name=patch.file, sha256=entry.patch_sha256(patch.file))
        for patch in entry.recipe.patches
        if patch.applies_to(version=version, flavour=flavour)
    )


def _flavour(recipe: Recipe, name: str | None) -> str:
    if name is None:
        return recipe.default_flavour
    if name not in recipe.flavours:
        raise NotFoundError(
            f"'{recipe.name}' has no flavour '{name}'.", resolution=_choices(name, recipe.flavours)
        )
    return name


def _kernel(request: Request) -> KernelPin:
    try:
        return KernelPin.model_validate(
            {"release": request.kernel, "architecture": request.architecture}
        )
    except ValidationError as error:
        raise UsageError(
            f"'{request.kernel}' ({request.architecture}) is no kernel release.",
            resolution="Give it as 'uname -r' prints it, such as 6.1.0-47-amd64.",
            details="\n".join(str(mistake) for mistake in mistakes_of(error)),
        ) from error


def _version(
    recipe: Recipe, flavour: str, request: Request, index: ArchiveIndex | None, distro: str
) -> str:
    """Return the version asked for, or the newest of those that fits the kernel, or the newest."""
    offered = offered_versions(recipe, flavour, index)
    if not offered and (request.version is None or index is None):
        raise _nothing_offered(recipe, flavour, index, distro)
    candidates, fitting = suitable_versions(recipe, offered, request)
    if not candidates:
        raise NotFoundError(
            f"'{recipe.name}' ({flavour}) has no version {request.version} for {distro}.",
            resolution=_offers(request, offered),
            details="\n".join(["looked in:", *(f"  {place}" for place in index.places)])
            if index is not None and isinstance(recipe.source, DebSource)
            else None,
        )
    return request.prefer if request.prefer in fitting else (fitting or candidates)[0]


def _offers(request: Request, offered: Sequence[str]) -> str:
    """Say what there is instead of what was asked for."""
    if request.branches is None:
        return _choices(request.version or "", offered, also=CHANNELS)
    kinds = ", ".join(request.branches) or "none that are known"
    return f"Branches of this kind: {kinds}. {_choices('', offered)}"


def _nothing_offered(
    recipe: Recipe, flavour: str, index: ArchiveIndex | None, distro: str
) -> NotFoundError:
    package = recipe.flavours[flavour].package
    if index is None:
        return NotFoundError(
            f"'{recipe.name}' ({flavour}) is not offered for {distro}: its source is the package"
            f" {package} of Debian's archive.",
            resolution="Take a driver whose source is an archive ('provision drivers' says which"
            " kind each has), or add such a source to a driver.toml of your own (--catalogue).",
        )
    return NotFoundError(
        f"'{recipe.name}' ({flavour}) is not offered for {distro}: there is no package {package}.",
        resolution=_other_flavours(recipe, flavour, index),
        details="\n".join(["looked in:", *(f"  {place}" for place in index.places)]),
    )


def _other_flavours(recipe: Recipe, flavour: str, index: ArchiveIndex) -> str | None:
    others = [f for f in recipe.flavours if f != flavour and offered_versions(recipe, f, index)]
    return f"Take another flavour (--flavour): {', '.join(others)}." if others else None


def _check_kernel(
    recipe: Recipe, version: str, request: Request, index: ArchiveIndex | None
) -> None:
    """Refuse a kernel that the recipe doesn't know, unless forced.

    Such a build fails after minutes, or worse: it succeeds and the module breaks the kernel.
    """
    if request.force or recipe.builds_on(version=version, kernel_release=request.kernel):
        return
    kernels = buildable_kernels(recipe, version, index, like=request.kernel) if index else []
    known = known_ranges(recipe, version)
    raise NotFoundError(
        f"'{recipe.name}' {version} is not known to build on the kernel {request.kernel}.",
        resolution="Take one of the packaged kernels that it builds on (--kernel), or try it all"
        " the same with --force."
        if kernels
        else "Try it all the same with --force, or another version of the driver.",
        details="\n".join(
            [
                *(f"driver.toml, {line}" for line in known or ["nothing about this version"]),
                *([_packaged(kernels)] if index else []),
            ]
        ),
    )


def _packaged(kernels: list[str]) -> str:
    return f"packaged kernels that it builds on: {', '.join(kernels) or 'none'}"


def _packages(
    recipe: Recipe, flavour: str, version: str, index: ArchiveIndex | None
) -> tuple[IndexedPackage, ...]:
    """Return the packages that hold the driver's source and user space, where these are packages.

    Raises:
        NotFoundError: One is missing, or of another version.
    """
    source = recipe.source
    if index is None or not isinstance(source, DebSource):
        return ()
    names = dict.fromkeys([str(recipe.flavours[flavour].package), *source.userspace])
    found = {name: package_of_version(index, name, version) for name in names}
    missing = [name for name, package in found.items() if package is None]
    if missing:
        raise _other_version(recipe, version, missing, index)
    found |= {name: index.package(name) for name in source.companions}
    missing = [name for name, package in found.items() if package is None]
    if missing:
        raise _missing(missing, index)
    return tuple(package for package in found.values() if package is not None)


def _releases(recipe: Recipe, version: str) -> tuple[Source, ...]:
    if isinstance(recipe.source, DebSource):
        return ()
    releases = recipe.source.releases
    return tuple(release.source() for release in releases if release.version == version)


def _deb(package: IndexedPackage) -> PackageSource:
    with refusing(f"The package {package.name} {package.version} can't be pinned."):
        return PackageSource(name=package.name, version=package.version, sha256=package.sha256)


def _other_version(
    recipe: Recipe, version: str, names: list[str], index: ArchiveIndex
) -> ProvisionError:
    """Return what to say about user space that is not of the modules' version."""
    absent = [name for name in names if index.package(name) is None]
    if absent:
        return _missing(absent, index)
    there = {
        name: ", ".join(driver_version(package) for package in index.versions(name))
        for name in names
    }
    return NotFoundError(
        f"The archive of {_distro(index)} has no user space of '{recipe.name}' {version}: modules"
        " and libraries must be of one version.",
        resolution="Take a version that all of them have (--version), or another flavour"
        " (--flavour).",
        details="\n".join(f"{name}: {versions}" for name, versions in there.items()),
    )


def _missing(names: list[str], index: ArchiveIndex) -> NotFoundError:
    return NotFoundError(
        f"The archive of {_distro(index)} has no package {', '.join(names)}"
        f" for {index.architecture}.",
        resolution="Check the name; if it is in another section of the archive, add that to"
        " 'components' in driver.toml.",
        details="\n".join(["looked in:", *(f"  {place}" for place in index.places)]),
    )


def _choices(wanted: str, there: Iterable[str], *, also: Iterable[str] = ()) -> str:
    names = list(there)
    close = difflib.get_close_matches(wanted, [*names, *also], n=1, cutoff=0.5)
    guess = f"Did you mean '{close[0]}'? " if close else ""
    return f"{guess}There are {', '.join(names) or 'none'}."


def _distro(index: ArchiveIndex) -> str:
    return f"{index.distro.id}:{index.distro.version}"
