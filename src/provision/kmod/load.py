"""Loads the modules of an artifact into the running kernel, and unloads them, by its loader.

What the loader can't say is found out here: who uses a module, and why the kernel refused one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Self

from provision.errors import ExitCode, InUseError, NotFoundError, ProvisionError
from provision.explain import Explanation, Kind, explain, last_line
from provision.files import in_root, text_in_root
from provision.host.initramfs import IF_IT_COMES_BACK
from provision.kmod.loaded import LoadedModule, User, loaded_modules, other_builds, users_of
from provision.kmod.loader import LOADER, Options, load_order, write_loader
from provision.manifest import Manifest, Module
from provision.progress import Note, report
from provision.run import Completed, run
from provision.store.state import IN_USE

# Longer than any record: https://docs.kernel.org/admin-guide/abi-testing.html, /dev/kmsg.
_RECORD = 8192
_LOG_LINES = 8
# Of a reason that is not known here.
SEE_LOG = "See the kernel's log: journalctl -k, or dmesg."


class KernelLog:
    """The kernel's log from the moment at which this is entered.

    Args:
        whole: Whether to begin with the oldest line that the kernel still has.
    """

    def __init__(self, root: Path, *, whole: bool = False) -> None:
        self._path = in_root(root, "dev/kmsg")
        self._from = os.SEEK_SET if whole else os.SEEK_END
        self._handle: int | None = None

    def __enter__(self) -> Self:
        try:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._handle, 0, self._from)
        except OSError:
            # Containers and unprivileged users can't read it; reasons are less exact then.
            self.__exit__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @property
    def is_readable(self) -> bool:
        """Whether the log can be read."""
        return self._handle is not None

    def lines(self) -> list[str]:
        """Return the messages that have been logged since, without their heads."""
        records = b"".join(self._records()).decode(errors="replace").splitlines()
        # Continuation lines begin with a blank and have fields of the device, not text.
        return [r.partition(";")[2] for r in records if ";" in r and not r.startswith(" ")]

    def _records(self) -> Iterator[bytes]:
        while self._handle is not None:
            try:
                record = os.read(self._handle, _RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:
                # Records were overwritten; the next read goes on after the gap.
                continue
            if not record:
                return
            yield record


# By which modprobe says which module it could not load, before the reason.
_SAID = re.compile(r"^.*?could not insert '[^']*': ", re.MULTILINE)


def reason_of(said: str, log: Sequence[str], names: Mapping[str, str]) -> Explanation | None:
    """Return what a kernel's refusal means, by what it logged and what modprobe said.

    Args:
        names: ``kernel``, and the ``artifact`` as 'provision verify' knows it.
    """
    text = "\n".join([*log, _SAID.sub("", said)])
    return explain("kernel", text, names)


def refusal(module: str, said: str, log: Sequence[str], names: Mapping[str, str]) -> ProvisionError:
    """Return the error to raise for a module that could not be loaded."""
    reason = reason_of(said, log, names)
    details = [*said.splitlines(), *log[-_LOG_LINES:]]
    cause = reason.cause if reason else last_line(said).rpartition(": ")[2]
    kind = ProvisionError if reason is None or reason.kind is Kind.DENIED else reason.kind.error
    return kind(
        f"The module '{module}' could not be loaded: {cause}.",
        resolution=reason.what_to_do if reason else SEE_LOG,
        details="\n".join(line for line in details if line.strip()) or None,
    )


# Seconds for one module: more than the loader's own limit.
_LIMIT_S = 120.0
_IS_BUSY = re.compile("in use|temporarily unavailable")


class ModuleInUseError(InUseError):
    """Modules can't be unloaded, because they are in use.

    Args:
        resolution: What to do next; None: stop the users, or reboot.
    """

    reason = IN_USE

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
        return {"users": [asdict(user) for user in self.users]}


def loaded_conflicts(manifest: Manifest, loaded: Mapping[str, LoadedModule]) -> tuple[str, ...]:
    """Return the loaded modules that conflict with an artifact's."""
    return tuple(name for name in manifest.host.conflicts if name in loaded)


def load(
    entry: Path, manifest: Manifest, *, options: Options | None = None, root: Path
) -> tuple[str, ...]:
    """Load the modules of a store entry that are not loaded yet, and set up their devices.

    First, conflicting modules are unloaded, the firmware is linked, and the modules of the kernel
    that these need are loaded. Device nodes are made afterwards. If a module can't be loaded, those
    that this call has loaded are unloaded again.

    Args:
        options: Module parameters; they take precedence over those of /etc/modprobe.d.
    """
    missing = loadable(entry, manifest, root=root)
    with KernelLog(root) as log:
        done = _run_loader("load", entry, manifest, options, root)
        if done.returncode == ExitCode.IN_USE:
            raise _conflict(manifest, root, done)
        if done.returncode != 0:
            raise _refused(manifest, done, log)
    loaded = loaded_modules(root)
    return tuple(module.name for module in missing if module.name in loaded)


def loadable(entry: Path, manifest: Manifest, *, root: Path) -> list[Module]:
    """Return the modules of a store entry that are not loaded, in the order of loading.

    Arguments and errors as ``load``, which calls this first.
    """
    require_kernel(manifest, root)
    loaded = loaded_modules(root)
    if others := other_builds(manifest, entry, loaded):
        names = ", ".join(others)
        driver = manifest.pin.driver.name
        raise ModuleInUseError(
            f"{names} is loaded already, from another build of {driver}.",
            users_of(others, loaded, devices=devices_of(manifest), root=root),
            resolution=f"Unload it first (provision unload {driver}), or reboot.",
        )
    missing = [module for module in load_order(manifest) if module.name not in loaded]
    # If only optional modules are missing, the kernel refused them before, and would again.
    return missing if any(m.name not in manifest.host.optional for m in missing) else []


def unload(
    entry: Path, manifest: Manifest, *, options: Options | None = None, root: Path
) -> tuple[str, ...]:
    """Unload the modules of an artifact, whatever build of them is loaded; never by force.

    Args:
        entry: The artifact's folder, from which its own modules are loaded again if one stays.
    """
    names = removable(manifest, root=root)
    done = _run_loader("unload", entry, manifest, options, root)
    if done.returncode == ExitCode.IN_USE and _IS_BUSY.search(done.stderr):
        # It was opened after it was looked at.
        raise ModuleInUseError(
            f"{manifest.pin.driver.name} can't be unloaded: in use.",
            _users(names, root, devices_of(manifest)),
        )
    if done.returncode != 0:
        raise ProvisionError(
            f"The modules of {manifest.pin.driver.name} could not be unloaded.",
            resolution="Run the command as root; if it is, reboot.",
            details=done.stderr.strip() or None,
        )
    return names


def removable(manifest: Manifest, *, root: Path) -> tuple[str, ...]:
    """Return the loaded modules of an artifact, each after those that use it."""
    loaded = loaded_modules(root)
    names = tuple(m.name for m in reversed(load_order(manifest)) if m.name in loaded)
    if users := users_of(names, loaded, devices=devices_of(manifest), root=root):
        listed = ", ".join(dict.fromkeys(user.module for user in users))
        raise ModuleInUseError(f"{listed} can't be unloaded: in use.", users)
    return names


def devices_of(manifest: Manifest) -> tuple[str, ...]:
    """Return globs below ``/dev`` of the devices that a driver serves."""
    features = manifest.container.features.values()
    return tuple(dict.fromkeys(device for feature in features for device in feature.devices))


def require_kernel(manifest: Manifest, root: Path) -> None:
    """Refuse an artifact that is for another kernel than the running one."""
    release = manifest.pin.kernel.release
    running = text_in_root(root, "proc/sys/kernel/osrelease")
    if running is None:
        raise NotFoundError(
            f"No kernel runs under '{root}', so nothing can be loaded there.",
            resolution="Run this on the host itself.",
        )
    if running != release:
        raise NotFoundError(
            f"The artifact of {manifest.pin.driver.name} is for the kernel {release}, and"
            f" {running} runs.",
            resolution="Build it for the running kernel: provision apply.",
        )


def _run_loader(
    verb: str, entry: Path, manifest: Manifest, options: Options | None, root: Path
) -> Completed:
    """Run a loader that is up to date; its errors hold what other programs said, too."""
    write_loader(entry, options or {}, root=root)
    done = run(
        ["/bin/sh", entry / LOADER, "--root", root, verb],
        why=f"{verb} the modules of {manifest.pin.driver.name}",
        check=False,
        timeout=_LIMIT_S * (len(manifest.modules) + 2),
    )
    for line in done.stderr.splitlines():
        own = line.removeprefix(f"{manifest.pin.driver.name}: ")
        if own != line:
            report(Note(own))
    return done


def _users(names: tuple[str, ...], root: Path, devices: Iterable[str] = ()) -> tuple[User, ...]:
    found = users_of(names, loaded_modules(root), devices=devices, root=root)
    return found or (User(names[0], "kernel", "a process that has just opened it"),)


def _conflict(manifest: Manifest, root: Path, done: Completed) -> ProvisionError:
    driver = manifest.pin.driver.name
    conflicts = loaded_conflicts(manifest, loaded_modules(root))
    if not conflicts:
        return ProvisionError(
            f"The modules of {driver} could not be loaded: others are in use.",
            resolution="Reboot.",
            details=done.stderr.strip() or None,
        )
    users = _users(conflicts, root)
    names = ", ".join(dict.fromkeys(user.module for user in users))
    return ModuleInUseError(
        f"{names} is in the way of {driver} and in use.",
        users,
        resolution=f"Reboot: /etc/modprobe.d/provision-{driver}.conf then keeps it from being"
        f" loaded. {IF_IT_COMES_BACK}",
    )


def nowhere(driver: str, said: Iterable[str]) -> list[str]:
    """Return what a loader said of names of the build that no module here has."""
    own = f"{driver}: "
    lines = (line.removeprefix(own) for line in said if line.startswith(own))
    return [line for line in lines if line.startswith("no module ")]


def _refused(manifest: Manifest, done: Completed, log: KernelLog) -> ProvisionError:
    """Return why the loader failed: mostly, the kernel refused a module."""
    driver = manifest.pin.driver.name
    lines = [line for line in done.stderr.splitlines() if not line.startswith(f"{driver}: ")]
    lacking = nowhere(driver, done.stderr.splitlines())
    refused = re.search(rf"^{re.escape(driver)}: (.+) could not be loaded:", done.stderr, re.M)
    if refused is not None:
        names = refused[1].split()
        lines_of = {n: [line for line in lines if f"'{n}'" in line] for n in names}
        named = [name for name in names if lines_of[name]] or names
        text = "\n".join([*(line for n in named for line in lines_of[n] or lines[-1:]), *lacking])
        known = {"kernel": manifest.pin.kernel.release, "artifact": driver}
        return refusal(", ".join(named), text, log.lines(), known)
    last = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
    return ProvisionError(
        f"The modules of {driver} could not be loaded: {last.removeprefix(f'{driver}: ')}.",
        resolution="See what is wrong: provision doctor",
        details="\n".join(lines) or None,
    )
