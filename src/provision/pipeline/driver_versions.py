"""What there is of a driver: installed, offered here, and offered by its vendor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from typing import Literal

from provision.build.compatibility import KernelRequest, suitable_versions
from provision.build.offer_choice import chosen_flavour
from provision.catalogue import Recipe
from provision.distros import source_names
from provision.distros.debian import compare_versions
from provision.documents import load_json
from provision.errors import ProvisionError
from provision.host.facts import Facts, read_facts
from provision.kmod.verify import MANIFEST
from provision.manifest import Manifest
from provision.pin import DistroPin
from provision.pipeline.driver_request import DriverRequest, choose_distro
from provision.pipeline.solving import open_market
from provision.pipeline.upstream_branches import files_of, read_upstream
from provision.pipeline.workspace import Settings
from provision.progress import Progress, silent
from provision.sources import Market, offers
from provision.sources.upstream import (
    Branch,
    Branches,
    Reading,
    how_to_switch,
    known_branches,
    today,
)
from provision.store.entries import linked_kernels
from provision.store.layout import Layout


@dataclass(frozen=True, slots=True)
class Installed:
    """A version in the store, for a kernel."""

    kernel: str
    version: str
    is_running: bool


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that ``versions --check`` reports.

    Attributes:
        kind: ``newer``: what is asked for has a newer version than is installed; ``ended``: the
            installed branch is past the end of its life; ``unknown``: what is offered can't be
            found out.
        message: What it is, in one line.
        resolution: What to do.
    """

    kind: Literal["newer", "ended", "unknown"]
    message: str
    resolution: str | None


@dataclass(frozen=True, slots=True)
class Offers:
    """What there is of a driver.

    Attributes:
        driver: Its name.
        flavour: The flavour that is looked at.
        wish: What provision.toml asks for; ``latest`` where it says nothing.
        distro: What is built for.
        installed: The versions in the store.
        offered: The versions that can be built, the newest first.
        chosen: The version that this stands for now; None: none that is offered.
        trouble: Why it is not known what is offered.
        branches: The driver's branches.
        readings: What the vendor's sources said.
        day: The day on which branches live or have ended.
    """

    driver: str
    flavour: str
    wish: str
    distro: DistroPin
    installed: tuple[Installed, ...]
    offered: tuple[str, ...]
    chosen: str | None
    trouble: ProvisionError | None
    branches: Branches
    readings: tuple[Reading, ...]
    day: date

    @property
    def serving(self) -> str | None:
        """The version for the running kernel, else the newest that is installed."""
        running = next((i.version for i in self.installed if i.is_running), None)
        return running or next((i.version for i in self.installed), None)

    @property
    def ended(self) -> Branch | None:
        """The installed version's branch, if that is past the end of its life."""
        branch = self.branches.of(self.serving) if self.serving else None
        return branch if branch is not None and branch.has_ended(self.day) else None

    def concerns(self) -> Iterator[Concern]:
        """Yield what someone should see to."""
        serving = self.serving
        if self.trouble is not None:
            why = self.trouble.message.removesuffix(".")
            message = f"{self.driver}: what is offered can't be found out: {why}"
            yield Concern("unknown", message, self.trouble.resolution)
        if serving and self.chosen and compare_versions(self.chosen, serving) > 0:
            yield Concern(
                "newer",
                f"{self.driver} {serving} is installed, and {self.chosen} is offered (asked for:"
                f" {self.wish})",
                "provision apply --update",
            )
        if self.ended is not None:
            successor = self.branches.successor(self.ended, self.day)
            yield Concern(
                "ended",
                f"{self.driver} {serving} is of the branch {self.ended.name}, which its vendor has"
                f" cared for until {self.ended.last_day} only",
                how_to_switch(self.driver, successor),
            )


def list_offers(
    settings: Settings,
    asked: DriverRequest,
    *,
    is_offline: bool = False,
    progress: Progress = silent,
) -> Offers:
    """Find out what there is of a driver.

    Args:
        settings: The host.
        asked: The driver; and its distro and flavour, where they are not those of the host and of
            provision.toml.
        is_offline: Whether only what is known from before counts.
        progress: Receives what goes on.

    Raises:
        NotFoundError: The driver, flavour or distro is unknown.
    """
    driver = asked.driver
    recipe = settings.catalogue.entry(driver).recipe
    wanted = settings.config.drivers.get(driver)
    flavour = chosen_flavour(recipe, asked.flavour or (wanted.flavour if wanted else None))
    chosen = choose_distro(settings, asked.distro)
    name = f"{chosen.id}:{chosen.version}"
    readings = read_upstream(settings, recipe, distro=name, max_age=math.inf if is_offline else 0.0)
    branches = known_branches(recipe.upstream, readings)
    market = Market(
        f"{chosen.id} {chosen.version}", source_names(chosen), published=files_of(readings)
    )
    opening = open_market(settings, driver, chosen, market, progress=progress)
    offered, trouble = _offered(recipe, flavour, opening)
    facts = read_facts(settings.root)
    wish = wanted.version if wanted else "latest"
    return Offers(
        driver=driver,
        flavour=flavour,
        wish=wish,
        distro=chosen,
        installed=_installed(settings, driver, facts.kernel),
        offered=tuple(offered),
        chosen=_suitable(recipe, offered, DriverRequest(driver, version=wish), branches, facts),
        trouble=trouble,
        branches=branches,
        readings=readings,
        day=today(),
    )


def _offered(
    recipe: Recipe, flavour: str, opening: AbstractContextManager[Market]
) -> tuple[list[str], ProvisionError | None]:
    """Return the versions that can be built; none, and why, where that can't be found out."""
    try:
        with opening as market:
            return [offer.version for offer in offers(recipe, flavour, market)], None
    except ProvisionError as error:
        return [], error


def _suitable(
    recipe: Recipe, offered: list[str], wanted: DriverRequest, branches: Branches, facts: Facts
) -> str | None:
    """Return the version that an apply would take now; None: none of those that are offered."""
    name = wanted.version_name
    kinds = branches.followed(name, today()) if name is not None else None
    version = wanted.version_request(kinds)
    request = KernelRequest(facts.kernel or "", facts.arch, version)
    suitable, fitting = suitable_versions(recipe, offered, request)
    return next(iter(fitting or suitable), None)


def _installed(settings: Settings, driver: str, running: str | None) -> tuple[Installed, ...]:
    layout = Layout(settings.root, driver)
    found = []
    for release, digest in sorted(linked_kernels(layout).items()):
        try:
            manifest = load_json(layout.entry(digest) / MANIFEST, Manifest)
        except ProvisionError:
            # Damaged: 'provision status' has it.
            continue
        found.append(Installed(release, manifest.pin.driver.version, release == running))
    return tuple(found)
