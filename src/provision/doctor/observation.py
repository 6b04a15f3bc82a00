"""What checks examine, observed once; and the findings of checks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from provision.agent.desired import load_desired
from provision.agent.model import ObservedDriver, plan
from provision.agent.observe import applied_drivers
from provision.agent.observe import observe as observe_drivers
from provision.agent.status import Status, status_of
from provision.catalogue import Catalogue, Recipe
from provision.config import Config, DriverConfig
from provision.files import text_in_root
from provision.host.facts import HostFacts, read_facts
from provision.kmod.load import KernelLog
from provision.kmod.modules import LoadedModule, loaded_modules
from provision.kmod.verify import stored_manifest
from provision.manifest import Manifest
from provision.store.layout import Layout

State = Literal["ok", "warn", "fail", "unknown", "not-applicable"]


class Finding(NamedTuple):
    """A problem, a possible problem, or something that could not be examined."""

    # ``fail``: a driver does not work, or won't after the next boot; ``warn``: it may not;
    # ``unknown``: the check can't read what it needs; ``ok``: nothing is wrong, and this is why;
    # ``not-applicable``: the host has nothing that the check looks at.
    state: State
    seen: str
    cause: str | None = None
    cure: str | None = None
    # None: it concerns the host.
    driver: str | None = None
    # The name of its check.
    check: str = ""


class Driver(NamedTuple):
    """A driver that a host has or should have."""

    name: str
    seen: ObservedDriver
    # The artifact for the running kernel, and its manifest; None: there is no readable one.
    entry: Path | None
    manifest: Manifest | None
    # None: the catalogue has none that is readable.
    recipe: Recipe | None

    def fail(self, seen: str, cause: str | None, cure: str | None) -> Finding:
        """Return the finding that the driver does not work."""
        return Finding("fail", seen, cause, cure, self.name)

    def warn(self, seen: str, cause: str | None, cure: str | None) -> Finding:
        """Return the finding that the driver may not work."""
        return Finding("warn", seen, cause, cure, self.name)


class Observation(NamedTuple):
    """A host, as checks see it."""

    root: Path
    facts: HostFacts
    status: Status
    loaded: Mapping[str, LoadedModule]
    config: Config
    drivers: tuple[Driver, ...]
    # The kernel's log; None: it can't be read.
    log: tuple[str, ...] | None
    environment: Mapping[str, str]
    # The readable recipes of the catalogue.
    recipes: tuple[Recipe, ...] = ()

    def installed(self) -> Iterator[tuple[Driver, Path, Manifest]]:
        """Yield the drivers that have an artifact for the running kernel, with it."""
        for driver in self.drivers:
            if driver.entry is not None and driver.manifest is not None:
                yield driver, driver.entry, driver.manifest

    def text(self, name: str) -> str | None:
        """Return the stripped text of a file of the host; None: there is no such file."""
        return text_in_root(self.root, name)


Subject = Callable[[Observation], object]


class Check(NamedTuple):
    """A check of a host.

    Args:
        holds: What is so where it finds nothing.
        subject: What it looks at; where a host has nothing of it, the check says nothing.
        find: What is not so.
    """

    name: str
    holds: str
    subject: Subject
    find: Callable[[Observation], Iterator[Finding]]

    def results(self, host: Observation) -> list[Finding]:
        """Return what it finds, or else whether it has looked."""
        if not self.subject(host):
            return [Finding("not-applicable", "there is nothing to look at", check=self.name)]
        found = [one._replace(check=self.name) for one in self.find(host)]
        return found or [Finding("ok", self.holds, check=self.name)]


def check(
    holds: str, *, of: Subject
) -> Callable[[Callable[[Observation], Iterator[Finding]]], Check]:
    """Return a decorator that makes a check of a function, which yields its findings."""
    return lambda find: Check(find.__name__.replace("_", "-"), holds, of, find)


def always(_host: Observation) -> bool:
    """Say that every host has it."""
    return True


def drivers(host: Observation) -> object:
    """Return the drivers that a host has or should have."""
    return host.drivers


def installed(host: Observation) -> bool:
    """Return whether a driver has an artifact for the running kernel."""
    return any(host.installed())


def recipes(host: Observation) -> bool:
    """Return whether the catalogue has a driver that the host has or should have."""
    return any(driver.recipe for driver in host.drivers)


def observe(root: Path = Path("/")) -> Observation:
    """Observe a host.

    Raises:
        NotFoundError: The folder is not the root of a host.
    """
    root = root.resolve()
    desired = load_desired(root)
    config = desired.config
    # What is installed is examined too, whether or not provision.toml names it.
    names = sorted(applied_drivers(root) | set(config.drivers))
    drivers = {name: config.drivers.get(name, DriverConfig()) for name in names}
    desired = desired._replace(config=config.model_copy(update={"drivers": drivers}))
    observed = observe_drivers(root, desired, compare_modules=True)
    planned = plan(desired, observed)
    recipes = [entry.recipe for entry in Catalogue(desired.catalogue).entries()[0]]
    running = observed.kernels.running or ""
    with KernelLog(root, whole=True) as log:
        messages = tuple(log.lines()) if log.is_readable else None
    return Observation(
        root=root,
        facts=read_facts(root),
        status=status_of(desired, observed, planned, time=int(time.time())),
        loaded=loaded_modules(root),
        config=config,
        drivers=tuple(_driver(root, observed.drivers[name], running, recipes) for name in names),
        log=messages,
        environment=dict(os.environ),
        recipes=tuple(recipes),
    )


def _driver(root: Path, seen: ObservedDriver, running: str, recipes: Iterable[Recipe]) -> Driver:
    artifact = seen.artifacts.get(running)
    entry = Layout(root, seen.name).entry(artifact.digest) if artifact and artifact.digest else None
    manifest = stored_manifest(entry) if entry else None
    recipe = next((one for one in recipes if one.name == seen.name), None)
    return Driver(seen.name, seen, entry, manifest, recipe)
