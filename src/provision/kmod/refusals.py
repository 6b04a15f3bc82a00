"""Explains why the kernel refused a module, from modprobe's one line and the kernel's log."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from provision.errors import NotFoundError, ProvisionError
from provision.files import in_root

# Longer than any record: https://docs.kernel.org/admin-guide/abi-testing.html, /dev/kmsg.
_RECORD = 8192
# Of the kernel's log: kernel/module/main.c, version.c and signing.c, security/lockdown/lockdown.c.
_UNKNOWN_SYMBOL = re.compile(r"Unknown symbol (\S+)")
_OTHER_SYMBOL = re.compile(r"disagrees about version of symbol (\S+)")
_VERMAGIC = re.compile(r"version magic '(?P<is>[^']*)' should be '(?P<should>[^']*)'")
_PARAMETER = re.compile(r"(?P<value>`.*' invalid for parameter|unknown parameter) .?(?P<name>\w+)")
_SIGNATURE = ("Key was rejected by service", "Required key not available", "Bad message")
# What the kernel logs about signatures: kernel/module/signing.c. About one that does not verify it
# logs nothing.
_SIGNATURE_LOG = (
    ("unsigned module", "unsigned"),
    ("unsupported crypto", "digest"),
    ("unavailable key", "unknown"),
)
_LOG_LINES = 8
SECURE_BOOT_HOW_TO = "docs/how-to/secure-boot.md"
_SIGN = (
    "Sign modules with a key of yours ([signing] in /etc/provision/provision.toml) and enrol its"
    f" certificate with 'mokutil --import': {SECURE_BOOT_HOW_TO}."
)
_AGAIN = "sign it again: provision install --again DRIVER"
_SIGNATURE_REASONS = {
    "unsigned": ("is not signed", _SIGN),
    "unknown": ("is signed with a key that it does not know", _SIGN),
    "digest": (
        "has a signature with a digest that it does not have",
        f'Set hash = "sha256" in [signing] of /etc/provision/provision.toml, and {_AGAIN}.',
    ),
    "broken": ("has a signature that it can't read", f"The module is damaged; {_AGAIN}."),
    "": (
        "has a signature that does not verify with any of them",
        (
            "See whether it was changed since it was signed (provision verify DRIVER), and whether"
            f" its key's certificate is enrolled (mokutil --list-enrolled): {SECURE_BOOT_HOW_TO}."
        ),
    ),
}


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
            self.__exit__(None, None, None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
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

    def _records(self) -> list[bytes]:
        found: list[bytes] = []
        while self._handle is not None:
            try:
                record = os.read(self._handle, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # Records were overwritten; the next read goes on after the gap.
                continue
            if not record:
                break
            found.append(record)
        return found


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is known of a refusal."""

    module: str
    kernel: str
    # The output of modprobe.
    said: str
    # The messages that the kernel logged meanwhile.
    log: Sequence[str]

    def has(self, *texts: str) -> bool:
        """Return whether modprobe printed one of these texts."""
        return any(text in self.said for text in texts)

    def found(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the first match of a pattern in the log."""
        return next((match for line in self.log if (match := pattern.search(line))), None)


class UnfitModuleError(ProvisionError):
    """A module does not fit the running kernel: no other moment, key or setting would help."""


class _Reason(NamedTuple):
    """What happened, completing "could not be loaded: ", and what to do.

    ``is_unfit``: whether something is wrong with the module itself, so that its artifact is
    rejected.
    """

    what: str
    resolution: str
    is_unfit: bool = False


def explain(refusal: Refusal) -> ProvisionError:
    """Return the error to raise for a module that could not be loaded."""
    reasons = (reason for find in _REASONS if (reason := find(refusal)))
    reason = next(reasons, None) or _unknown(refusal)
    kind: type[ProvisionError] = ProvisionError
    if reason.is_unfit:
        kind = UnfitModuleError
    elif refusal.has("No such device"):
        kind = NotFoundError
    details = [*refusal.said.splitlines(), *refusal.log[-_LOG_LINES:]]
    return kind(
        f"The module '{refusal.module}' could not be loaded: {reason.what}.",
        resolution=reason.resolution,
        details="\n".join(line for line in details if line.strip()) or None,
    )


def _signature(refusal: Refusal) -> _Reason | None:
    if not refusal.has(*_SIGNATURE):
        return None
    kind = next((k for text, k in _SIGNATURE_LOG if any(text in line for line in refusal.log)), "")
    if not kind and refusal.has("Required key not available"):
        kind = "unknown"
    kind = kind or ("broken" if refusal.has("Bad message") else "")
    what, resolution = _SIGNATURE_REASONS[kind]
    return _Reason(
        f"this kernel accepts only modules signed with a key that it knows, and this one {what}",
        resolution,
        is_unfit=kind == "broken",
    )


def _lockdown(refusal: Refusal) -> _Reason | None:
    locked = any(line.startswith("Lockdown:") or "Lockdown" in line for line in refusal.log)
    if not (locked and refusal.has("Operation not permitted", "Permission denied")):
        return None
    return _Reason(
        "the kernel is locked down (Secure Boot) and the module is not signed with a key that it"
        " knows",
        _SIGN,
    )


def _permission(refusal: Refusal) -> _Reason | None:
    if refusal.has("Operation not permitted"):
        return _Reason(
            "the kernel does not permit it",
            "Run this as root on the host itself (not in a container without CAP_SYS_MODULE); see"
            " 'provision doctor' for lockdown and kernel.modules_disabled.",
        )
    if refusal.has("Permission denied"):
        return _Reason(
            "a security module (SELinux) does not permit it",
            "The store's modules need the type modules_object_t: 'chcon -R -t modules_object_t"
            " /var/lib/provision/DRIVER/current/lib/modules'; 'ausearch -m avc' shows the denial.",
        )
    return None


def _other_kernel(refusal: Refusal) -> _Reason | None:
    magic = refusal.found(_VERMAGIC)
    symbol = refusal.found(_OTHER_SYMBOL)
    if not (magic or symbol or refusal.has("Exec format error", "Invalid module format")):
        return None
    rebuild = "Build it for this kernel: provision apply (or provision install --again DRIVER)."
    if magic:
        return _Reason(
            f"it was built for another kernel ('{magic['is'].strip()}', and this one is"
            f" '{magic['should'].strip()}')",
            rebuild,
            is_unfit=True,
        )
    if symbol:
        return _Reason(
            f"it was built with other headers: the symbol '{symbol[1]}' has another version in the"
            f" running kernel {refusal.kernel}",
            rebuild,
            is_unfit=True,
        )
    return _Reason("its format is not this kernel's", rebuild, is_unfit=True)


def _symbols(refusal: Refusal) -> _Reason | None:
    names = {match[1] for line in refusal.log if (match := _UNKNOWN_SYMBOL.search(line))}
    if not names and not refusal.has("Unknown symbol"):
        return None
    which = f" ({', '.join(sorted(names))})" if names else ""
    return _Reason(
        f"it needs symbols that the kernel {refusal.kernel} and its loaded modules don't have"
        f"{which}",
        "A module that it depends on is missing or of another build: 'provision verify DRIVER', and"
        " see that the kernel's own modules are all installed (linux-modules-extra and the like).",
        is_unfit=True,
    )


def _parameter(refusal: Refusal) -> _Reason | None:
    match = refusal.found(_PARAMETER)
    if not match:
        return None
    return _Reason(
        f"its parameter '{match['name']}' has a value that it does not take",
        "Correct the options of this driver in /etc/provision/provision.toml, or in"
        f" /etc/modprobe.d; 'modinfo -p {refusal.module}' lists what there is.",
    )


def _hardware(refusal: Refusal) -> _Reason | None:
    if not refusal.has("No such device"):
        return None
    return _Reason(
        "no hardware that it drives was found, or another driver holds it",
        "'provision facts' shows the devices and what drives each; 'provision doctor' looks for"
        " modules that are in the way.",
    )


def _unknown(refusal: Refusal) -> _Reason:
    last = (refusal.said.strip().splitlines() or ["modprobe gave no reason"])[-1]
    return _Reason(last.rpartition(": ")[2], "See the kernel's log: journalctl -k, or dmesg.")


_REASONS: tuple[Callable[[Refusal], _Reason | None], ...] = (
    _signature,
    _lockdown,
    _permission,
    _other_kernel,
    _symbols,
    _parameter,
    _hardware,
)
