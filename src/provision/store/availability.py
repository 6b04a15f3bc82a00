"""What there is of a driver: versions, here and at its vendor; kernels that it builds on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import Literal, NamedTuple

from provision.build.request import (
    DriverRequest,
    choose_distro,
)
from provision.build.solve import SolvingSession
from provision.build.versions import (
    cards_for,
    files_of,
    read_upstream,
    suitable_versions,
)
from provision.build.workspace import Settings
from provision.catalogue import Recipe
from provision.catalogue.recipe import Known
from provision.catalogue.suitability import chosen_flavour
from provision.config import DriverConfig
from provision.distros import source_names
from provision.distros.archive import compare_versions
from provision.errors import ProvisionError
from provision.kmod.verify import stored_manifest
from provision.pin import DistroPin
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
    name = asked_for.version_name
    kinds = branches.followed(name, today()) if name is not None else None
    ended = frozenset(branch.name for branch in branches.all if branch.has_ended(today()))
    version = asked_for.version_request(kinds, ended)._replace(cards=cards)
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
