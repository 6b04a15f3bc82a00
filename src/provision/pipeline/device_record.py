"""Facts about the devices of drivers: collected when a driver is loaded, gone when it is unloaded.

They never fail anything: what can't be found out, or can't be written, is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from provision.documents import load_json
from provision.errors import NotFoundError, ProvisionError
from provision.host.devices.reading import VENDORS, Collected, collect
from provision.host.devices.record import recording, remove_facts
from provision.kmod.verify import MANIFEST
from provision.manifest import Manifest
from provision.progress import Note, Progress, silent
from provision.rootfs import glob_in_root, in_root
from provision.store.layout import STORE, VENDOR_CONFIGS, Layout

_NVIDIA = "nvidia"
_LIBRARY = "libnvidia-ml.so.1"
# What the names of the vendor files begin with that oci-decorator is shipped with.
_SHIPPED = "oci-"


def collect_loaded(
    root: Path, entry: Path, manifest: Manifest, *, progress: Progress = silent
) -> tuple[str, ...]:
    """Collect the facts of a driver's devices, if it is one that has any.

    Args:
        root: Root of the host.
        entry: The artifact that is loaded.
        manifest: Its manifest.
        progress: Gets what could not be found out.

    Returns:
        What could not be found out or written.
    """
    if _NVIDIA not in (manifest.container.interfaces or ()):
        return ()
    name = manifest.pin.driver.name
    try:
        problems = collect(
            root, name, source=_NVIDIA, libraries=_libraries(entry, manifest)
        ).problems
    except (OSError, ProvisionError) as error:
        problems = (f"the facts of its devices could not be written: {error}",)
    for problem in problems:
        progress(Note(f"{name}: {problem}"))
    return problems


@contextmanager
def unloading(root: Path, driver: str, *, progress: Progress = silent) -> Iterator[None]:
    """Unload a driver within this block; the facts of its devices go with it.

    Meanwhile no process collects facts, which would keep the driver in use.

    Raises:
        InUseError: Another process collects for too long.
        OSError: /run can't be written.
    """
    with recording(root):
        yield
        try:
            remove_facts(root, driver)
        except OSError as error:
            progress(Note(f"The facts of {driver}'s devices could not be removed: {error}"))


def refresh(root: Path, vendor: str | None = None) -> list[Collected]:
    """Collect the facts of a host's devices: of drivers in its store, and of others' drivers.

    Args:
        root: Root of the host.
        vendor: Only this one's; None: all.

    Returns:
        What there is, or was until now.

    Raises:
        NotFoundError: No facts can be collected for that vendor.
        InUseError: Another process collects for too long.
        OSError: /run can't be written.
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
        collect(root, name, source=_NVIDIA, libraries=stored[name])
        if name in stored
        else collect(root, name, source=others[name])
        for name in known
        if vendor in {None, name}
    ]
    return [one for one in found if one.facts is not None or one.changed or vendor]


def _shipped(root: Path) -> dict[str, str]:
    """Return the vendors of files that were put in place as they are shipped, by their names.

    oci-decorator looks for facts by the name of the vendor file, such as ``oci-amd``.
    """
    names = [path.stem for path in glob_in_root(root, f"{VENDOR_CONFIGS}/{_SHIPPED}*.json")]
    vendors = {name: name.removeprefix(_SHIPPED) for name in names}
    return {name: vendor for name, vendor in vendors.items() if vendor in VENDORS}


def _stored(root: Path) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """Yield the drivers in a host's store that serve NVIDIA's GPUs, with their libraries."""
    for link in glob_in_root(root, f"{STORE}/*/current"):
        layout = Layout(root, link.parent.name)
        entries = [layout.linked(path) for path in (layout.current, layout.previous)]
        found: list[Path] = []
        serves = False
        for entry in entries:
            manifest = _manifest(entry)
            if entry is not None and manifest is not None:
                serves = serves or _NVIDIA in (manifest.container.interfaces or ())
                found += _libraries(entry, manifest)
        if serves:
            yield layout.driver, tuple(found)


def _manifest(entry: Path | None) -> Manifest | None:
    """Return an artifact's manifest; None: it is gone or damaged, which others report."""
    try:
        return load_json(entry / MANIFEST, Manifest) if entry is not None else None
    except (OSError, ProvisionError):
        return None


def _libraries(entry: Path, manifest: Manifest) -> tuple[Path, ...]:
    """Return where the artifact has NVML's library."""
    paths = [PurePosixPath(file.path) for file in manifest.files]
    folder = in_root(entry, "driver")
    return tuple(in_root(folder, path) for path in paths if path.name == _LIBRARY)
