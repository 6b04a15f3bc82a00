"""Explains why the kernel refused a module, from modprobe's one line and the kernel's log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from provision.errors import NotFoundError, ProvisionError
from provision.files import in_root

# Longer than any record: https://docs.kernel.org/admin-guide/abi-testing.html, /dev/kmsg.
_RECORD = 8192
_LOG_LINES = 8
SECURE_BOOT_HOW_TO = "docs/how-to/secure-boot.md"
_SIGN = (
    "Sign modules with a key of yours ([signing] in /etc/provision/provision.toml) and enrol its"
    f" certificate with 'mokutil --import': {SECURE_BOOT_HOW_TO}."
)
_SIGN_AGAIN = "sign it again: provision install --again DRIVER"
_REBUILD = "Build it for this kernel: provision apply (or provision install --again DRIVER)."
_SYMBOLS = "it needs symbols that the kernel {kernel} and its loaded modules don't have"
_FIND_SYMBOLS = (
    "A module that it depends on is missing or of another build: 'provision verify DRIVER', and see"
    " that the kernel's own modules are all installed (linux-modules-extra and the like)."
)
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


def explain(module: str, kernel: str, said: str, log: Sequence[str]) -> ProvisionError:
    """Return the error to raise for a module that could not be loaded."""
    last = (said.strip().splitlines() or ["modprobe gave no reason"])[-1].rpartition(": ")[2]
    what, resolution = last, "See the kernel's log: journalctl -k, or dmesg."
    kind: type[ProvisionError] = ProvisionError
    for cause in _CAUSES:
        found = [match for line in log if (match := re.search(cause.logged or "$^", line))]
        is_said = not cause.said or any(text in said for text in cause.said)
        if is_said and (found or cause.logged is None):
            first = [match[match.re.groups and 1] for match in found]
            words = {"module": module, "kernel": kernel, "all": ", ".join(sorted(set(first)))}
            what = cause.what.format(*(found[0].groups() if found else ()), **words)
            resolution, kind = cause.resolution.format(**words), cause.kind
            break
    details = [*said.splitlines(), *log[-_LOG_LINES:]]
    return kind(
        f"The module '{module}' could not be loaded: {what}.",
        resolution=resolution,
        details="\n".join(line for line in details if line.strip()) or None,
    )
