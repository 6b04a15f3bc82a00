"""Takes modules out of the kernel, those of the kernel's own that hold a driver's hardware too.

That they aren't loaded at the next boot is the business of a file in /etc/modprobe.d, which comes
and goes with the driver (``provision.store``); here they are taken out of the running kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from provision.errors import InUseError, ProvisionError
from provision.kmod.loaded import LoadedModule, User, loaded_modules, users_of
from provision.manifest import Manifest
from provision.progress import Note, Progress, silent
from provision.run import run


class ModuleInUseError(InUseError):
    """Modules that can't be unloaded, because of those who use them.

    Args:
        message: What could not be done.
        users: Who uses them.
        resolution: What to do next; None: stop them, or reboot.
    """

    def __init__(
        self, message: str, users: Iterable[User], *, resolution: str | None = None
    ) -> None:
        self.users = tuple(users)
        super().__init__(
            message,
            resolution=resolution
            or "Stop what uses it and run the command again, or reboot: what is current then gets"
            " loaded.",
            details="\n".join(map(str, self.users)) or None,
        )

    def members(self) -> dict[str, object]:
        """Return each user."""
        return {
            "users": [
                {"module": user.module, "kind": user.kind, "name": user.name} for user in self.users
            ]
        }


def unload_modules(
    names: Iterable[str],
    *,
    devices: Iterable[str] = (),
    root: Path = Path("/"),
    progress: Progress = silent,
) -> tuple[str, ...]:
    """Unload those of some modules that are loaded: all of them, or none if one is in use.

    Args:
        names: The modules.
        devices: Globs below ``/dev`` of what they serve, to name who has it open.
        root: Root of the running host.
        progress: Receives what is done.

    Returns:
        The modules that were unloaded, in their order.

    Raises:
        ModuleInUseError: Someone uses one of them.
        ProvisionError: The kernel refused for another reason.
    """
    wanted = removable(names, devices=devices, root=root)
    for name in wanted:
        progress(Note(f"unload {name}"))
        _remove(name)
    return wanted


def removable(
    names: Iterable[str], *, devices: Iterable[str] = (), root: Path = Path("/")
) -> tuple[str, ...]:
    """Return those of some modules that are loaded, in the order in which they can go.

    Arguments and errors as ``unload_modules``, which this is the first half of.
    """
    loaded = loaded_modules(root)
    wanted = unload_order(names, loaded)
    if users := users_of(wanted, loaded, devices=devices, root=root):
        raise ModuleInUseError(f"{_listed(users)} can't be unloaded: in use.", users)
    return wanted


def unload_order(names: Iterable[str], loaded: Mapping[str, LoadedModule]) -> tuple[str, ...]:
    """Return the loaded ones of some modules, each after those that use it."""
    left = [name for name in names if name in loaded]
    order: list[str] = []
    while left:
        free = [n for n in left if not set(loaded[n].holders) & set(left)]
        # Two that hold each other: the kernel will say so.
        step = free or left
        order += step
        left = [name for name in left if name not in step]
    return tuple(order)


def _remove(name: str) -> None:
    done = run(["rmmod", name], why=f"unload the module {name}", check=False)
    if done.returncode == 0:
        return
    if "in use" in done.stderr or "temporarily unavailable" in done.stderr:
        # Someone came in between looking and unloading.
        raise ModuleInUseError(
            f"{name} can't be unloaded: in use.", [User(name, "kernel", "someone, since just now")]
        )
    raise ProvisionError(
        f"The module '{name}' could not be unloaded.",
        resolution="Run the command as root; if it is, reboot.",
        details=done.stderr.strip() or None,
    )


def _listed(users: Iterable[User]) -> str:
    return ", ".join(dict.fromkeys(user.module for user in users))


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
            " loaded. Should it come back, it is in the initramfs: make that again"
            " (update-initramfs -u, dracut -f).",
        ) from error
