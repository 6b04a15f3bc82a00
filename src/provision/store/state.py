"""What the agent remembers of a driver between two runs (``state.json``).

It holds decisions that nothing else does: what was rolled back from, and which version stays.
So an unknown key is kept, what can't be read is said and set aside, and the file of a newer
provision is not touched: docs/decisions/19-agent.md. Models are plain, to be read in a moment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from provision.errors import ProvisionError
from provision.files import write_atomic
from provision.store.layout import Layout
from provision.store.lenient import (
    Kind,
    any_number,
    flag,
    members,
    number,
    numbers,
    optional,
    read_object,
    set_aside,
    text,
    texts,
)
from provision.store.locks import changing

# Grows when a key that is there changes its meaning; a new key does not count.
SCHEMA = 1
# Seconds before a failed build is tried again, doubled each time; and the longest pause.
_PAUSE = 60
_LONGEST_PAUSE = 6 * 3600
_MOST_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an artifact could not be had.

    Attributes:
        reason: ``compile``, ``build``, ``missing`` (headers, kernel, driver or version),
            ``untrusted`` (what a registry has is not signed as it has to be), ``load`` or
            ``failed``.
        message: What happened, in one line.
        resolution: What to do.
        details: The compiler's complaints, or a program's last lines.
        inputs: What was tried: it is not tried again as long as this is the same, if ``final``.
        time: Unix time.
        attempts: How often in a row it failed with these inputs.
        final: Whether trying again makes no sense before the inputs change.
        log: The build's whole output, if there was one.
        extra: Keys that this version does not know; they are kept.
    """

    reason: str
    message: str
    resolution: str | None
    details: str | None
    inputs: str
    time: int
    attempts: int = 1
    final: bool = False
    log: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def holds(self, *, now: float) -> bool:
        """Return whether it is too early to try the same again.

        A clock that was set back makes no one wait.
        """
        # Bounded before it is a power: whatever the file says.
        pause = min(_PAUSE * 2 ** min(self.attempts, _MOST_DOUBLINGS), _LONGEST_PAUSE)
        is_build = self.reason in {"build", "compile"}
        return self.final or (is_build and 0 <= now - self.time < pause)


@dataclass(frozen=True, slots=True)
class KernelState:
    """What is known about a driver's artifact for one kernel.

    Attributes:
        inputs: Fingerprint of everything that the artifact was decided from.
        wanted: Fingerprint of what provision.toml asked for.
        version: The driver's version that was chosen.
        previous: The artifact that this kernel used before.
        fingerprint: Fingerprint of the files' sizes and times when they were last compared.
        damaged: The artifact that a later comparison found damaged.
        prepared: Unix time when the artifact was there.
        seconds: How long that took, by part.
        rejected: Artifacts that someone rolled back from.
        failure: Why the wanted artifact is not there; None: it is.
        load_failure: Why its modules could not be loaded, or unloaded for it; None: they could.
        announced: The kernel that ran when this one was prepared, which was yet to come (empty:
            none ran); None: it was not.
        extra: Keys that this version does not know; they are kept.
    """

    inputs: str | None = None
    wanted: str | None = None
    version: str | None = None
    previous: str | None = None
    fingerprint: str | None = None
    damaged: str | None = None
    prepared: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    rejected: tuple[str, ...] = ()
    failure: Failure | None = None
    load_failure: Failure | None = None
    announced: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DriverState:
    """A ``state.json``.

    Attributes:
        kernels: What is known, by kernel.
        activated: The artifact whose activation was completed: links, vendor config and all.
        schema: Version of its format; greater than ours: a newer provision wrote it, and it must
            not be written.
        extra: Keys that this version does not know; they are kept.
        problems: What could not be read.
    """

    kernels: Mapping[str, KernelState] = field(default_factory=dict)
    activated: str | None = None
    schema: int = SCHEMA
    extra: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def is_newer(self) -> bool:
        """Whether a newer provision wrote it."""
        return self.schema > SCHEMA

    def of(self, release: str) -> KernelState:
        """Return what is known about one kernel; nothing, if nothing is."""
        return self.kernels.get(release, KernelState())

    def updated(self, release: str, kernel: KernelState) -> DriverState:
        """Return the same with what is known about one kernel replaced."""
        return replace(self, kernels={**self.kernels, release: kernel})

    def without(self, release: str) -> DriverState:
        """Return the same with one kernel forgotten."""
        kept = {name: kernel for name, kernel in self.kernels.items() if name != release}
        return replace(self, kernels=kept)


class NewerStateError(ProvisionError):
    """A newer provision wrote what is remembered of a driver; this one must not change it."""

    def __init__(self, path: Path, schema: int) -> None:
        super().__init__(
            f"'{path}' was written by a newer provision (its format is {schema}, this one knows"
            f" {SCHEMA}), so nothing is decided for this driver.",
            resolution="Install that version of provision again; or, to forget what it remembers"
            f" (what was rolled back, what failed): mv {path} {path}.newer",
        )


def load_state(layout: Layout) -> DriverState:
    """Return what is remembered of a driver; nothing where nothing is.

    What can't be read is among its ``problems``.
    """
    try:
        data = layout.state.read_bytes()
    except FileNotFoundError:
        return DriverState()
    except OSError as error:
        return DriverState(problems=(f"it can't be read: {error.strerror or error}",))
    return parse_state(data)


def parse_state(data: bytes) -> DriverState:
    """Return what a ``state.json`` says."""
    problems: list[str] = []
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        return DriverState(problems=(f"it is not JSON: {error}",))
    found = read_object(document, _DRIVER, where="", problems=problems)
    if isinstance(document, dict) and "schema" not in document:
        problems.append("schema: it is missing")
    kernels = {
        release: _kernel(data, release, problems)
        for release, data in found.pop("kernels", {}).items()
    }
    return DriverState(**{**found, "kernels": kernels, "problems": tuple(problems)})


def store_state(layout: Layout, state: DriverState) -> bool:
    """Write what is to be remembered; the caller holds the driver's lock.

    A file that could not be read whole is copied to another name first.

    Returns:
        Whether that changed anything.

    Raises:
        NewerStateError: A newer provision wrote the file.
        OSError: The store can't be written.
    """
    refuse_newer(layout)
    if load_state(layout).problems:
        set_aside(layout.state)
    return write_atomic(layout.state, state_text(state))


def state_text(state: DriverState) -> str:
    """Return the text of a ``state.json``."""
    kernels = {name: _document(kernel) for name, kernel in state.kernels.items()}
    known = {"schema": SCHEMA, "activated": state.activated, "kernels": kernels}
    return json.dumps({**state.extra, **known}, indent=2) + "\n"


def update_state(layout: Layout, change: Callable[[DriverState], DriverState]) -> bool:
    """Change what is remembered of a driver; arguments and errors as ``store_state``."""
    with changing(layout):
        before = load_state(layout)
        after = change(before)
        return after != before and store_state(layout, after)


def refuse_newer(layout: Layout) -> None:
    """Do nothing, unless a newer provision wrote what is remembered of a driver.

    Raises:
        NewerStateError: One did.
    """
    state = load_state(layout)
    if state.is_newer:
        raise NewerStateError(layout.state, state.schema)


def _kernel(data: object, release: str, problems: list[str]) -> KernelState:
    where = f"kernels.{release}"
    found = read_object(data, _KERNEL, where=where, problems=problems)
    for name in ("failure", "load_failure"):
        failure = found.pop(name, None)
        found[name] = None
        if failure is None:
            continue
        read = read_object(failure, _FAILURE, where=f"{where}.{name}", problems=problems)
        missing = [key for key in _NEEDED if key not in read]
        if missing:
            problems.append(f"{where}.{name}: it lacks {', '.join(missing)}")
        else:
            found[name] = Failure(**read)
    return KernelState(**{_FIELDS.get(key, key): value for key, value in found.items()})


def _document(kernel: KernelState) -> dict[str, Any]:
    """Return what is written of a kernel: what is known, and what was kept unread."""
    document = asdict(kernel)
    for name in ("failure", "load_failure"):
        if document[name] is not None:
            document[name] = {**document[name].pop("extra"), **document[name]}
    named = {_KEYS.get(name, name): value for name, value in document.items() if name != "extra"}
    return {**document["extra"], **named}


# Keys of the file that are called otherwise here: hosts have files with them.
_FIELDS = {"wish": "wanted", "stamp": "fingerprint"}
_KEYS = {name: key for key, name in _FIELDS.items()}
_FAILURE: dict[str, Kind] = {
    "reason": text,
    "message": text,
    "resolution": optional(text),
    "details": optional(text),
    "inputs": text,
    "time": number,
    "attempts": number,
    "final": flag,
    "log": optional(text),
}
_NEEDED = ("reason", "message", "resolution", "details", "inputs", "time")
_KERNEL: dict[str, Kind] = {
    "inputs": optional(text),
    "wish": optional(text),
    "version": optional(text),
    "previous": optional(text),
    "stamp": optional(text),
    "damaged": optional(text),
    "prepared": optional(number),
    "seconds": numbers,
    "rejected": texts,
    "announced": optional(text),
    # Objects, read on their own.
    "failure": lambda value: value,
    "load_failure": lambda value: value,
}
_DRIVER: dict[str, Kind] = {"schema": any_number, "activated": optional(text), "kernels": members}
