"""One host of a fleet, read from the ``status.json`` that its agent wrote. Pure.

Hosts of a fleet have older and newer versions of provision. So missing members have defaults,
unknown ones are left out, and unreadable ones become a note in the host's row: an error never hides
the other hosts. ``docs/reference/status.schema.json`` describes the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from provision.errors import redact
from provision.store.lenient import (
    any_number,
    flag,
    members,
    number,
    optional,
    read_object,
    text,
    texts,
)

# The known version of the format, and the most bytes that a host's file may have.
SCHEMA = 1
LARGEST_STATUS = 1 << 20
# Limits of one file: a hostile host must not fill the whole table.
_MOST_DRIVERS = 64
_MOST_KERNELS = 32
_MOST_NOTES = 16
_LONGEST_NAME = 120
_LONGEST_TEXT = 2000
_STATE = re.compile(r"[a-z][a-z-]{0,39}")

# From worst to best; unknown states of a newer provision rank after the first three.
STATES: Mapping[str, tuple[str, str]] = {
    "failed": ("✗", "failed"),
    "missing": ("✗", "missing"),
    "next-kernel-not-ready": ("✗", "next kernel not ready"),
    "unreachable": ("✗", "unreachable"),
    "unreadable": ("✗", "status unreadable"),
    "no-status": ("✗", "no status"),
    "reboot-required": ("!", "reboot required"),
    "pending": ("…", "pending"),
    "ready": ("✓", "ready"),
}
_ORDER = tuple(STATES)
_UNKNOWN = 2.5
# States of hosts whose own status is unknown.
NOT_SEEN = frozenset({"unreachable", "unreadable", "no-status"})
# States that need no attention: the next run of the agent completes the work.
WELL = frozenset({"ready", "pending"})


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A driver for one kernel of a host.

    Attributes:
        release: The kernel.
        role: ``running``, or ``next``: it may run after the next boot.
        state: One of ``STATES``, or the word of a newer provision.
        is_ready: Whether the driver works with it; None: not known.
        version: The driver's version there.
        digest: Short digest of the artifact.
        reason: Why it is not ready.
        resolution: What to do about that.
    """

    release: str
    role: str
    state: str
    is_ready: bool | None = None
    version: str | None = None
    digest: str | None = None
    reason: str | None = None
    resolution: str | None = None


@dataclass(frozen=True, slots=True)
class DriverRow:
    """A driver of a host; its attributes are those of the agent's status."""

    name: str
    state: str
    kernels: tuple[KernelRow, ...] = ()
    wanted: str | None = None
    loaded: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Host:
    """A host of a fleet.

    Attributes:
        name: As the inventory, the monitoring or the file calls it.
        state: The worst state of its drivers, or why its status is unknown.
        time: Unix time of the observation; None if there was none.
        running: The running kernel.
        drivers: Its drivers.
        reason: Why the host as a whole is in that state.
        resolution: What to do about that.
        notes: Further remarks on the host or its file.
        is_whole: Whether the state concerns the host as a whole, and not one of its drivers.
    """

    name: str
    state: str
    time: int | None = None
    running: str | None = None
    drivers: tuple[DriverRow, ...] = ()
    reason: str | None = None
    resolution: str | None = None
    notes: tuple[str, ...] = ()
    is_whole: bool = False


def is_out(kernel: KernelRow) -> bool:
    """Return whether a driver does not work with the running kernel."""
    return kernel.role == "running" and kernel.is_ready is False


def rank(state: str) -> float:
    """Return the rank of a state; the worst has the lowest."""
    return _ORDER.index(state) if state in STATES else _UNKNOWN


def worst(states: Iterable[str]) -> str:
    """Return the worst of some states; ``ready`` if there are none."""
    return min(states, key=rank, default="ready")


def shown(value: str, limit: int = _LONGEST_NAME) -> str:
    """Return a text of a host as one short line without secrets and control characters."""
    line = " ".join(redact(value[: 2 * limit]).split())
    # Characters that UTF-8 can't express would stop the page from being written.
    line = line.encode(errors="replace").decode()
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def broken_host(name: str, state: str, reason: str, resolution: str | None) -> Host:
    """Return the row of a host whose status is unknown, with the reason."""
    long = _LONGEST_TEXT
    advice = shown(resolution, long) if resolution else None
    return Host(shown(name), state, reason=shown(reason, long), resolution=advice, is_whole=True)


def host_of_status(name: str, data: bytes) -> Host:
    """Return a host from the content of its ``status.json``, valid or not.

    Args:
        name: What the host is called.
        data: The file's content; at most ``LARGEST_STATUS`` bytes are accepted.
    """
    if len(data) > LARGEST_STATUS:
        return _unreadable(name, f"its status.json is larger than {LARGEST_STATUS} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _unreadable(name, "its status.json is no JSON document")
    if not isinstance(document, dict):
        return _unreadable(name, "its status.json holds no JSON object")
    problems: list[str] = []
    found = read_object(document, _HOST, where="", problems=problems)
    notes = [*_about_schema(found.get("schema")), *(f"status.json: {one}" for one in problems)]
    drivers = _drivers(found.get("drivers", ()), problems=notes)
    state = _state(found.get("state"), notes)
    if state is None and not drivers:
        return _unreadable(name, "its status.json has no state of the host", notes)
    error = read_object(found.get("error") or {}, _ERROR, where="error", problems=notes)
    kernels = read_object(found.get("kernels", {}), _KERNELS, where="kernels", problems=notes)
    notes += [*kernels.get("notes", ()), *kernels.get("doubts", ())]
    running = kernels.get("running")
    return Host(
        name=shown(name),
        state=state or worst(driver.state for driver in drivers),
        time=found.get("time"),
        running=shown(running) if running else None,
        drivers=drivers,
        reason=_long(error.get("message")),
        resolution=_long(error.get("resolution")),
        notes=tuple(shown(note, _LONGEST_TEXT) for note in notes[:_MOST_NOTES]),
        is_whole=bool(error.get("message")),
    )


def _unreadable(name: str, why: str, notes: Iterable[str] = ()) -> Host:
    text_of_notes = "; ".join(notes)
    return broken_host(
        name,
        "unreadable",
        f"{why} ({text_of_notes})" if text_of_notes else why,
        "Check the host: provision status. 'provision apply' writes the file again.",
    )


def _about_schema(schema: int | None) -> list[str]:
    if schema is None or schema < SCHEMA:
        return ["written by an older provision: some fields are missing"]
    if schema > SCHEMA:
        newer = f"written by a newer provision (schema {schema}): unknown fields are left out;"
        return [f"{newer} install the same version on this machine to see them"]
    return []


def _state(value: str | None, notes: list[str]) -> str | None:
    """Return a state as it is shown; anything but a word is left out."""
    if value is None:
        return None
    if _STATE.fullmatch(value) is None:
        notes.append("its state is not a valid word")
        return "unreadable"
    return value


def _drivers(found: Iterable[Any], problems: list[str]) -> tuple[DriverRow, ...]:
    listed = list(found)
    if len(listed) > _MOST_DRIVERS:
        problems.append(f"{len(listed)} drivers: only the first {_MOST_DRIVERS} are shown")
    return tuple(_driver(one, problems) for one in listed[:_MOST_DRIVERS])


def _driver(data: object, problems: list[str]) -> DriverRow:
    found = read_object(data, _DRIVER, where="drivers", problems=problems)
    listed = found.get("kernels", [])
    if len(listed) > _MOST_KERNELS:
        problems.append(f"{len(listed)} kernels: only the first {_MOST_KERNELS} are shown")
    kernels = tuple(_kernel(one, problems) for one in listed[:_MOST_KERNELS])
    state = _state(found.get("state"), problems)
    wanted, loaded = found.get("wanted"), found.get("loaded")
    return DriverRow(
        name=shown(found.get("name", "?")),
        state=state or worst(kernel.state for kernel in kernels),
        kernels=kernels,
        wanted=shown(wanted) if wanted else None,
        loaded=shown(loaded) if loaded else None,
        notes=tuple(shown(note, _LONGEST_TEXT) for note in found.get("notes", ())[:_MOST_NOTES]),
    )


def _kernel(data: object, problems: list[str]) -> KernelRow:
    found = read_object(data, _KERNEL, where="drivers.kernels", problems=problems)
    is_ready = found.get("is_ready")
    state = _state(found.get("state"), problems) or ("ready" if is_ready else "unreadable")
    version, digest = found.get("version"), found.get("digest")
    return KernelRow(
        release=shown(found.get("release", "?")),
        role=shown(found.get("role", "running")),
        state=state,
        is_ready=is_ready,
        version=shown(version) if version else None,
        digest=shown(digest) if digest else None,
        reason=_long(found.get("reason")),
        resolution=_long(found.get("resolution")),
    )


def _long(value: str | None) -> str | None:
    return shown(value, _LONGEST_TEXT) if value else None


def _listed(value: Any) -> list[Any]:  # noqa: ANN401 - anything that JSON has
    """Take a list of anything."""
    if not isinstance(value, list):
        raise TypeError
    return value


_HOST = {
    "schema": any_number,
    "time": number,
    "state": text,
    "kernels": members,
    "drivers": _listed,
    "error": optional(members),
}
_ERROR = {"message": optional(text), "resolution": optional(text)}
_KERNELS = {"running": optional(text), "notes": texts, "doubts": texts}
_DRIVER = {
    "name": text,
    "wanted": optional(text),
    "state": text,
    "loaded": optional(text),
    "kernels": _listed,
    "notes": texts,
}
_KERNEL = {
    "release": text,
    "role": text,
    "state": text,
    "is_ready": flag,
    "version": optional(text),
    "digest": optional(text),
    "reason": optional(text),
    "resolution": optional(text),
}
