"""Unloads modules: a driver's own, and those of the kernel that hold the driver's hardware.

A file in /etc/modprobe.d keeps the latter from being loaded at the next boot; it comes and goes
with the driver (``provision.store``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from provision.errors import InUseError, ProvisionError
from provision.host.initramfs import IF_IT_COMES_BACK
from provision.kmod.loaded import LoadedModule, User, loaded_modules, users_of
from provision.manifest import Manifest
from provision.progress import Note, Progress, silent
from provision.run import run


class ModuleInUseError(InUseError):
    """Modules can't be unloaded, because they are in use.

    Args:
        message: What could not be done.
        users: The users of the modules.
        resolution: What to do next; None: stop the users, or reboot.
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
        """Return each user, for the error's JSON document."""
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
    reload: Callable[[Sequence[str]], None] | None = None,
) -> tuple[str, ...]:
    """Unload the given modules, if they are loaded: all of them, or none if one is in use.

    Args:
        names: The modules.
        devices: Globs below ``/dev`` of their devices, by which processes are found.
        root: Root of the running host.
        progress: Receives a note of each step.
        reload: Loads modules again, in this order, if one that was opened meanwhile stays: half of
            a driver serves nobody.

    Returns:
        The unloaded modules, in their order.

    Raises:
        ModuleInUseError: A module is in use.
        ProvisionError: The kernel refused for another reason.
    """
    ordered = removable(names, devices=devices, root=root)
    for at, name in enumerate(ordered):
        progress(Note(f"unload {name}"))
        try:
            _remove(name)
        except ProvisionError:
            if at and reload is not None:
                progress(Note(f"{name} stays, so the others are loaded again"))
                reload(ordered[:at][::-1])
            raise
    return ordered


def removable(
    names: Iterable[str], *, devices: Iterable[str] = (), root: Path = Path("/")
) -> tuple[str, ...]:
    """Return the loaded ones of the given modules, in the order in which they can be unloaded.

    Arguments and errors as ``unload_modules``, which calls this first.
    """
    loaded = loaded_modules(root)
    ordered = unload_order(names, loaded)
    if users := users_of(ordered, loaded, devices=devices, root=root):
        raise ModuleInUseError(f"{_listed(users)} can't be unloaded: in use.", users)
    return ordered


def unload_order(names: Iterable[str], loaded: Mapping[str, LoadedModule]) -> tuple[str, ...]:
    """Return the loaded ones of the given modules, each after those that use it."""
    left = [name for name in names if name in loaded]
    order: list[str] = []
    while left:
        free = [n for n in left if not set(loaded[n].holders) & set(left)]
        # If two modules hold each other, the kernel refuses.
        step = free or left
        order += step
        left = [name for name in left if name not in step]
    return tuple(order)


def _remove(name: str) -> None:
    done = run(["rmmod", name], why=f"unload the module {name}", check=False)
    if done.returncode == 0:
        return
    if "in use" in done.stderr or "temporarily unavailable" in done.stderr:
        # It was opened after it was looked at.
        raise ModuleInUseError(
            f"{name} can't be unloaded: in use.",
            [User(name, "kernel", "a process that has just opened it")],
        )
    raise ProvisionError(
        f"The module '{name}' could not be unloaded.",
        resolution="Run the command as root; if it is, reboot.",
        details=done.stderr.strip() or None,
    )


def _listed(users: Iterable[User]) -> str:
    return ", ".join(dict.fromkeys(user.module for user in users))


def _load_again(names: Sequence[str]) -> None:
    """Load modules of the kernel; a blacklist does not keep those that are named."""
    run(["modprobe", "-a", *names], why="load the modules again", check=False)


class ConflictError(ModuleInUseError):
    """A module conflicts with a driver, and can't be unloaded while this kernel runs."""


def loaded_conflicts(manifest: Manifest, loaded: Mapping[str, LoadedModule]) -> tuple[str, ...]:
    """Return the loaded modules that conflict with an artifact's."""
    return tuple(name for name in manifest.host.conflicts if name in loaded)


def unload_conflicts(
    manifest: Manifest, *, root: Path = Path("/"), progress: Progress = silent
) -> tuple[str, ...]:
    """Unload the modules that conflict with an artifact's.

    Returns:
        The unloaded modules.

    Raises:
        ConflictError: A module is in use; after a reboot it will not be loaded.
        ProvisionError: The kernel refused for another reason.
    """
    driver = manifest.pin.driver.name
    try:
        return unload_modules(
            manifest.host.conflicts, root=root, progress=progress, reload=_load_again
        )
    except ModuleInUseError as error:
        names = ", ".join(dict.fromkeys(user.module for user in error.users))
        raise ConflictError(
            f"{names} is in the way of {driver} and in use.",
            error.users,
            resolution=f"Reboot: /etc/modprobe.d/provision-{driver}.conf then keeps it from being"
            f" loaded. {IF_IT_COMES_BACK}",
        ) from error
