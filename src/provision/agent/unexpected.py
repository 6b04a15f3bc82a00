"""From whatever a step raises to what is told about it."""

from __future__ import annotations

import traceback

from provision.errors import ExitCode, ProvisionError


class UnexpectedError(ProvisionError):
    """An error that no part of the program has words for: a library's, or a defect."""


class InterruptedRunError(ProvisionError):
    """The run was stopped: Ctrl-C, or SIGTERM."""

    exit_code = ExitCode.INTERRUPTED


def as_told(error: BaseException) -> ProvisionError:
    """Return what to tell about anything that was raised."""
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
