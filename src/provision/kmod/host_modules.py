"""Loads and unloads the modules of drivers in a host's store; collects facts about their devices.

Missing facts fail nothing: facts that can't be found out or written are a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision.config import Config
from provision.errors import NotFoundError, ProvisionError
from provision.files import glob_in_root, in_root, text_in_root
from provision.host import STORE
from provision.host.devices import (
    LIBRARY,
    PROGRAM,
    VENDORS,
    Recorded,
    Smi,
    record_facts,
    recording,
    remove_facts,
)
from provision.kmod.load import (
    load,
    loadable,
    loaded_conflicts,
    removable,
    require_kernel,
    unload,
)
from provision.kmod.loaded import loaded_modules
from provision.kmod.loader import Options
from provision.kmod.verify import stored_manifest, verify_modules
from provision.manifest import Manifest, load_manifest
from provision.progress import Note, report
from provision.store.entries import linked_kernels, not_installed, stored_drivers
from provision.store.layout import VENDOR_CONFIGS, Layout, changing, switching

_NVIDIA = "nvidia"
# The prefix of the vendor files that are shipped with oci-decorator.
_SHIPPED = "oci-"


def record_loaded(root: Path, entry: Path, manifest: Manifest) -> tuple[str, ...]:
    """Collect the facts of a driver's devices, if its devices have any.

    Returns:
        The facts that could not be found out or written, one line each.
    """
    if _NVIDIA not in (manifest.container.interfaces or ()):
        return ()
    name = manifest.pin.driver.name
    try:
        problems = record_facts(
            root, name, source=_NVIDIA, stored=_programs(entry, manifest)
        ).problems
    except (OSError, ProvisionError) as error:
        problems = (f"the facts of its devices could not be written: {error}",)
    for problem in problems:
        report(Note(f"{name}: {problem}"))
    return problems


@contextmanager
def unloading(root: Path, driver: str) -> Iterator[None]:
    """Unload a driver within this block; its end removes the facts of the devices.

    Meanwhile no process collects facts, because that would keep the driver in use.
    """
    with recording(root):
        yield
        try:
            remove_facts(root, driver)
        except OSError as error:
            report(Note(f"The facts of {driver}'s devices could not be removed: {error}"))


def refresh(root: Path, vendor: str | None = None) -> list[Recorded]:
    """Collect the facts of a host's devices, for drivers in its store and foreign drivers.

    Returns:
        The facts that exist now or existed until now.
    """
    stored = dict(_stored(root))
    # A driver of the store that serves NVIDIA's GPUs has another name where a site made its own.
    others = {name: name for name in VENDORS if name != _NVIDIA or not stored} | _shipped(root)
    known = [*stored, *(name for name in others if name not in stored)]
    if vendor is not None and vendor not in known:
        raise NotFoundError(
            f"There are no facts about devices of '{vendor}'.",
            resolution=f"Name one of {', '.join(known)}, or none for all.",
        )
    found = [
        record_facts(root, name, source=_NVIDIA, stored=stored[name])
        if name in stored
        else record_facts(root, name, source=others[name])
        for name in known
        if vendor in {None, name}
    ]
    return [one for one in found if one.facts is not None or one.changed or vendor]


def _shipped(root: Path) -> dict[str, str]:
    """Return the vendors of unchanged shipped vendor files, by the names of these files.

    oci-decorator looks for facts by the name of the vendor file, such as ``oci-amd``.
    """
    names = [path.stem for path in glob_in_root(root, f"{VENDOR_CONFIGS}/{_SHIPPED}*.json")]
    vendors = {name: name.removeprefix(_SHIPPED) for name in names}
    return {name: vendor for name, vendor in vendors.items() if vendor in VENDORS}


def _stored(root: Path) -> Iterator[tuple[str, tuple[Smi, ...]]]:
    """Yield the drivers in a host's store that serve NVIDIA's GPUs, with their programs."""
    for link in glob_in_root(root, f"{STORE}/*/current"):
        layout = Layout(root, link.parent.name)
        entries = [layout.linked(path) for path in (layout.current, layout.previous)]
        found: list[Smi] = []
        serves = False
        for entry in entries:
            manifest = stored_manifest(entry) if entry is not None else None
            if entry is not None and manifest is not None:
                serves = serves or _NVIDIA in (manifest.container.interfaces or ())
                found += _programs(entry, manifest)
        if serves:
            yield layout.driver, tuple(found)


def _programs(entry: Path, manifest: Manifest) -> tuple[Smi, ...]:
    folder = in_root(entry, "driver")
    paths = {path.name: path for path in (PurePosixPath(file.path) for file in manifest.files)}
    if PROGRAM not in paths or LIBRARY not in paths:
        return ()
    return (Smi(in_root(folder, paths[PROGRAM]), in_root(folder, paths[LIBRARY])),)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The modules of a driver that were or would be loaded or unloaded."""

    manifest: Manifest
    entry: Path
    # The modules that were loaded or unloaded, in their order.
    modules: tuple[str, ...]
    # The kernel's own modules that were unloaded for them.
    conflicts: tuple[str, ...] = ()
    # The facts about its devices that are missing, one line each.
    problems: tuple[str, ...] = ()


def required_drivers(root: Path) -> list[str]:
    """Return the drivers that have an artifact in use; refuse to do something to none."""
    found = stored_drivers(root)
    if not found:
        raise NotFoundError(
            f"No driver is installed under '{root}'.",
            resolution="Install those of provision.toml: provision apply",
        )
    return found


def load_driver(root: Path, config: Config, driver: str, *, dry_run: bool = False) -> LoadResult:
    """Load the modules of a driver's artifact for the running kernel."""
    layout = Layout(root, driver)
    # Of nothing, no lock is left.
    entry, manifest = _artifact(layout, config.drivers)
    if dry_run:
        modules = loadable(entry, manifest, root=root)
        conflicts = loaded_conflicts(manifest, loaded_modules(root))
        return LoadResult(manifest, entry, tuple(module.name for module in modules), conflicts)
    with switching(root), changing(layout):
        entry, manifest = _artifact(layout, config.drivers)
        require_kernel(manifest, root)
        verify_modules(entry).require_whole(f"The store entry '{entry}'")
        conflicts = loaded_conflicts(manifest, loaded_modules(root))
        loaded = load(entry, manifest, options=_options(config, driver), root=root)
        problems = record_loaded(root, entry, manifest)
    return LoadResult(manifest, entry, loaded, conflicts, problems)


def unload_driver(root: Path, config: Config, driver: str, *, dry_run: bool = False) -> LoadResult:
    """Unload the modules of a driver, whichever build of it is loaded; never by force."""
    layout = Layout(root, driver)
    entry, manifest = _artifact(layout, config.drivers)
    if dry_run:
        return LoadResult(manifest, entry, removable(manifest, root=root))
    with switching(root), changing(layout), unloading(root, driver):
        entry, manifest = _artifact(layout, config.drivers)
        unloaded = unload(entry, manifest, options=_options(config, driver), root=root)
    return LoadResult(manifest, entry, unloaded)


def _options(config: Config, driver: str) -> Options:
    configured = config.drivers.get(driver)
    return configured.options if configured else {}


def _artifact(layout: Layout, named: Iterable[str]) -> tuple[Path, Manifest]:
    """Return the running kernel's artifact: that of the kernel's link, else the one in use."""
    running = text_in_root(layout.root, "proc/sys/kernel/osrelease") or ""
    has_own = running in linked_kernels(layout)
    link = layout.kernel_link(running) if has_own else layout.current
    if not link.is_symlink():
        raise not_installed(layout, named)
    entry = layout.linked(link)
    if entry is None:
        raise ProvisionError(
            f"'{link}' points to an artifact that is gone.",
            resolution="Have it made again: provision apply",
        )
    return entry, load_manifest(entry)
