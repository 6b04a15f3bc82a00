"""The modules of the drivers that are in a host's store: into its kernel, and out again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provision.documents import load_json
from provision.errors import NotFoundError, ProvisionError
from provision.files import lock
from provision.install.layout import STORE, Layout
from provision.manifest import Manifest
from provision.modules.conflicts import loaded_conflicts
from provision.modules.loaded import loaded_modules
from provision.modules.loading import devices_of, load, loadable, require_kernel, unload
from provision.modules.unloading import removable
from provision.modules.verify import MANIFEST, verify_modules
from provision.pipeline.settings import Settings
from provision.progress import Note, Progress, silent


@dataclass(frozen=True, slots=True)
class Moved:
    """What was done with a driver's modules, or would be.

    Attributes:
        manifest: The artifact's.
        entry: Its folder in the store.
        modules: The modules that were loaded or unloaded, in their order.
        conflicts: The kernel's own modules that were unloaded for them.
    """

    manifest: Manifest
    entry: Path
    modules: tuple[str, ...]
    conflicts: tuple[str, ...] = ()


def stored_drivers(root: Path) -> list[str]:
    """Return the drivers that have an artifact in use in a host's store."""
    folders = sorted((root / STORE).glob("*"))
    return [folder.name for folder in folders if (folder / "current").is_symlink()]


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
    entry = _entry(layout)
    manifest = load_json(entry / MANIFEST, Manifest)
    require_kernel(manifest, settings.root)
    if dry_run:
        wanted = loadable(entry, manifest, root=settings.root)
        conflicts = loaded_conflicts(manifest, loaded_modules(settings.root))
        return Moved(manifest, entry, tuple(module.name for module in wanted), conflicts)
    with lock(layout.lock, on_wait=lambda: progress(Note(f"waiting for who works on {driver}"))):
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
    return Moved(manifest, entry, loaded, conflicts)


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
    entry = _entry(layout)
    manifest = load_json(entry / MANIFEST, Manifest)
    if dry_run:
        names = [module.name for module in manifest.modules]
        devices = devices_of(manifest)
        return Moved(manifest, entry, removable(names, devices=devices, root=settings.root))
    with lock(layout.lock, on_wait=lambda: progress(Note(f"waiting for who works on {driver}"))):
        return Moved(manifest, entry, unload(manifest, root=settings.root, progress=progress))


def _entry(layout: Layout) -> Path:
    """Return the artifact for the running kernel: its own link's, else the one in use.

    Raises:
        NotFoundError: There is none.
        ProvisionError: A link leads nowhere.
    """
    try:
        running = (layout.root / "proc/sys/kernel/osrelease").read_text().strip()
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
    if not link.is_dir():
        raise ProvisionError(
            f"'{link}' points to an artifact that is gone.",
            resolution=f"Install it anew: provision install {layout.driver}.",
        )
    return link.resolve()
