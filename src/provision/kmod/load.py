"""Loads the modules of an artifact into the running kernel, and unloads them, by its loader.

What the loader can't say is found out here: who uses a module, and why the kernel refused one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, Self

from provision.errors import ExitCode, InUseError, NotFoundError, ProvisionError
from provision.files import in_root
from provision.host.initramfs import IF_IT_COMES_BACK
from provision.kmod.loaded import LoadedModule, User, loaded_modules, other_builds, users_of
from provision.kmod.loader import LOADER, Options, load_order, write_loader
from provision.manifest import Manifest, Module
from provision.progress import Note, report
from provision.run import Completed, run

# Longer than any record: https://docs.kernel.org/admin-guide/abi-testing.html, /dev/kmsg.
_RECORD = 8192
_LOG_LINES = 8
SECURE_BOOT_HOW_TO = "docs/how-to/secure-boot.md"
_SIGN = (
    "Sign modules with a key of yours ([signing] in /etc/provision/provision.toml) and enrol its"
    f" certificate with 'mokutil --import': {SECURE_BOOT_HOW_TO}."
)
_SIGN_AGAIN = "sign it again: provision install --again IMAGE"
_REBUILD = "Build it for this kernel: provision apply"
_SYMBOLS = "it needs symbols that the kernel {kernel} and its loaded modules don't have"
_FIND_SYMBOLS = (
    "A module that it depends on is missing or of another build: 'provision verify DRIVER', and see"
    " that the kernel's own modules are all installed (linux-modules-extra and the like)."
)
# Of a reason that is not known here.
SEE_LOG = "See the kernel's log: journalctl -k, or dmesg."
_KEYS = "this kernel accepts only modules signed with a key that it knows, and this one"


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


class UnfitModuleError(ProvisionError):
    """A module does not fit the running kernel: no other moment, key or setting would help."""


class _Cause(NamedTuple):
    """A reason of the kernel, by what modprobe printed and what the kernel logged meanwhile."""

    # One of these was printed; empty: no matter what.
    said: tuple[str, ...]
    # This was logged; None: no matter what.
    logged: str | None
    # With the module, the kernel, and the groups of ``logged`` (the first of all its matches).
    what: str
    resolution: str
    kind: type[ProvisionError] = ProvisionError


_SIGNATURE = ("Key was rejected by service", "Required key not available", "Bad message")
# Of kernel/module/main.c, version.c and signing.c, and security/lockdown/lockdown.c. About a
# signature that does not verify, the kernel logs nothing. The first that fits is the reason.
_CAUSES = (
    _Cause(_SIGNATURE, "unsigned module", f"{_KEYS} is not signed", _SIGN),
    _Cause(
        _SIGNATURE,
        "unsupported crypto",
        f"{_KEYS} has a signature with a digest that it does not have",
        f'Set hash = "sha256" in [signing] of /etc/provision/provision.toml, and {_SIGN_AGAIN}.',
    ),
    *(
        _Cause(said, logged, f"{_KEYS} is signed with a key that it does not know", _SIGN)
        for said, logged in (
            (_SIGNATURE, "unavailable key"),
            (("Required key not available",), None),
        )
    ),
    _Cause(
        ("Bad message",),
        None,
        f"{_KEYS} has a signature that it can't read",
        f"The module is damaged; {_SIGN_AGAIN}.",
        UnfitModuleError,
    ),
    _Cause(
        _SIGNATURE,
        None,
        f"{_KEYS} has a signature that does not verify with any of them",
        "See whether it was changed since it was signed (provision verify DRIVER), and whether its"
        f" key's certificate is enrolled (mokutil --list-enrolled): {SECURE_BOOT_HOW_TO}.",
    ),
    _Cause(
        ("Operation not permitted", "Permission denied"),
        "Lockdown",
        "the kernel is locked down (Secure Boot) and the module is not signed with a key that it"
        " knows",
        _SIGN,
    ),
    _Cause(
        ("Operation not permitted",),
        None,
        "the kernel does not permit it",
        "Run this as root on the host itself (not in a container without CAP_SYS_MODULE); see"
        " 'provision doctor' for lockdown and kernel.modules_disabled.",
    ),
    _Cause(
        ("Permission denied",),
        None,
        "a security module (SELinux) does not permit it",
        "The store's modules need the type modules_object_t: 'chcon -R -t modules_object_t"
        " /var/lib/provision/DRIVER/current/lib/modules'; 'ausearch -m avc' shows the denial.",
    ),
    _Cause(
        (),
        r"version magic '\s*([^']*?)\s*' should be '\s*([^']*?)\s*'",
        "it was built for another kernel ('{0}', and this one is '{1}')",
        _REBUILD,
        UnfitModuleError,
    ),
    _Cause(
        (),
        r"disagrees about version of symbol (\S+)",
        "it was built with other headers: the symbol '{0}' has another version in the running"
        " kernel {kernel}",
        _REBUILD,
        UnfitModuleError,
    ),
    _Cause(
        ("Exec format error", "Invalid module format"),
        None,
        "its format is not this kernel's",
        _REBUILD,
        UnfitModuleError,
    ),
    _Cause((), r"Unknown symbol (\S+)", f"{_SYMBOLS} ({{all}})", _FIND_SYMBOLS, UnfitModuleError),
    _Cause(("Unknown symbol",), None, _SYMBOLS, _FIND_SYMBOLS, UnfitModuleError),
    _Cause(
        (),
        r"(?:`.*' invalid for parameter|unknown parameter) .?(\w+)",
        "its parameter '{0}' has a value that it does not take",
        "Correct the options of this driver in /etc/provision/provision.toml, or in"
        " /etc/modprobe.d; 'modinfo -p {module}' lists what there is.",
    ),
    _Cause(
        ("No such device",),
        None,
        "no hardware that it drives was found, or another driver holds it",
        "'provision facts' shows the devices and what drives each; 'provision doctor' looks for"
        " modules that are in the way.",
        NotFoundError,
    ),
)


class Reason(NamedTuple):
    """Why a kernel did not take a module, what to do, and the class of the error."""

    what: str
    resolution: str
    kind: type[ProvisionError]


def reason_of(module: str, kernel: str, said: str, log: Sequence[str]) -> Reason:
    """Return why a module could not be loaded, by what modprobe and the kernel said."""
    for cause in _CAUSES:
        found = [match for line in log if (match := re.search(cause.logged or "$^", line))]
        is_said = not cause.said or any(text in said for text in cause.said)
        if is_said and (found or cause.logged is None):
            first = [match[match.re.groups and 1] for match in found]
            words = {"module": module, "kernel": kernel, "all": ", ".join(sorted(set(first)))}
            what = cause.what.format(*(found[0].groups() if found else ()), **words)
            return Reason(what, cause.resolution.format(**words), cause.kind)
    last = (said.strip().splitlines() or ["modprobe gave no reason"])[-1].rpartition(": ")[2]
    return Reason(last, SEE_LOG, ProvisionError)


def explain(module: str, kernel: str, said: str, log: Sequence[str]) -> ProvisionError:
    """Return the error to raise for a module that could not be loaded."""
    reason = reason_of(module, kernel, said, log)
    details = [*said.splitlines(), *log[-_LOG_LINES:]]
    return reason.kind(
        f"The module '{module}' could not be loaded: {reason.what}.",
        resolution=reason.resolution,
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


class ConflictError(ModuleInUseError):
    """A module conflicts with a driver, and can't be unloaded while this kernel runs."""

    def __init__(self, driver: str, users: Iterable[User]) -> None:
        users = tuple(users)
        names = ", ".join(dict.fromkeys(user.module for user in users))
        super().__init__(
            f"{names} is in the way of {driver} and in use.",
            users,
            resolution=f"Reboot: /etc/modprobe.d/provision-{driver}.conf then keeps it from being"
            f" loaded. {IF_IT_COMES_BACK}",
        )


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
    try:
        running = in_root(root, "proc/sys/kernel/osrelease").read_text().strip()
    except OSError as error:
        raise NotFoundError(
            f"No kernel runs under '{root}', so nothing can be loaded there.",
            resolution="Run this on the host itself.",
        ) from error
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
    return ConflictError(driver, _users(conflicts, root))


def _refused(manifest: Manifest, done: Completed, log: KernelLog) -> ProvisionError:
    """Return why the loader failed: mostly, the kernel refused a module."""
    driver = manifest.pin.driver.name
    lines = [line for line in done.stderr.splitlines() if not line.startswith(f"{driver}: ")]
    refused = re.search(rf"^{re.escape(driver)}: (.+) could not be loaded:", done.stderr, re.M)
    if refused is not None:
        names = refused[1].split()
        said = {n: [line for line in lines if f"'{n}'" in line] for n in names}
        named = [name for name in names if said[name]] or names
        text = "\n".join(line for name in named for line in said[name] or lines[-1:])
        release = manifest.pin.kernel.release
        return explain(", ".join(named), release, text, log.lines())
    last = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
    return ProvisionError(
        f"The modules of {driver} could not be loaded: {last.removeprefix(f'{driver}: ')}.",
        resolution="See what is wrong: provision doctor",
        details="\n".join(lines) or None,
    )
