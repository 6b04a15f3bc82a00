"""What checks examine, observed once; and the findings of checks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from provision.catalogue import Catalogue, Recipe
from provision.config import Config, catalogue_folders, load
from provision.errors import ProvisionError
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

State = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, a possible problem, or something that could not be examined."""

    # The name of its check.
    check: str = field(default="", kw_only=True)
    # ``fail``: a driver does not work, or won't after the next boot; ``warn``: it may not;
    # ``unknown``: the check can't read what it needs; ``ok``: nothing is wrong, and this is why.
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
    try:
        recipe = catalogue.entry(name).recipe
    except ProvisionError:
        # The driver came from an image, or its catalogue is gone: it is still examined.
        recipe = None
    return Driver(name, layout, kernels, load_state(layout), entry, manifest, recipe)


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
