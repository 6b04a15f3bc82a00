"""What a build is decided from, and which versions and kernels of a driver go together."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.build.templates import Templates
from provision.catalogue import Entry, Recipe, RecipeSource, Variant, version_matches
from provision.distros.debian import ArchiveIndex
from provision.distros.debian.distro_archive import packaged_kernels
from provision.distros.kernel_tree import Toolchain
from provision.manifest import HostNeeds
from provision.pin import DistroPin, TreePin
from provision.sources import Market, kind_of, offers
from provision.sources.version_request import VersionRequest, is_of


def recipe_digest(recipe: Recipe, variant: Variant[RecipeSource]) -> str:
    """Return the sha256 of the parts of a recipe that reach the artifact of a variant.

    What is left out has its own place in the Pin (source, patches, packages) or no effect on the
    modules and files: the summary, the known kernels, the other flavours and sources.
    """
    parts: dict[str, Any] = {
        "build": variant.build.model_dump(mode="json", exclude={"package"}),
        "licences": list(variant.licences),
        "package": variant.package,
        "files": [file.model_dump(mode="json", by_alias=True) for file in variant.files],
        "container": variant.container.model_dump(mode="json", exclude_none=True),
    }
    # Said only where there is something to say: the Pins of drivers without it stay as they were.
    if recipe.host != HostNeeds():
        parts["host"] = recipe.host.model_dump(mode="json")
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """What a build of a ``BuildTarget`` is decided from: a kernel, and a version that fits it.

    It follows from a ``DriverRequest``; what that leaves open is filled in, from the host and from
    what the driver's vendor offers.

    Attributes:
        kernel: The kernel's release, as ``uname -r`` prints it.
        architecture: The kernel's architecture, as ``uname -m`` prints it.
        version: The driver's version; of several, the newest that fits the kernel.
        published: Versions whose files the vendor has, for sources that take any version.
        flavour: One of the recipe's flavours; None: its default.
        force: Whether to go on where the recipe doesn't know the kernel.
    """

    kernel: str
    architecture: str
    version: VersionRequest = field(default_factory=VersionRequest)
    published: tuple[str, ...] = ()
    flavour: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class KernelTree:
    """A kernel tree in place of packages with headers.

    Attributes:
        pin: What the Pin says of it.
        distro: The distro that the kernel comes from.
        toolchain: What compiles in it.
    """

    pin: TreePin
    distro: DistroPin
    toolchain: Toolchain


@dataclass(frozen=True, slots=True)
class BuildTarget:
    """A driver, and what it is built for and with.

    Attributes:
        entry: The driver.
        distro: The distro whose packages compile, or the kernel's own where a base image has
            everything.
        templates: What the Dockerfile is rendered from.
        tree: The kernel's tree, where its headers are not packages.
    """

    entry: Entry
    distro: DistroPin
    templates: Templates
    tree: KernelTree | None = None


def suitable_versions(
    recipe: Recipe, offered: Sequence[str], request: KernelRequest
) -> tuple[list[str], list[str]]:
    """Return the offered versions that a request accepts, the best first.

    Args:
        recipe: The driver's recipe.
        offered: The versions that can be built, the newest first.
        request: What is wanted.

    Returns:
        All of them, and those of them that are known to build on the kernel.
    """
    exact = request.version.exact
    if exact is not None and exact in offered:
        # A version that is named is taken; whether it fits is checked afterwards.
        return [exact], [exact]
    found = request.version.accepted(offered)
    return found, [v for v in found if recipe.builds_on(version=v, kernel_release=request.kernel)]


def buildable_kernels(
    recipe: Recipe, version: str, index: ArchiveIndex, *, like: str | None = None
) -> list[str]:
    """Return the packaged kernels that a driver version is known to build on, newest first."""
    return [
        kernel
        for kernel in packaged_kernels(index, like=like)
        if recipe.builds_on(version=version, kernel_release=kernel)
    ]


def elsewhere(recipe: Recipe, flavour: str, version: str, market: Market) -> str | None:
    """Return where else a version or branch is offered, or was looked for, a line each."""
    lines = [
        f"the flavour '{other}' has it for {market.distro} (--flavour)"
        for other in recipe.flavours
        if other != flavour
        and any(is_of(offer.version, version) for offer in offers(recipe, other, market))
    ]
    for variant in recipe.variants(None, flavour):
        source = variant.source
        listed = kind_of(source).versions(variant, None)
        if not source.fits(market.names) and any(is_of(one, version) for one in listed):
            served = ", ".join(source.distros)
            lines.append(f"the source '{variant.label}' has it, for {served} only")
    places = looked_in(recipe, flavour, market)
    return "\n".join([*lines, *([places] if places else [])]) or None


def known_ranges(recipe: Recipe, version: str | None) -> list[str]:
    """Return what a recipe says about kernels, a line each; of one version only, or of all."""
    return [
        f"{row.versions or 'any version'}: kernels {row.kernels}"
        for row in recipe.kernels
        if version is None or version_matches(version, row.versions)
    ]


def choices(wanted: str, there: Iterable[str], *, also: Iterable[str] = ()) -> str:
    """Say what there is, and which of that may have been meant."""
    names = list(there)
    close = difflib.get_close_matches(wanted, [*names, *also], n=1, cutoff=0.5)
    guess = f"Did you mean '{close[0]}'? " if close else ""
    return f"{guess}There are {', '.join(names) or 'none'}."


def looked_in(recipe: Recipe, flavour: str, market: Market) -> str | None:
    """Return the archive's places, if a source of the flavour is packages in there."""
    variants = recipe.variants(market.names, flavour)
    if market.index is None or not any(variant.source.is_packaged for variant in variants):
        return None
    return "\n".join(["looked in:", *(f"  {place}" for place in market.index.addresses)])
