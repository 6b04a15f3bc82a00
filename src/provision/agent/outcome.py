"""A run of the agent: what it works on, what its actions came to, and unexpected errors."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provision.agent.model import Desired
from provision.agent.plan import Action, Mode
from provision.errors import ExitCode, ProvisionError
from provision.progress import Progress, silent
from provision.store.state import Failure


@dataclass(frozen=True, slots=True)
class Run:
    """What a run works on.

    Attributes:
        root: Root of the host.
        desired: What it should have.
        mode: How to go about it.
        catalogues: Further folders of drivers.
        progress: Receives what goes on.
        coming: Kernels that may boot next, besides those that the host names.
        whole: What the host should have, where the run is about a part of it.
        usr: A /usr that boots next, where it is mounted.
    """

    root: Path
    desired: Desired
    mode: Mode = field(default_factory=Mode)
    catalogues: Sequence[Path] = ()
    progress: Progress = silent
    coming: tuple[str, ...] = ()
    whole: Desired | None = None
    usr: Path | None = None


class UnexpectedError(ProvisionError):
    """An error that the program does not expect: a library's, or a defect."""


class InterruptedRunError(ProvisionError):
    """The run was stopped: Ctrl-C, or SIGTERM."""

    exit_code = ExitCode.INTERRUPTED


def as_error(error: BaseException) -> ProvisionError:
    """Return the error that stands for anything that was raised."""
    match error:
        case ProvisionError():
            return error
        case KeyboardInterrupt():
            return InterruptedRunError(
                "The run was interrupted.", resolution="Run 'provision apply': it goes on."
            )
        case OSError() if error.errno is not None:
            what = f"'{error.filename}': " if error.filename else ""
            return ProvisionError(
                f"{what}{error.strerror or error}.",
                resolution="Make room, or make the folder writable, and run 'provision apply'"
                " again.",
            )
        case _:
            return UnexpectedError(
                f"An unexpected error: {type(error).__name__}: {error}",
                resolution="Run 'provision apply' again; if it stays, please report it with the"
                " lines above.",
                details="".join(traceback.format_exception(error)).rstrip(),
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an action.

    Attributes:
        action: The action.
        result: In one line.
        seconds: How long it took.
        error: Why it failed; None: it didn't.
        failure: The same, as it is remembered.
    """

    action: Action
    result: str
    seconds: float
    error: ProvisionError | None = None
    failure: Failure | None = None

    @property
    def is_defect(self) -> bool:
        """Whether it failed with an error that the program does not expect."""
        return isinstance(self.error, UnexpectedError)
