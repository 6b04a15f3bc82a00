"""What there is of a driver: versions, kernels that it builds on, and the image of a registry.

No artifact of a registry is older than one that this host has had, unless its admin says so. The
serials of signed artifacts lie beside the entries and outlive them: they show that a registry
serves an old artifact again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Literal, NamedTuple

from provision.build.request import (
    DriverRequest,
    VersionRequest,
    choose_distro,
    distro_of_kernel,
    own_kernel,
)
from provision.build.solve import SolvingSession
from provision.build.versions import (
    cards_for,
    files_of,
    follow,
    of_branches,
    read_upstream,
    suitable_versions,
)
from provision.build.workspace import Settings
from provision.catalogue import Recipe
from provision.catalogue.fields import CHANNELS, DEFAULT_VERSION
from provision.catalogue.recipe import Known
from provision.catalogue.suitability import chosen_flavour, is_refused, require_kernel
from provision.config import DriverConfig
from provision.distros import compare_versions
from provision.distros.distro import source_names
from provision.errors import NotFoundError, ProvisionError, UntrustedError
from provision.files import write_atomic
from provision.host.kernels import machine
from provision.kmod.verify import stored_manifest
from provision.pin import DistroPin
from provision.progress import Note, report
from provision.registry.find import (
    ArtifactImage,
    ArtifactQuery,
    Connect,
    TrustOverride,
    connect,
    find_in_registries,
)
from provision.sources.candidates import SourceContext, candidates
from provision.sources.upstream import (
    Branches,
    Notice,
    UpstreamResult,
    ended_branch,
    known_branches,
    today,
)
from provision.store.entries import linked_kernels
from provision.store.layout import Layout


class Installed(NamedTuple):
    """A version in the store, for a kernel."""

    kernel: str
    version: str
    is_running: bool


class Concern(NamedTuple):
    """A finding of ``versions --check``."""

    # ``newer``: a newer version than the installed one is offered for the setting; ``ended``: the
    # installed branch is past the end of its life; ``unknown``: the offers can't be found out.
    kind: Literal["newer", "ended", "unknown"]
    message: str
    resolution: str | None


class Offers(NamedTuple):
    """The versions of a driver."""

    driver: str
    flavour: str
    # The version that provision.toml asks for, or its default.
    asked_for: str
    # The distro that is built for.
    distro: DistroPin
    installed: tuple[Installed, ...]
    # The versions that can be built, the newest first.
    offered: tuple[str, ...]
    # The offered version that ``asked_for`` stands for now, if there is one.
    chosen: str | None
    # Why the offers can't be found out, if they can't.
    trouble: ProvisionError | None
    branches: Branches
    readings: tuple[UpstreamResult, ...]
    day: date

    @property
    def serving(self) -> str | None:
        """The version for the running kernel, else the newest that is installed."""
        running = next((i.version for i in self.installed if i.is_running), None)
        return running or next((i.version for i in self.installed), None)

    @property
    def is_seen(self) -> bool:
        """Whether anybody who offers it could be read."""
        is_read = any(reading.trouble is None for reading in self.readings)
        return is_read or (not self.readings and self.trouble is None)

    @property
    def ended(self) -> Notice | None:
        """That the installed version's branch is past the end of its life."""
        if self.serving is None:
            return None
        return ended_branch(self.driver, self.serving, self.branches, self.day)

    def concerns(self) -> Iterator[Concern]:
        """Yield the findings of ``versions --check``."""
        serving = self.serving
        if self.trouble is not None:
            why = self.trouble.message.removesuffix(".")
            message = f"{self.driver}: what is offered can't be found out: {why}"
            yield Concern("unknown", message, self.trouble.resolution)
        if serving and self.chosen and compare_versions(self.chosen, serving) > 0:
            yield Concern(
                "newer",
                f"{self.driver} {serving} is installed, and {self.chosen} is offered (asked for:"
                f" {self.asked_for})",
                "provision apply --update",
            )
        if self.ended is not None:
            message = f"{self.driver} {self.ended.message}"
            yield Concern("ended", message, self.ended.resolution)


def list_offers(settings: Settings, request: DriverRequest, *, is_offline: bool = False) -> Offers:
    """Return the installed and offered versions of a driver."""
    driver = request.driver
    recipe = settings.catalogue.entry(driver).recipe
    configured = settings.config.drivers.get(driver) or DriverConfig()
    # A list is what helps where the cards take something else.
    request = replace(request, flavour=request.flavour or configured.flavour, force=True)
    cards = cards_for(settings, request)
    flavour = chosen_flavour(recipe, request.flavour, request.version, cards)
    distro = choose_distro(settings, request.distro)
    max_age = math.inf if is_offline else 0.0
    readings = read_upstream(settings, recipe, max_age=max_age)
    branches = known_branches(recipe.upstream, readings)
    published = files_of(readings)
    context = SourceContext(
        f"{distro.id} {distro.version}", source_names(distro), published=published
    )
    offered, trouble = _offered(settings, recipe, flavour, distro, context)
    kernel = settings.facts.kernel
    # What ``provision apply`` would take now.
    asked_for = DriverRequest(driver, version=configured.version)
    version = of_branches(asked_for, branches)._replace(cards=cards)
    untried = settings.config.policy.untried
    suitable, fitting = suitable_versions(recipe, flavour, offered, version, kernel or "", untried)
    return Offers(
        driver=driver,
        flavour=flavour,
        asked_for=configured.version,
        distro=distro,
        installed=_installed(settings, driver, kernel),
        offered=tuple(offered),
        chosen=next(iter(fitting or suitable), None),
        trouble=trouble,
        branches=branches,
        readings=readings,
        day=today(),
    )


def _offered(
    settings: Settings, recipe: Recipe, flavour: str, distro: DistroPin, context: SourceContext
) -> tuple[list[str], ProvisionError | None]:
    try:
        with SolvingSession(settings, distro, (recipe,)) as session:
            context = context._replace(archive=session.archive)
            return list(candidates(recipe, flavour, context)), None
    except ProvisionError as error:
        return [], error


def _installed(settings: Settings, driver: str, running: str | None) -> tuple[Installed, ...]:
    layout = Layout(settings.root, driver)
    found = []
    for release, digest in sorted(linked_kernels(layout).items()):
        # 'provision status' reports damaged entries.
        if manifest := stored_manifest(layout.entry(digest)):
            found.append(Installed(release, manifest.pin.driver.version, release == running))
    return tuple(found)


class KernelOffer(NamedTuple):
    """A packaged kernel, and what a driver is on it."""

    release: str
    known: Known
    # The version that would be built: of those that are known to work, else of the untried, the
    # newest of the first source; None: all are known to fail.
    version: str | None
    # Why the newest fails, if all do.
    reason: str | None = None


def list_kernels(
    settings: Settings, request: DriverRequest
) -> tuple[DistroPin, tuple[KernelOffer, ...]]:
    """Return the distro, and what is known of a driver on each kernel that it packages.

    The newest kernel comes first.

    Only the driver, its flavour and the distro of the request count.
    """
    recipe = settings.catalogue.entry(request.driver).recipe
    distro = choose_distro(settings, request.distro)
    flavour = chosen_flavour(recipe, request.flavour, request.version, cards_for(settings, request))
    with SolvingSession(settings, distro, (recipe,)) as session:
        context = SourceContext(
            f"{distro.id} {distro.version}", source_names(distro), session.archive
        )
        versions = list(candidates(recipe, flavour, context))
        kernels = session.kernels()
    return distro, tuple(_on_kernel(recipe, flavour, versions, kernel) for kernel in kernels)


def _on_kernel(recipe: Recipe, flavour: str, versions: Sequence[str], kernel: str) -> KernelOffer:
    standings = {
        one: recipe.standing(version=one, flavour=flavour, kernel_release=kernel)
        for one in versions
    }
    for known in ("works", "untried"):
        found = next((v for v, standing in standings.items() if standing.known == known), None)
        if found is not None:
            return KernelOffer(kernel, standings[found].known, found)
    rows = (standing.row for standing in standings.values())
    return KernelOffer(kernel, "fails", None, next((row.reason for row in rows if row), None))


def look_for(
    settings: Settings,
    request: DriverRequest,
    trust: TrustOverride,
    *,
    connected: Connect = connect,
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
        accept = partial(check_age, settings, trust=trust)
        found = find_in_registries(settings, sought, trust, accept=accept, connected=connected)
        return found and _suitable_image(settings, sought, found)
    return None


def _suitable_image(
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


def artifact_query(settings: Settings, request: DriverRequest) -> ArtifactQuery:
    """Return the query to registries and the store for a request of a host."""
    facts = settings.facts
    kernel = request.kernel or own_kernel(settings)
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
        version=_version_request(settings, recipe, request, distro)._replace(cards=cards),
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
    asked = of_branches(request, branches)
    is_open = name == DEFAULT_VERSION and asked.branches is not None
    return asked._replace(known=frozenset(one.name for one in branches.all)) if is_open else asked


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
