"""The agent's state of a driver, which it keeps from one run to the next (``state.json``).

No other file has these decisions: which artifacts someone rolled back from, and which version
stays. So unknown keys are kept, a file that can't be read is reported and set aside, and the file
of a newer provision is not touched: docs/decisions/19-agent.md. The models are plain classes, which
load faster than pydantic's.
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

# It grows when an existing key changes its meaning, not when a key is added.
SCHEMA = 1
# Seconds before a failed build or load is tried again, doubled each time; and the longest pause.
_PAUSE = 60
_LONGEST_PAUSE = 6 * 3600
_MOST_DOUBLINGS = 16


# The reason of a failure that a reboot ends: modules that have to go first are in use.
IN_USE = "in-use"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no artifact for a kernel.

    Attributes:
        reason: ``compile``, ``build``, ``missing`` (headers, kernel, driver or version),
            ``untrusted`` (an image of a registry lacks a trusted signature), ``load``,
            ``in-use`` (modules have to go first, and are in use) or ``failed``.
        message: What happened, in one line.
        resolution: What to do.
        details: The compiler's complaints, or a program's last lines.
        inputs: Fingerprint of the inputs of this attempt.
        time: Unix time.
        attempts: How often in a row it failed with these inputs.
        final: Whether another attempt makes sense only after the inputs have changed.
        log: Path of the build's whole output, if there was a build.
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
        """Return whether it is too early for another attempt with the same inputs.

        After a clock was set back, another attempt is made at once.
        """
        # The exponent is bounded, because the file may have any number.
        pause = min(_PAUSE * 2 ** min(self.attempts, _MOST_DOUBLINGS), _LONGEST_PAUSE)
        has_pause = self.reason in {"build", "compile", "load"}
        return self.final or (has_pause and 0 <= now - self.time < pause)


@dataclass(frozen=True, slots=True)
class KernelState:
    """The state of a driver's artifact for one kernel.

    Attributes:
        inputs: Fingerprint of all inputs of the decision for this artifact.
        wanted: Fingerprint of what provision.toml asked for.
        version: The chosen version of the driver.
        previous: The artifact that this kernel used before.
        fingerprint: Fingerprint of the files' sizes and times at their last comparison.
        damaged: The artifact that a later comparison found damaged.
        prepared: Unix time at which the artifact was complete.
        seconds: The seconds that each part of the preparation took.
        rejected: Artifacts that someone rolled back from.
        failure: Why the artifact is missing; None if it is there.
        load_failure: Why its modules could not be loaded, or others unloaded for them; None if
            they could.
        announced: The kernel that ran while the artifact was prepared for a kernel that was yet to
            come (empty if no kernel ran); None for other kernels.
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
        kernels: The state of each kernel, by release.
        activated: The artifact whose activation was completed: links, vendor config and all.
        schema: Version of the format. A version greater than ``SCHEMA`` shows that a newer
            provision wrote the file, which must not be overwritten.
        extra: Keys that this version does not know; they are kept.
        problems: A line for each value that could not be read.
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
        """Return the state of one kernel; an empty one if nothing is known."""
        return self.kernels.get(release, KernelState())

    def updated(self, release: str, kernel: KernelState) -> DriverState:
        """Return this state with that of one kernel replaced."""
        return replace(self, kernels={**self.kernels, release: kernel})

    def without(self, release: str) -> DriverState:
        """Return this state without one kernel."""
        kept = {name: kernel for name, kernel in self.kernels.items() if name != release}
        return replace(self, kernels=kept)


class NewerStateError(ProvisionError):
    """A newer provision wrote a driver's state; this one must not change it."""

    def __init__(self, path: Path, schema: int) -> None:
        super().__init__(
            f"'{path}' was written by a newer provision (its format is {schema}, this one knows"
            f" {SCHEMA}), so nothing is decided for this driver.",
            resolution="Install that version of provision again; or, to forget what it remembers"
            f" (what was rolled back, what failed): mv {path} {path}.newer",
        )


def load_state(layout: Layout) -> DriverState:
    """Return a driver's state; an empty one if there is no file.

    Its ``problems`` list what can't be read.
    """
    try:
        data = layout.state.read_bytes()
    except FileNotFoundError:
        return DriverState()
    except OSError as error:
        return DriverState(problems=(f"it can't be read: {error.strerror or error}",))
    return parse_state(data)


def parse_state(data: bytes) -> DriverState:
    """Return the state in the bytes of a ``state.json``."""
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
    """Write a driver's state; the caller holds the driver's lock.

    A file that could not be read whole is copied to another name first.

    Returns:
        Whether the file changed.

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
    """Change a driver's state; returns and raises as ``store_state``."""
    with changing(layout):
        before = load_state(layout)
        after = change(before)
        return after != before and store_state(layout, after)


def refuse_newer(layout: Layout) -> None:
    """Refuse to go on if a newer provision wrote a driver's state.

    Raises:
        NewerStateError: A newer provision wrote it.
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
    """Return a kernel's state as JSON, with the unknown keys that were kept."""
    document = asdict(kernel)
    for name in ("failure", "load_failure"):
        if document[name] is not None:
            document[name] = {**document[name].pop("extra"), **document[name]}
    named = {_KEYS.get(name, name): value for name, value in document.items() if name != "extra"}
    return {**document["extra"], **named}


# Keys of the file that have other names here: files on hosts have the old names.
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
    # These are objects, which ``_kernel`` reads.
    "failure": lambda value: value,
    "load_failure": lambda value: value,
}
_DRIVER: dict[str, Kind] = {"schema": any_number, "activated": optional(text), "kernels": members}
