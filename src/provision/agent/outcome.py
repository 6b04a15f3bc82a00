"""What became of an action, and the errors that stand for what was not expected."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from provision.agent.plan import Action
from provision.errors import ExitCode, ProvisionError
from provision.store.state import Failure


class UnexpectedError(ProvisionError):
    """An error that no part of the program has words for: a library's, or a defect."""


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
    """What became of an action.

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
        """Whether something failed that no part of the program has words for."""
        return isinstance(self.error, UnexpectedError)
