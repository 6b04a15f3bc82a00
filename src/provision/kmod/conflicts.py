"""Modules of the kernel's own that hold the hardware of a driver, such as nouveau of NVIDIA's.

That they aren't loaded at the next boot is the business of a file in /etc/modprobe.d, which comes
and goes with the driver (``provision.store``); here they are taken out of the running kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from provision.kmod.loaded import LoadedModule
from provision.kmod.unload import ModuleInUseError, unload_modules
from provision.manifest import Manifest
from provision.progress import Progress, silent


class ConflictError(ModuleInUseError):
    """A module that is in the way of a driver and can't be unloaded while this kernel runs."""


def loaded_conflicts(manifest: Manifest, loaded: Mapping[str, LoadedModule]) -> tuple[str, ...]:
    """Return the loaded modules that are in the way of an artifact's."""
    return tuple(name for name in manifest.host.conflicts if name in loaded)


def unload_conflicts(
    manifest: Manifest, *, root: Path = Path("/"), progress: Progress = silent
) -> tuple[str, ...]:
    """Unload what is in the way of an artifact's modules.

    Returns:
        The modules that were unloaded.

    Raises:
        ConflictError: One is in use; after a reboot it will not be loaded.
        ProvisionError: The kernel refused for another reason.
    """
    driver = manifest.pin.driver.name
    try:
        return unload_modules(manifest.host.conflicts, root=root, progress=progress)
    except ModuleInUseError as error:
        names = ", ".join(dict.fromkeys(user.module for user in error.users))
        raise ConflictError(
            f"{names} is in the way of {driver} and in use.",
            error.users,
            resolution=f"Reboot: /etc/modprobe.d/provision-{driver}.conf then keeps it from being"
            " loaded. Should it come back, it is in the initramfs: make that anew"
            " (update-initramfs -u, dracut -f).",
        ) from error
