"""What checks examine, observed once; and the findings of checks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from provision.catalogue import Catalogue, Recipe
from provision.config import Config, catalogue_folders, load
from provision.errors import ProvisionError, as_error
from provision.files import glob_in_root, in_root
from provision.host import STORE
from provision.host.facts import Facts, read_facts
from provision.host.kernels import Kernels, find_kernels
from provision.kmod.load import KernelLog
from provision.kmod.loaded import LoadedModule, loaded_modules
from provision.kmod.verify import stored_manifest
from provision.manifest import Manifest
from provision.store.entries import linked_kernels
from provision.store.layout import Layout
from provision.store.state import DriverState, load_state

State = Literal["ok", "warn", "fail", "unknown", "not-applicable"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, a possible problem, or something that could not be examined."""

    # The name of its check.
    check: str = field(default="", kw_only=True)
    # ``fail``: a driver does not work, or won't after the next boot; ``warn``: it may not;
    # ``unknown``: the check can't read what it needs; ``ok``: nothing is wrong, and this is why;
    # ``not-applicable``: the host has nothing that the check looks at.
    state: State
    seen: str
    cause: str | None = None
    cure: str | None = None
    # None: it concerns the host.
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver that a host has or should have."""

    name: str
    layout: Layout
    kernels: Mapping[str, str]
    state: DriverState
    # The artifact for the running kernel, and its manifest; None: there is no readable one.
    entry: Path | None
    manifest: Manifest | None
    recipe: Recipe | None
    # Why there is no recipe; None: there is one.
    unknown: ProvisionError | None = None

    def fail(self, seen: str, cause: str, cure: str | None) -> Finding:
        """Return the finding that the driver does not work."""
        return Finding("fail", seen, cause, cure, self.name)

    def warn(self, seen: str, cause: str, cure: str) -> Finding:
        """Return the finding that the driver may not work."""
        return Finding("warn", seen, cause, cure, self.name)


@dataclass(frozen=True, slots=True)
class Observation:
    """A host, as checks see it."""

    root: Path
    facts: Facts
    kernels: Kernels
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
        try:
            return in_root(self.root, name).read_text(errors="replace").strip()
        except OSError:
            return None


Subject = Callable[[Observation], object]


@dataclass(frozen=True, slots=True)
class Check:
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
        found = [replace(one, check=self.name) for one in self.find(host)]
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
    config = load(root)
    kernels = find_kernels(root)
    ours, *settled = catalogue_folders(config.catalogue, root=root)
    catalogue = Catalogue([ours, *settled], settled)
    layouts = [Layout(root, path.name) for path in glob_in_root(root, f"{STORE}/*")]
    stored = {one.driver for one in layouts if one.current.is_symlink() or linked_kernels(one)}
    names = sorted(stored | set(config.drivers))
    with KernelLog(root, whole=True) as log:
        messages = tuple(log.lines()) if log.is_readable else None
    return Observation(
        root=root,
        facts=read_facts(root),
        kernels=kernels,
        loaded=loaded_modules(root),
        config=config,
        drivers=tuple(_driver(root, name, kernels.running, catalogue) for name in names),
        log=messages,
        environment=dict(os.environ),
        recipes=tuple(entry.recipe for entry in catalogue.entries()[0]),
    )


def _driver(root: Path, name: str, running: str | None, catalogue: Catalogue) -> Driver:
    layout = Layout(root, name)
    kernels = linked_kernels(layout)
    entry, manifest = _artifact(layout, kernels, running)
    recipe = unknown = None
    try:
        recipe = catalogue.entry(name).recipe
    except (OSError, ProvisionError) as error:
        # The driver came from an image, or its catalogue is gone: it is still examined.
        unknown = as_error(error)
    return Driver(name, layout, kernels, load_state(layout), entry, manifest, recipe, unknown)


def _artifact(
    layout: Layout, kernels: Mapping[str, str], running: str | None
) -> tuple[Path | None, Manifest | None]:
    """Return the artifact for the running kernel: the one linked to it, else the current one."""
    entry = layout.linked(layout.current)
    if running is not None and running in kernels:
        entry = layout.entry(kernels[running])
    if entry is None or not entry.is_dir():
        return None, None
    manifest = stored_manifest(entry)
    is_other = manifest is not None and manifest.pin.kernel.release != running
    return (None, None) if is_other else (entry, manifest)
