"""Decides every input of a build."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, get_args

from pydantic import ValidationError

from provision.build.version_choice import (
    BuildTarget,
    KernelRequest,
    check_kernel,
    choose_offer,
    chosen_flavour,
)
from provision.catalogue import Entry, Recipe, RecipeSource, Variant
from provision.distros import source_names
from provision.distros.debian import ArchiveIndex
from provision.distros.debian.distro_archive import require_headers
from provision.documents import refusing
from provision.errors import NotFoundError, UsageError
from provision.manifest import HostNeeds
from provision.mistakes import mistakes_of
from provision.pin import (
    Architecture,
    BasePin,
    ClosurePackage,
    DriverPin,
    FilePin,
    KernelPin,
    PackagePin,
    Pin,
    Source,
)
from provision.sources import (
    Market,
    Offer,
    PublishedSum,
    no_published_sum,
    pin_offer,
    tools_of,
)


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
    """The packages that a Pin names; empty where its base image has everything."""

    compiler: PackagePin | None = None
    headers: tuple[PackagePin, ...] = ()
    tools: tuple[PackagePin, ...] = ()
    packages: tuple[ClosurePackage, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """All inputs of a build except the base image and the packages, which need an engine.

    Attributes:
        tools: Packages that the build needs besides those of every build, by Debian's names.
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
    """Decide all inputs except the base image and the packages, which a distro's solver decides.

    What does not exist is refused with that reason, with or without an engine.

    Args:
        index: The archive of the distro, with the components that the recipe names; None: it has no
            archive of Debian's kind.
        is_complete: Whether the index has every kernel that the solver may find.
    """
    recipe = target.entry.recipe
    flavour = chosen_flavour(recipe, request.flavour)
    kernel = _kernel(request)
    market = Market(
        f"{target.distro.id} {target.distro.version}",
        source_names(target.distro),
        index,
        request.architecture,
        published_sum,
        request.published,
    )
    offer = choose_offer(recipe, flavour, request, market)
    # Else the solver finds out as soon as apt would.
    if index is not None and index.is_read and is_complete:
        require_headers(index, request.kernel)
    check_kernel(recipe, offer.version, request, index)
    pinned = pin_offer(recipe.name, offer, market)
    pin = _pin_maker(target, kernel, offer, pinned.sources)
    return Decision(pin, tools_of(offer.variant), pinned.urls)


def _pin_maker(
    target: BuildTarget, kernel: KernelPin, offer: Offer, sources: tuple[Source, ...]
) -> Callable[[BasePin, Solved], Pin]:
    recipe, tree = target.entry.recipe, target.tree
    with refusing(f"The version {offer.version} of '{recipe.name}' can't be pinned."):
        driver = DriverPin(name=recipe.name, version=offer.version, flavour=offer.variant.flavour)

    def pin(base: BasePin, solved: Solved) -> Pin:
        return Pin(
            driver=driver,
            kernel=kernel,
            distro=tree.distro if tree else target.distro,
            base=base,
            compiler=solved.compiler,
            headers=solved.headers,
            packages=solved.tools,
            closure=solved.packages,
            sources=sources,
            patches=_patches(target.entry, offer),
            recipe=recipe_digest(recipe, offer.variant),
            template=target.templates.digest,
            tree=tree.pin if tree else None,
        )

    return pin


def decide_in_image(
    request: KernelRequest, target: BuildTarget, *, published_sum: PublishedSum = no_published_sum
) -> Callable[[BasePin], Pin]:
    """Decide all inputs except a base image that has the compiler and all tools.

    Args:
        target: The driver, with the kernel's tree and distro. Its source is not a package, because
            the image has no archive.
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


def recipe_digest(recipe: Recipe, variant: Variant[RecipeSource]) -> str:
    """Return the sha256 of the parts of a recipe that reach the artifact of a variant.

    The other parts have a field of their own in the Pin (source, patches, packages), or no effect
    on the modules and files (the summary, the known kernels, other flavours and sources).
    """
    parts: dict[str, Any] = {
        "build": variant.build.model_dump(mode="json", exclude={"package"}),
        "licences": list(variant.licences),
        "package": variant.package,
        "files": [file.model_dump(mode="json", by_alias=True) for file in variant.files],
        "container": variant.container.model_dump(mode="json", exclude_none=True),
    }
    # Left out where it is empty, so that the Pins of other drivers stay as they were.
    if recipe.host != HostNeeds():
        parts["host"] = recipe.host.model_dump(mode="json")
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
