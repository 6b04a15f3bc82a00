"""What is remembered of a cell that failed, and what says nothing about the cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from provision.build.diagnosis import BuildError, kind_of
from provision.engine.docker_api import EngineLostError
from provision.errors import ExitCode, InUseError, ProvisionError, redact
from provision.fetch import UnreachableError
from provision.matrix.cells import Cell
from provision.matrix.results import FirstError, Result, result_of

_FULL = "no space left on device"
_LONGEST_TEXT = 16_000
_LONGEST_LINE = 400
_LINES_BEFORE, _LINES_AFTER, _LAST_LINES = 5, 25, 40


def refuse_trouble(error: ProvisionError) -> None:
    """Raise what says nothing about the cell.

    Raises:
        ProvisionError: The error, if others would fail alike.
    """
    is_outside = isinstance(error, BuildError) and error.is_outside
    is_full = _FULL in f"{error.message}\n{error.details or ''}".lower()
    alike = (UnreachableError, EngineLostError, InUseError)
    if is_outside or is_full or isinstance(error, alike):
        raise error


def disk_error(cell: Cell, error: OSError) -> ProvisionError:
    """Return what to say of a disk that is full or forbidden, where a cell was to be built."""
    return ProvisionError(
        f"{cell}: {error.filename or 'the disk'}: {error.strerror or error}.",
        resolution="Make room, or correct the folder's permissions; then run the command again: it"
        " goes on.",
    )


def failed_result(
    cell: Cell,
    error: ProvisionError,
    *,
    phase: Literal["resolve", "build"],
    digest: str | None = None,
) -> Result:
    """Return what is remembered of an error.

    A driver that itself excludes the kernel, as a dkms.conf can, is not supported, and has not
    failed.
    """
    if isinstance(error, BuildError) and error.exit_code is ExitCode.NOT_FOUND:
        return result_of(
            cell,
            "not-supported",
            digest=digest,
            message=error.message[:_LONGEST_TEXT],
            resolution=error.resolution,
        )
    more: dict[str, object] = {}
    if isinstance(error, BuildError):
        lines = list(error.step.lines) if error.step else []
        more = {
            "instruction": error.step.instruction if error.step else None,
            "log": str(error.log) if error.log else None,
            "errors": len(error.source_errors),
            "excerpt": tuple(redact(line[:_LONGEST_LINE]) for line in _excerpt(error, lines)),
        }
        if error.source_errors:
            first = error.source_errors[0]
            more["first_error"] = FirstError(
                file=first.file,
                line=first.line,
                text=redact(first.text[:_LONGEST_LINE]),
                excerpt=tuple(line[:_LONGEST_LINE] for line in first.excerpt),
            )
    return result_of(
        cell,
        "failed",
        digest=digest,
        reason=kind_of(error),
        phase=phase,
        message=error.message[:_LONGEST_TEXT],
        resolution=error.resolution,
        details=error.details[:_LONGEST_TEXT] if error.details else None,
        **more,
    )


def _excerpt(error: BuildError, lines: Sequence[str]) -> Sequence[str]:
    """Return the part of a step's output that says why it failed.

    Args:
        error: Why it failed.
        lines: What the step printed.
    """
    if not error.source_errors:
        return lines[-_LAST_LINES:]
    first = error.source_errors[0]
    place = first.file if first.line is None else f"{first.file}:{first.line}:"
    at = next((number for number, line in enumerate(lines) if place in line), None)
    if at is None:
        return lines[-_LAST_LINES:]
    return lines[max(0, at - _LINES_BEFORE) : at + _LINES_AFTER]
