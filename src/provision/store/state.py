"""The agent's state of a driver, which it keeps from one run to the next (``state.json``).

No other file has these decisions: which artifacts someone rolled back from, and which version
stays. So unknown keys are kept, a value that can't be read is reported and costs no other, and the
file of a newer provision is not touched: docs/decisions/08-agent.md.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, FiniteFloat, ValidationError

from provision import __version__
from provision.documents import Frozen, mistakes_of
from provision.errors import ProvisionError
from provision.files import sync_directory, write_atomic
from provision.store.layout import Layout, changing

# It grows when an existing key changes its meaning, not when a key is added.
SCHEMA = 1
# Seconds before a failed build or load is tried again, doubled each time; and the longest pause.
_PAUSE = 60
_LONGEST_PAUSE = 6 * 3600
_MOST_DOUBLINGS = 16
_SET_ASIDE = ".unreadable-"
# Whole numbers up to here are exact for every reader of JSON: RFC 8259, section 6.
_LARGEST = 2**53 - 1
_Number = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]

# The reason of a failure that a reboot ends: modules that have to go first are in use.
IN_USE = "in-use"
# The reason of a failure by the driver's own check, after it was loaded.
CHECK = "check"
# The reason why nothing is known of an artifact's trial: nothing could be tried.
NOT_TRIED = "not-tried"
# The reason of a failure in a trial: the kernel that may boot next does not take the modules.
DoesNotLoad = Literal["does-not-load"]
DOES_NOT_LOAD: DoesNotLoad = "does-not-load"


class _Remembered(Frozen):
    model_config = ConfigDict(extra="allow")


class Failure(_Remembered):
    """Why there is no artifact for a kernel."""

    # ``compile``, ``build``, ``missing`` (headers, kernel, driver or version), ``untrusted`` (an
    # image of a registry lacks a trusted signature), ``does-not-load`` (the kernel did not take the
    # modules in a trial), ``load``, ``check`` (the driver's own check failed, after it was
    # loaded), ``in-use`` (modules have to go first, and are in use), ``no-card`` (it drives no card
    # of the host) or ``failed``.
    reason: str
    message: str
    resolution: str | None = None
    # The compiler's complaints, or a program's last lines.
    details: str | None = None
    # Fingerprint of the inputs of this attempt, and the version of provision that made it: another
    # version may succeed with the same inputs.
    inputs: str
    program: str = __version__
    # Unix time.
    time: _Number
    # How often in a row it failed with these inputs.
    attempts: _Number = 1
    # Whether another attempt makes sense only after the inputs have changed.
    final: bool = False
    # Path of the build's whole output, if there was a build.
    log: str | None = None

    def holds(self, *, now: float) -> bool:
        """Return whether it is too early for another attempt with the same inputs.

        After a clock was set back, another attempt is made at once.
        """
        # The exponent is bounded, because the file may have any number.
        pause = min(_PAUSE * 2 ** min(self.attempts, _MOST_DOUBLINGS), _LONGEST_PAUSE)
        has_pause = self.reason in {"build", "compile", "load", "no-card", NOT_TRIED}
        is_over = self.program == __version__ and self.final
        return is_over or (has_pause and 0 <= now - self.time < pause)


class KernelState(_Remembered):
    """The state of a driver's artifact for one kernel."""

    # Fingerprint of all inputs of the decision for this artifact.
    inputs: str | None = None
    # Fingerprint of what provision.toml asked for.
    wanted: str | None = None
    version: str | None = None
    previous: str | None = None
    # Fingerprint of the files' sizes and times at their last comparison.
    fingerprint: str | None = None
    # The artifact that a later comparison found damaged.
    damaged: str | None = None
    # Unix time at which the artifact was complete.
    prepared: _Number | None = None
    seconds: dict[str, FiniteFloat] = Field(default_factory=dict)
    # Artifacts that someone rolled back from, or that the kernel or their own check refused.
    rejected: tuple[str, ...] = ()
    # The artifact that failed last for a reason that may pass: it is made again after a pause.
    refused: str | None = None
    failure: Failure | None = None
    # Why its modules could not be loaded, or others unloaded for them; None if they could.
    load_failure: Failure | None = None
    # The boot in which an artifact's check passed last, by the artifact.
    checked: dict[str, str] = Field(default_factory=dict)
    # The artifact that its kernel took in a trial, and why the last trial found nothing out.
    tried: str | None = None
    untried: Failure | None = None
    # The kernel that ran while the artifact was prepared for a kernel that was yet to come (empty
    # if no kernel ran); None for other kernels.
    announced: str | None = None

    @property
    def avoided(self) -> tuple[str, ...]:
        """The artifacts that the kernel went back from, whatever the reason."""
        return (*self.rejected, *filter(None, (self.refused,)))


class DriverState(_Remembered):
    """A ``state.json``."""

    # Version of the format. A version greater than ``SCHEMA`` shows that a newer provision wrote
    # the file, which must not be overwritten.
    schema_version: int = Field(default=SCHEMA, alias="schema")
    # The artifact whose activation was completed: links, vendor config and all.
    activated: str | None = None
    kernels: dict[str, KernelState] = Field(default_factory=dict)
    # Why the file could not be read, one line each.
    problems: tuple[str, ...] = Field(default=(), exclude=True)

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    @property
    def is_newer(self) -> bool:
        """Whether a newer provision wrote it."""
        return self.schema_version > SCHEMA

    def of(self, release: str) -> KernelState:
        """Return the state of one kernel; an empty one if nothing is known."""
        return self.kernels.get(release, KernelState())

    def updated(self, release: str, kernel: KernelState) -> Self:
        """Return this state with that of one kernel replaced."""
        return self.model_copy(update={"kernels": {**self.kernels, release: kernel}})

    def changed(self, release: str, **changes: Any) -> Self:  # noqa: ANN401 - its fields
        """Return this state with members of one kernel's replaced."""
        return self.updated(release, self.of(release).model_copy(update=changes))

    def without(self, release: str) -> Self:
        """Return this state without one kernel."""
        kept = {name: kernel for name, kernel in self.kernels.items() if name != release}
        return self.model_copy(update={"kernels": kept})


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
    try:
        return DriverState.model_validate_json(data)
    except ValidationError as error:
        read = _readable(data, error) or DriverState()
        if read.is_newer:
            return read
        problems = tuple(map(str, mistakes_of(error, DriverState)))
        return read.model_copy(update={"problems": problems})


def _readable(data: bytes, mistakes: ValidationError) -> DriverState | None:
    """Return the state without the values that have mistakes; None if that is none, either."""
    try:
        document = json.loads(data)
        for mistake in mistakes.errors():
            # A kernel's value goes as a whole: half a failure is none.
            *parents, key = mistake["loc"][:3]
            place = document
            for name in parents:
                place = place[name]
            place.pop(key, None)
        return DriverState.model_validate_json(json.dumps(document))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None


def store_state(layout: Layout, state: DriverState) -> bool:
    """Write a driver's state; the caller holds the driver's lock.

    A file that could not be read is copied to another name first.

    Returns:
        Whether the file changed.
    """
    refuse_newer(layout)
    if load_state(layout).problems:
        _set_aside(layout.state)
    return write_atomic(layout.state, state_text(state))


def state_text(state: DriverState) -> str:
    """Return the text of a ``state.json``."""
    return json.dumps(state.model_dump(), indent=2) + "\n"


def update_state(layout: Layout, change: Callable[[DriverState], DriverState]) -> bool:
    """Change a driver's state; returns and raises as ``store_state``."""
    with changing(layout):
        before = load_state(layout)
        after = change(before)
        return after != before and store_state(layout, after)


def refuse_newer(layout: Layout) -> None:
    """Refuse to go on if a newer provision wrote a driver's state."""
    state = load_state(layout)
    if state.is_newer:
        raise NewerStateError(layout.state, state.schema_version)


def _set_aside(path: Path) -> Path:
    """Keep a copy of a file that is about to be overwritten, and return the copy's path.

    The same content gets the same name, so the next run may repeat what a killed run did.
    """
    try:
        data = path.read_bytes()
    except OSError:
        # The disk is defective: the file can be kept, but not copied.
        kept = path.with_name(f"{path.name}{_SET_ASIDE}disk")
        path.rename(kept)
        sync_directory(path.parent)
        return kept
    digest = hashlib.sha256(data).hexdigest()[:8]
    kept = path.with_name(f"{path.name}{_SET_ASIDE}{digest}")
    write_atomic(kept, data, mode=0o600)
    return kept


def copies_of(path: Path) -> tuple[Path, ...]:
    """Return the copies of a file that ``store_state`` made and that still exist."""
    return tuple(sorted(path.parent.glob(f"{path.name}{_SET_ASIDE}*")))
