"""What the agent remembers of a driver between two runs (``state.json``).

Nothing depends on it: without it everything is decided again, which takes time. So a file that
can't be understood counts as none, and models are plain, to be read in a moment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from provision.files import write_atomic
from provision.install.layout import Layout

_SCHEMA = 1
# Seconds before a failed build is tried again, doubled each time; and the longest pause.
_PAUSE = 60
_LONGEST_PAUSE = 6 * 3600


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an artifact could not be had.

    Attributes:
        reason: ``compile``, ``build``, ``missing`` (headers, kernel, driver or version), ``load``
            or ``failed``.
        message: What happened, in one line.
        resolution: What to do.
        details: The compiler's complaints, or a program's last lines.
        inputs: What was tried: it is not tried again as long as this is the same, if ``final``.
        time: Unix time.
        attempts: How often in a row it failed with these inputs.
        final: Whether trying again makes no sense before the inputs change.
        log: The build's whole output, if there was one.
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

    def holds(self, *, now: float) -> bool:
        """Return whether it is too early to try the same again.

        A clock that was set back makes nobody wait.
        """
        pause = min(_PAUSE * 2**self.attempts, _LONGEST_PAUSE)
        is_build = self.reason in {"build", "compile"}
        return self.final or (is_build and 0 <= now - self.time < pause)


@dataclass(frozen=True, slots=True)
class KernelState:
    """What is known about a driver's artifact for one kernel.

    Attributes:
        inputs: Fingerprint of everything that the artifact was decided from.
        wish: Fingerprint of what provision.toml asked for.
        version: The driver's version that was chosen.
        previous: The artifact that this kernel used before.
        stamp: Fingerprint of the files' sizes and times when they were last compared.
        damaged: The artifact that a later comparison found damaged.
        prepared: Unix time when the artifact was there.
        seconds: How long that took, by part.
        rejected: Artifacts that somebody rolled back from.
        failure: Why the wanted artifact is not there; None: it is.
        load_failure: Why its modules could not be loaded, or unloaded for it; None: they could.
    """

    inputs: str | None = None
    wish: str | None = None
    version: str | None = None
    previous: str | None = None
    stamp: str | None = None
    damaged: str | None = None
    prepared: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    rejected: tuple[str, ...] = ()
    failure: Failure | None = None
    load_failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class DriverState:
    """A ``state.json``.

    Attributes:
        kernels: What is known, by kernel.
        activated: The artifact whose activation was completed: links, vendor config and all.
    """

    kernels: Mapping[str, KernelState] = field(default_factory=dict)
    activated: str | None = None

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


def load_state(layout: Layout) -> DriverState:
    """Return what is remembered of a driver; nothing where the file is missing or damaged."""
    try:
        document = json.loads(layout.state.read_text())
        if document["schema"] != _SCHEMA:
            return DriverState()
        kernels = {name: _kernel(data) for name, data in document["kernels"].items()}
        return DriverState(kernels, document.get("activated"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return DriverState()


def store_state(layout: Layout, state: DriverState) -> bool:
    """Write what is to be remembered; returns whether that changed anything.

    Raises:
        OSError: The store can't be written.
    """
    kernels = {name: asdict(kernel) for name, kernel in state.kernels.items()}
    document = {"schema": _SCHEMA, "activated": state.activated, "kernels": kernels}
    return write_atomic(layout.state, json.dumps(document, indent=2) + "\n")


def _kernel(data: Mapping[str, Any]) -> KernelState:
    known = {name: data.get(name) for name in ("failure", "load_failure")}
    failures = {name: Failure(**failure) if failure else None for name, failure in known.items()}
    return KernelState(**{**data, "rejected": tuple(data["rejected"]), **failures})
