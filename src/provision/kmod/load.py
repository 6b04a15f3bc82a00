"""Loads and unloads modules, by an artifact's loader; checks that a loaded driver works.

What the loader can't say is found out here: who uses a module, and why the kernel refused one.
After a load, facts about the driver's devices are collected; those that can't be found out or
written are a warning, and fail nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Self

from provision.config import Config
from provision.errors import ExitCode, InUseError, NotFoundError, ProvisionError, choices
from provision.explain import Explanation, Kind, explain, last_line
from provision.files import glob_in_root, in_root, text_in_root
from provision.host import STORE
from provision.host.boot import IF_IT_COMES_BACK
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
from provision.kmod.loader import LOADER, Options, load_order, write_loader
from provision.kmod.modules import LoadedModule, User, loaded_modules, other_builds, users_of
from provision.kmod.verify import stored_manifest, verify_modules
from provision.manifest import Manifest, Module, load_manifest
from provision.progress import Note, report
from provision.run import Completed, TimeLimitError, run
from provision.store.entries import linked_kernels, not_installed, stored_drivers
from provision.store.layout import VENDOR_CONFIGS, Layout, changing, switching
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
        return {"users": [user._asdict() for user in self.users]}


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


_LINES = 20
# A folder with it has a whole distro's libraries, which fit no program of this host.
_C_LIBRARY = "libc.so.6"


class CheckFailedError(ProvisionError):
    """A driver was loaded and does not work, as its own check says."""


def run_check(entry: Path, manifest: Manifest) -> None:
    """Run the check of a store entry whose modules are loaded and whose user space is active.

    Raises:
        CheckFailedError: The program failed, or did not end in time.
    """
    check, program = manifest.check, _program(manifest)
    if check is None or program is None:
        return
    folder = in_root(entry, "driver")
    paths = [PurePosixPath(file.path) for file in manifest.files]
    named = {path.parent for path in paths if path.name == _C_LIBRARY}
    libraries = {
        PurePosixPath(file.path).parent
        for file in manifest.files
        if file.kind == "library" and file.elf_class != 32  # noqa: PLR2004 - bits
    }
    places = ":".join(str(in_root(folder, path)) for path in sorted(libraries - named))
    argv: list[str | Path] = ["env", f"LD_LIBRARY_PATH={places}", in_root(folder, program)]
    argv += check.command[1:]
    why = f"check {manifest.pin.driver.name}"
    try:
        done = run(argv, why=why, check=False, timeout=check.seconds)
    except TimeLimitError as error:
        problem = f"it did not end within {check.seconds} s"
        raise _failed(manifest, problem, "") from error
    if done.returncode != 0:
        raise _failed(
            manifest, f"it ended with exit status {done.returncode}", done.stdout + done.stderr
        )


def why_unchecked(manifest: Manifest) -> str | None:
    """Return why an artifact with a check can't be checked, which is no failure of it."""
    if manifest.check is None or _program(manifest) is not None:
        return None
    name = manifest.check.command[0]
    programs = [PurePosixPath(file.path).name for file in manifest.files if file.kind == "binary"]
    return f"it is not checked: its artifact has no '{name}'. {choices(name, programs)}"


def _program(manifest: Manifest) -> PurePosixPath | None:
    name = manifest.check.command[0] if manifest.check else ""
    paths = [PurePosixPath(file.path) for file in manifest.files]
    return next((path for path in paths if name in {str(path), path.name}), None)


def _failed(manifest: Manifest, how: str, said: str) -> CheckFailedError:
    driver = manifest.pin.driver
    command = " ".join(manifest.check.command) if manifest.check else ""
    return CheckFailedError(
        f"{driver.name} {driver.version} was loaded and does not work: '{command}': {how}.",
        resolution="See what the driver says in the kernel's log: journalctl --dmesg. To try this"
        " version again: provision apply --retry",
        details="\n".join(said.splitlines()[-_LINES:]) or None,
    )


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


class LoadResult(NamedTuple):
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
