"""Foresees where an apply would get each kernel's artifact: store, registry, build, or nowhere.

Registries, archives, vendors and the engine are queried as by an apply; nothing is built, and
nothing is written but what these answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

from provision.agent.model import (
    Action,
    Blocked,
    DesiredDriver,
    KernelArtifact,
    Observed,
    Plan,
    Run,
)
from provision.agent.observe import observe
from provision.agent.preparing import Preparer
from provision.errors import NotFoundError, ProvisionError
from provision.progress import Event, Note
from provision.registry.find import SearchOptions
from provision.registry.registries import TrustOverride
from provision.sources.upstream import Ended, ended_branch, kept, known_branches, today
from provision.store.artifact_lookup import asks_registries, look_for
from provision.store.availability import version_to_build
from provision.store.layout import Layout

Source = Literal["store", "registry", "build", "missing"]


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The source of an artifact.

    Attributes:
        driver: The driver.
        kernel: The kernel.
        source: ``store`` if the store has it, ``registry`` if it is pulled, ``build`` if it is
            built here, ``missing`` if it is not available.
        version: The driver's version; None: the artifact is not available.
        image: The registry's image, with its digest.
        reason: Why it is built or not available; for people.
        resolution: What to do about a missing artifact.
        ended: That the vendor no longer supports the version's branch.
    """

    driver: str
    kernel: str
    source: Source
    version: str | None = None
    image: str | None = None
    reason: str | None = None
    resolution: str | None = None
    ended: Ended | None = None

    def __str__(self) -> str:
        words = {
            "store": f"The store has {self.version}",
            "registry": f"A registry has {self.version}: {self.image}",
            "build": f"It builds {self.version} here",
            "missing": "It is not available",
        }[self.source]
        return f"{words}: {self.reason}" if self.reason else words


def foresee(run: Run, planned: Plan) -> tuple[Foreseen, ...]:
    """Return the source of each driver's artifact for each kernel that may boot next.

    Args:
        run: The apply.
        planned: Its plan.
    """
    observed = observe(run.root, run.desired, coming=run.coming)
    making = {(a.driver, a.kernel): a for a in planned.actions if a.kind == "prepare"}
    blocked = {(b.driver, b.kernel): b for b in planned.blocked if b.obstacle != "reboot-required"}
    with closing(Preparer(run)) as preparer:
        found = _all(preparer, observed, making, blocked)
        return tuple(replace(one, ended=_ended(preparer, one)) for one in found)


def _ended(preparer: Preparer, found: Foreseen) -> Ended | None:
    """Return that the vendor no longer supports the branch of a version, by its last answer."""
    if found.version is None:
        return None
    settings = preparer.settings
    try:
        upstream = settings.catalogue.entry(found.driver).recipe.upstream
    except NotFoundError:
        # The artifact is in the store, or came from a registry.
        return None
    machine = settings.architecture
    readings = kept(upstream, machine=machine, distro=None, folder=settings.state)
    return ended_branch(found.driver, found.version, known_branches(upstream, readings), today())


def _all(
    preparer: Preparer,
    observed: Observed,
    making: Mapping[tuple[str, str], Action],
    blocked: Mapping[tuple[str, str], Blocked],
) -> Iterator[Foreseen]:
    for driver in preparer.run.desired.drivers:
        for release in observed.kernels.relevant:
            artifact = observed.drivers[driver.name].artifacts[release]
            place = (driver.name, release)
            if place in making:
                yield _made(preparer, driver, making[place], artifact)
            elif place in blocked:
                why = blocked[place]
                yield Foreseen(*place, "missing", reason=why.reason, resolution=why.resolution)
            elif artifact.is_whole:
                yield Foreseen(*place, "store", artifact.version)
            else:
                yield Foreseen(
                    *place,
                    "missing",
                    reason="artifacts are not made for kernels that do not run yet",
                    resolution="Set [policy] prebuild = true in /etc/provision/provision.toml.",
                )


def _made(
    preparer: Preparer, driver: DesiredDriver, action: Action, artifact: KernelArtifact
) -> Foreseen:
    """Return the source of an artifact that is to be made."""
    try:
        return _found(preparer, driver, action, artifact)
    except ProvisionError as error:
        return Foreseen(
            driver.name,
            action.kernel,
            "missing",
            reason=error.message,
            resolution=error.resolution,
        )


def _found(
    preparer: Preparer, driver: DesiredDriver, action: Action, artifact: KernelArtifact
) -> Foreseen:
    """Look for an artifact as ``Preparer.prepare`` does.

    Raises:
        ProvisionError: It is not available, with the reason.
    """
    settings, place = preparer.settings, (driver.name, action.kernel)
    notes: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)

    request = preparer.request(driver, action)
    consent = TrustOverride(allow_downgrade=preparer.run.mode.allow_downgrade)
    trusted = look_for(settings, request, SearchOptions(consent, progress=note))
    if trusted is None:
        reason = None
        if asks_registries(settings):
            reason = "; ".join(notes) or "no registry has it"
        version = version_to_build(settings, lambda: preparer.engine, request, progress=note)
        # Without an engine, nothing is built.
        preparer.engine  # noqa: B018 - connects
        return Foreseen(*place, "build", version, reason=reason)
    pin = trusted.image.pin
    if preparer.stays(artifact, pin):
        return Foreseen(*place, "store", artifact.version, reason="there is no newer one")
    preparer.refuse_pulled(driver, action, artifact, pin)
    is_there = Layout(settings.root, driver.name).entry(pin.short_digest).is_dir()
    source: Source = (
        "store" if is_there and not artifact.is_damaged(pin.short_digest) else "registry"
    )
    image = None if source == "store" else str(trusted.image.reference)
    return Foreseen(*place, source, pin.driver.version, image)
