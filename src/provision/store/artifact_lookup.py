"""Looks in registries for the artifact that a host needs.

No artifact of a registry is older than one that this host has had, unless its admin says so. The
serials of signed artifacts lie beside the entries and outlive them: they show that a registry
serves an old artifact again. This module loads nothing that builds.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

from provision.build.request import (
    DriverRequest,
    VersionRequest,
    distro_of_kernel,
    own_kernel,
)
from provision.build.versions import cards_for, follow
from provision.build.workspace import Settings
from provision.catalogue import Recipe
from provision.catalogue.fields import CHANNELS, DEFAULT_VERSION
from provision.catalogue.suitability import chosen_flavour, is_refused, require_kernel
from provision.errors import NotFoundError, ProvisionError, UntrustedError
from provision.files import write_atomic
from provision.host.kernels import machine
from provision.pin import DistroPin
from provision.progress import Note, report
from provision.registry.find import (
    ArtifactImage,
    ArtifactQuery,
    SearchOptions,
    TrustOverride,
    find_in_registries,
)
from provision.sources.upstream import known_branches, today
from provision.store.layout import Layout


def look_for(
    settings: Settings, request: DriverRequest, lookup: SearchOptions
) -> ArtifactImage | None:
    """Return the image of a registry that a host may install instead of building it.

    Returns:
        The image; None: the artifact has to be built.

    Raises:
        MissingArtifactError: No registry has it, and nothing is built here.
        NotFoundError: The driver or kernel is unknown.
        UntrustedError: The image of a registry lacks a trusted signature.
    """
    if settings.config.asks_registries or settings.config.policy.build == "never":
        sought = artifact_query(settings, request)
        found = find_in_registries(settings, sought, refusing_old(settings, lookup))
        return found and _usable(settings, sought, found)
    return None


def _usable(
    settings: Settings, sought: ArtifactQuery, found: ArtifactImage
) -> ArtifactImage | None:
    """Return an image that may serve the kernel; None: a build may find a better version."""
    recipe, policy = settings.catalogue.entry(sought.driver).recipe, settings.config.policy
    version = found.pin.driver.version
    try:
        require_kernel(recipe, version, sought.flavour, sought.kernel, policy.untried)
    except NotFoundError as error:
        if policy.build == "never":
            raise
        report(Note(f"{found.reference} is not taken: {error.message}"))
        return None
    return found


def refusing_old(settings: Settings, lookup: SearchOptions) -> SearchOptions:
    """Return options with which an image that is older than what the host had is refused."""
    return replace(lookup, accept=lambda trusted: check_age(settings, trusted, lookup.trust))


def artifact_query(settings: Settings, request: DriverRequest) -> ArtifactQuery:
    """Return the query to registries and the store for a request of a host."""
    facts = settings.facts
    kernel = request.kernel or own_kernel(settings, facts)
    recipe = settings.catalogue.entry(request.driver).recipe
    distro = None
    try:
        distro = distro_of_kernel(settings, kernel, request.distro)
        name = distro.name
    except NotFoundError:
        # Nothing can be built for this distro here, but others may have built for it.
        name = request.distro or f"{facts.distro.id}:{facts.distro.version}"
    cards = cards_for(settings, request)
    flavour = chosen_flavour(recipe, request.flavour, request.version, cards)

    def may_serve(version: str) -> bool:
        found = recipe.standing(version=version, flavour=flavour, kernel_release=kernel)
        return not is_refused(found.known, settings.config.policy.untried)

    return ArtifactQuery(
        driver=request.driver,
        version=replace(_version_request(settings, recipe, request, distro), cards=cards),
        flavour=flavour,
        kernel=kernel,
        distro=name,
        architecture=machine(settings.root),
        may_serve=may_serve,
    )


def _version_request(
    settings: Settings, recipe: Recipe, request: DriverRequest, distro: DistroPin | None
) -> VersionRequest:
    """Return the request for a version, with the branches of the requested kind (``lts``).

    A host that never builds asks no vendor, and takes the branches of the recipe. One that the
    recipe does not know was begun later: what its admin has published of it is better than a branch
    that has ended.
    """
    name = request.version_name
    if name is None or name not in CHANNELS:
        return request.version_request(None)
    if distro is not None and settings.config.policy.build != "never":
        return follow(settings, request, distro)
    branches = known_branches(recipe.upstream, ())
    ended = frozenset(one.name for one in branches.all if one.has_ended(today()))
    asked = request.version_request(branches.followed(name, today()), ended)
    is_open = name == DEFAULT_VERSION and asked.branches is not None
    return replace(asked, known=frozenset(one.name for one in branches.all)) if is_open else asked


_LONGEST = 1 << 20


def check_age(settings: Settings, trusted: ArtifactImage, trust: TrustOverride) -> None:
    """Check that no artifact for the same request and kernel was signed later."""
    facts = trusted.facts
    if facts is None or trust.allow_downgrade:
        return
    newest = max(_serials_so_far(Layout(settings.root, facts.driver), trusted).values(), default=0)
    if facts.serial < newest:
        is_named = trusted.request.name == facts.version
        names = "" if is_named else f' name it in provision.toml (version = "{facts.version}"), or'
        raise UntrustedError(
            f"'{trusted.reference}' is refused: it was signed before the artifact of"
            f" {facts.driver} for {facts.kernel} that this host has had"
            f" ({_day(facts.serial)}, and {_day(newest)}).",
            resolution="If you did not go back on purpose, the registry serves old images: look"
            f" into it. To go back on purpose:{names} the same command with --allow-downgrade.",
        )


def record_serial(layout: Layout, trusted: ArtifactImage) -> None:
    """Record that a host has an artifact now; the caller holds the driver's lock."""
    if trusted.facts is None:
        return
    serial = trusted.facts.serial
    # There are newer ones only if the caller allowed it, and going back again needs no trust.
    newer = {name for name, one in _serials_so_far(layout, trusted).items() if one > serial}
    serials = known_serials(layout)
    noted = {name: one for name, one in serials.items() if name not in newer}
    noted[f"{_target(trusted)}{trusted.facts.version}"] = serial
    if noted != serials:
        write_atomic(layout.serials, f"{json.dumps(noted, indent=2, sort_keys=True)}\n")


def known_serials(layout: Layout) -> dict[str, int]:
    """Return the serials of what registries served to this host, by name."""
    try:
        with layout.serials.open("rb") as stream:
            found = json.loads(stream.read(_LONGEST))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(type(serial) is int for serial in found.values()):
        raise ProvisionError(
            f"'{layout.serials}' can't be read, which says how new the artifacts were that came"
            " from a registry.",
            resolution="To forget it, and take the next signed artifact however old it is:"
            f" mv {layout.serials} {layout.serials}.unreadable",
        )
    return {str(target): int(serial) for target, serial in found.items()}


def _serials_so_far(layout: Layout, trusted: ArtifactImage) -> dict[str, int]:
    target = _target(trusted)
    return {
        name: serial
        for name, serial in known_serials(layout).items()
        if name.startswith(target) and trusted.request.accepts(name.removeprefix(target))
    }


def _target(trusted: ArtifactImage) -> str:
    """Return the name under which serials are recorded, without the version at its end."""
    pin = trusted.pin
    return f"{pin.distro.name} {pin.kernel.release} {pin.kernel.architecture} {pin.driver.flavour} "


def _day(serial: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(serial))
    except (OverflowError, ValueError, OSError):
        return str(serial)
