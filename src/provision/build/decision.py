"""Decides every input of a build."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, get_args

from pydantic import ValidationError

from provision.build.compatibility import (
    BuildTarget,
    KernelRequest,
    buildable_kernels,
    choices,
    elsewhere,
    known_ranges,
    looked_in,
    recipe_digest,
    suitable_versions,
)
from provision.catalogue import Entry, Recipe
from provision.catalogue.upstream import CHANNELS
from provision.distros import source_names
from provision.distros.debian import ArchiveIndex
from provision.distros.debian.distro_archive import require_headers
from provision.documents import mistakes_of, refusing
from provision.errors import NotFoundError, UsageError
from provision.pin import (
    Architecture,
    BasePin,
    ClosurePackage,
    DriverPin,
    FilePin,
    KernelPin,
    PackagePin,
    Pin,
)
from provision.sources import (
    Market,
    Offer,
    PublishedSum,
    kind_of,
    no_published_sum,
    offers,
    pin_offer,
    tools_of,
    unlisted,
)

# A version, and not only a branch.
_WHOLE = re.compile(r"[0-9]+(\.[0-9]+)+")


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
class SolvedPackages:
    """The packages that a Pin names; none where its base image has everything."""

    compiler: PackagePin | None = None
    headers: tuple[PackagePin, ...] = ()
    tools: tuple[PackagePin, ...] = ()
    packages: tuple[ClosurePackage, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything but the base image and the packages, for which an engine is needed.

    Attributes:
        pin: Makes a Pin from these two.
        tools: Packages that the build needs besides those of every build, by Debian's names.
        urls: Addresses of the packages that are the driver's source, by sha256.
    """

    pin: Callable[[BasePin, Solved], Pin]
    tools: tuple[str, ...] = ()
    urls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def decide(
    request: KernelRequest,
    target: BuildTarget,
    *,
    index: ArchiveIndex | None,
    is_complete: bool = True,
    published_sum: PublishedSum = no_published_sum,
) -> Decision:
    """Decide everything but the base image and the packages, for which a distro's solver runs.

    What does not exist is refused with that reason, with or without an engine.

    Args:
        request: What is wanted.
        target: The driver, and what it is built for and with.
        index: The archive of the distro, with the components that the recipe names; None: it has
            none of Debian's kind.
        is_complete: Whether the index has every kernel that the solver may find.
        published_sum: Asks for the sha256 that a vendor publishes of a file, or knows it.

    Raises:
        NotFoundError: An unknown version, flavour or kernel, or one that the driver is not known
            to build on; or its source is not packaged, or another distro's.
        UsageError: The kernel's name is not valid.
    """
    entry, distro, tree = target.entry, target.distro, target.tree
    recipe = entry.recipe
    flavour = chosen_flavour(recipe, request.flavour)
    kernel = _kernel(request)
    if index is not None and is_complete and tree is None:
        require_headers(index, request.kernel)
    market = Market(
        f"{distro.id} {distro.version}",
        source_names(distro),
        index,
        request.architecture,
        published_sum,
        request.published,
    )
    offer = _offer(recipe, flavour, request, market)
    version = offer.version
    _check_kernel(recipe, version, request, index)
    pinned = pin_offer(recipe.name, offer, market)
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
            sources=pinned.sources,
            patches=_patches(entry, offer),
            recipe=recipe_digest(recipe, offer.variant),
            template=target.templates.digest,
            tree=tree.pin if tree else None,
        )

    return Decision(pin, tools_of(offer.variant), pinned.urls)


def decide_in_image(
    request: KernelRequest, target: BuildTarget, *, published_sum: PublishedSum = no_published_sum
) -> Callable[[BasePin], Pin]:
    """Decide everything but a base image that has the compiler and all tools.

    Args:
        request: What is wanted.
        target: The driver, whose source is not a package, because no archive belongs to the image;
            and the kernel's tree and distro.
        published_sum: As in ``decide``.

    Raises:
        NotFoundError: An unknown version or flavour, a kernel that the driver is not known to
            build on, or a driver whose source is packages.
        UsageError: The kernel's name is not valid.
    """
    recipe, distro = target.entry.recipe, target.distro
    serving = [source for source in recipe.sources if source.fits(source_names(distro))]
    if serving and all(source.is_packaged for source in serving):
        raise NotFoundError(
            f"The source of '{recipe.name}' is packages of Debian, and the base image that builds"
            f" for {distro.id}:{distro.version} has no archive of Debian.",
            resolution="Have Debian's packages compile, with the kernel's tree: under [[trees]] in"
            ' /etc/provision/provision.toml, set kernels, path and toolchain = "debian:12".',
        )
    decision = decide(request, target, index=None, published_sum=published_sum)
    return lambda base: decision.pin(base, SolvedPackages())


def _patches(entry: Entry, offer: Offer) -> tuple[FilePin, ...]:
    variant = offer.variant
    return tuple(
        FilePin(name=patch.file, sha256=entry.patch_sha256(patch.file))
        for patch in entry.recipe.patches
        if patch.applies_to(version=offer.version, flavour=variant.flavour, source=variant.label)
    )


def chosen_flavour(recipe: Recipe, name: str | None) -> str:
    """Return the flavour that is asked for: None stands for the default.

    Raises:
        NotFoundError: The recipe has none of that name.
    """
    if name is None:
        return recipe.default_flavour
    if name not in recipe.flavours:
        raise NotFoundError(
            f"'{recipe.name}' has no flavour '{name}'.", resolution=choices(name, recipe.flavours)
        )
    return name


def _kernel(request: KernelRequest) -> KernelPin:
    try:
        return KernelPin.model_validate(
            {"release": request.kernel, "architecture": request.architecture}
        )
    except ValidationError as error:
        known: tuple[str, ...] = get_args(Architecture)
        if request.architecture not in known:
            raise NotFoundError(
                f"The architecture '{request.architecture}' is not supported.",
                resolution=f"There are {', '.join(known)}.",
            ) from error
        raise UsageError(
            f"'{request.kernel}' is no kernel release.",
            resolution="Give it as 'uname -r' prints it, such as 6.1.0-47-amd64.",
            details="\n".join(str(mistake) for mistake in mistakes_of(error)),
        ) from error


def _offer(recipe: Recipe, flavour: str, request: KernelRequest, market: Market) -> Offer:
    """Return the version asked for, or the first of those that fits the kernel, or the first.

    Of each source the newest comes first; a recipe's first source that serves the distro goes
    before the others.
    """
    offered = {offer.version: offer for offer in offers(recipe, flavour, market)}
    wanted, prefer = request.version.name, request.version.prefer
    candidates, fitting = suitable_versions(recipe, list(offered), request)
    if not candidates and wanted is not None and _WHOLE.fullmatch(wanted):
        asked = unlisted(recipe, flavour, wanted, market)
        if asked is not None:
            offered[wanted] = asked
            candidates = fitting = [wanted]
    if not candidates and not offered and (wanted is None or market.index is None):
        raise _nothing_offered(recipe, flavour, market)
    if not candidates:
        raise NotFoundError(
            f"'{recipe.name}' ({flavour}) has no version {wanted} for {market.distro}.",
            resolution=_offers(request, list(offered)),
            details=elsewhere(recipe, flavour, wanted or "", market),
        )
    chosen = prefer if prefer in fitting else (fitting or candidates)[0]
    return offered[chosen]


def _offers(request: KernelRequest, offered: Sequence[str]) -> str:
    """Say what there is instead of what was asked for."""
    version = request.version
    if version.branches is None:
        return choices(version.name or "", offered, also=CHANNELS)
    kinds = ", ".join(version.branches) or "none that are known"
    return f"Branches of this kind: {kinds}. {choices('', offered)}"


def _nothing_offered(recipe: Recipe, flavour: str, market: Market) -> NotFoundError:
    variants = list(recipe.variants(market.names, flavour))
    reasons = [kind_of(v.source).absence(v, market.index) for v in variants]
    if not variants:
        served = {
            pattern
            for variant in recipe.variants(None, flavour)
            for pattern in variant.source.distros
        }
        reasons = [f"its sources serve {', '.join(sorted(served))}"]
    if market.index is None:
        resolution: str | None = (
            "Take a driver whose source is an archive ('provision drivers' says which"
            " kind each has), or add such a source to a driver.toml of your own (--catalogue)."
        )
    else:
        resolution = _other_flavours(recipe, flavour, market)
    return NotFoundError(
        f"'{recipe.name}' ({flavour}) is not offered for {market.distro}: {'; '.join(reasons)}.",
        resolution=resolution,
        details=looked_in(recipe, flavour, market),
    )


def _other_flavours(recipe: Recipe, flavour: str, market: Market) -> str | None:
    others = [f for f in recipe.flavours if f != flavour and offers(recipe, f, market)]
    return f"Take another flavour (--flavour): {', '.join(others)}." if others else None


def _check_kernel(
    recipe: Recipe, version: str, request: KernelRequest, index: ArchiveIndex | None
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
