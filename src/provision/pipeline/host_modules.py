"""The modules of the drivers that are in a host's store: into its kernel, and out again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provision.documents import load_json
from provision.errors import NotFoundError, ProvisionError
from provision.kmod.load import devices_of, load, loadable, require_kernel, unload
from provision.kmod.loaded import loaded_modules
from provision.kmod.unload import loaded_conflicts, removable
from provision.kmod.verify import MANIFEST, verify_modules
from provision.manifest import Manifest
from provision.pipeline.device_record import collect_loaded, unloading
from provision.pipeline.workspace import Settings
from provision.progress import Progress, silent
from provision.rootfs import glob_in_root, in_root
from provision.store.layout import STORE, Layout
from provision.store.locks import changing, switching


@dataclass(frozen=True, slots=True)
class Moved:
    """What was done with a driver's modules, or would be.

    Attributes:
        manifest: The artifact's.
        entry: Its folder in the store.
        modules: The modules that were loaded or unloaded, in their order.
        conflicts: The kernel's own modules that were unloaded for them.
        problems: What could not be found out about its devices.
    """

    manifest: Manifest
    entry: Path
    modules: tuple[str, ...]
    conflicts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def stored_drivers(root: Path) -> list[str]:
    """Return the drivers that have an artifact in use in a host's store."""
    links = glob_in_root(root, f"{STORE}/*/current")
    return [link.parent.name for link in links if in_root(root, link, follow=False).is_symlink()]


def load_driver(
    settings: Settings, driver: str, *, dry_run: bool = False, progress: Progress = silent
) -> Moved:
    """Load the modules of a driver's artifact for the running kernel.

    Args:
        settings: The host; its configuration has the module parameters.
        driver: The driver.
        dry_run: Only say what would be done.
        progress: Told what is done.

    Raises:
        NotFoundError: There is no artifact for this kernel, or no hardware.
        InUseError: Another build, or a module in the way, is in use.
        ProvisionError: The artifact is damaged, or the kernel refused a module.
    """
    layout = Layout(settings.root, driver)
    if dry_run:
        entry, manifest = _loadable(layout)
        wanted = loadable(entry, manifest, root=settings.root)
        conflicts = loaded_conflicts(manifest, loaded_modules(settings.root))
        return Moved(manifest, entry, tuple(module.name for module in wanted), conflicts)
    with switching(settings.root, progress), changing(layout, progress):
        entry, manifest = _loadable(layout)
        verify_modules(entry).require_whole(f"The store entry '{entry}'")
        conflicts = loaded_conflicts(manifest, loaded_modules(settings.root))
        configured = settings.config.drivers.get(driver)
        loaded = load(
            entry,
            manifest,
            options=configured.options if configured else {},
            root=settings.root,
            progress=progress,
        )
        problems = collect_loaded(settings.root, entry, manifest, progress=progress)
    return Moved(manifest, entry, loaded, conflicts, problems)


def unload_driver(
    settings: Settings, driver: str, *, dry_run: bool = False, progress: Progress = silent
) -> Moved:
    """Unload the modules of a driver, whichever build of it is loaded; never by force.

    Args:
        settings: The host.
        driver: The driver.
        dry_run: Only say what would be done.
        progress: Told what is done.

    Raises:
        NotFoundError: The driver is not in the store.
        InUseError: Somebody uses a module; names who.
        ProvisionError: The kernel refused.
    """
    layout = Layout(settings.root, driver)
    if dry_run:
        entry, manifest = _artifact(layout)
        names = [module.name for module in manifest.modules]
        devices = devices_of(manifest)
        return Moved(manifest, entry, removable(names, devices=devices, root=settings.root))
    with switching(settings.root, progress), changing(layout, progress):
        entry, manifest = _artifact(layout)
        with unloading(settings.root, driver, progress=progress):
            unloaded = unload(manifest, root=settings.root, progress=progress)
    return Moved(manifest, entry, unloaded)


def _loadable(layout: Layout) -> tuple[Path, Manifest]:
    """Return the artifact for the running kernel, which must be for that very kernel."""
    entry, manifest = _artifact(layout)
    require_kernel(manifest, layout.root)
    return entry, manifest


def _artifact(layout: Layout) -> tuple[Path, Manifest]:
    entry = _entry(layout)
    return entry, load_json(entry / MANIFEST, Manifest)


def _entry(layout: Layout) -> Path:
    """Return the artifact for the running kernel: its own link's, else the one in use.

    Raises:
        NotFoundError: There is none.
        ProvisionError: A link leads nowhere.
    """
    try:
        running = in_root(layout.root, "proc/sys/kernel/osrelease").read_text().strip()
    except OSError:
        running = ""
    links = [layout.kernel_link(running)] if running else []
    link = next((path for path in [*links, layout.current] if path.is_symlink()), None)
    if link is None:
        there = ", ".join(stored_drivers(layout.root)) or "none"
        raise NotFoundError(
            f"The driver '{layout.driver}' is not installed under '{layout.root}'.",
            resolution=f"Install it: provision install {layout.driver}. Installed are: {there}.",
        )
    entry = layout.linked(link)
    if entry is None:
        raise ProvisionError(
            f"'{link}' points to an artifact that is gone.",
            resolution=f"Install it anew: provision install {layout.driver}.",
        )
    return entry
