"""Says why a build failed: the source line and the kernel, the checksum, the package, the disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from provision.build.failure_causes import cause_of, what
from provision.engine.stream import BuildStream, StepRecord
from provision.errors import ExitCode, NotFoundError, ProvisionError
from provision.pin import Pin

# GCC and clang: https://gcc.gnu.org/onlinedocs/gcc/Diagnostic-Message-Formatting-Options.html
_COMPILER = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?:fatal )?error: (?P<text>.+)$"
)
_MODPOST = re.compile(r"^ERROR: modpost: (?P<text>.+ \[(?P<file>[^\]]+)\] undefined!)$")
_EXCERPT = re.compile(r"^\s*(\d+ )?\s*\|")
_EXCERPT_LINES = 4
_ERRORS_SHOWN = 5
_LAST_LINES = 20
_INSTRUCTION_WIDTH = 160


@dataclass(frozen=True, slots=True)
class SourceError:
    """An error that the compiler reports.

    Attributes:
        line: Line number; None for an unresolved symbol.
    """

    file: str
    line: int | None
    text: str
    excerpt: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return "\n".join([f"{place}: error: {self.text}", *self.excerpt])


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """What is known of a failed build besides its message.

    Attributes:
        is_outside: Whether the cause is neither the driver nor its Pin, but a full disk or a
            network that fails. Other builds would fail alike.
        exit_code: ``NOT_FOUND`` where the driver itself says that it is not for the kernel.
    """

    steps: Sequence[StepRecord] = ()
    source_errors: Sequence[SourceError] = ()
    log: Path | None = None
    is_outside: bool = False
    exit_code: ExitCode = ExitCode.FAILED


class BuildError(ProvisionError):
    """A build that failed; the other attributes are those of its ``BuildFailure``."""

    def __init__(
        self,
        message: str,
        failure: BuildFailure = BuildFailure(),
        *,
        resolution: str,
        details: str,
    ) -> None:
        super().__init__(message, resolution=resolution, details=details)
        self.exit_code = failure.exit_code
        self.steps = tuple(failure.steps)
        self.log = failure.log
        self.source_errors = tuple(failure.source_errors)
        self.is_outside = failure.is_outside

    @property
    def step(self) -> StepRecord | None:
        """The instruction that failed, if one did."""
        return self.steps[-1] if self.steps else None

    def members(self) -> dict[str, object]:
        """Return the instruction that failed, and each error of the compiler."""
        return {
            "instruction": self.step.instruction if self.step else None,
            "source_errors": [asdict(error) for error in self.source_errors],
        }


def build_error(pin: Pin, stream: BuildStream, log: Path) -> BuildError:
    """Return the error of a failed build."""
    step = stream.steps[-1] if stream.steps else None
    lines = list(step.lines) if step else []
    where = f"Step {step.number}/{stream.total}: {_short(step.instruction)}" if step else ""
    failure = BuildFailure(stream.steps, source_errors(lines), log)
    if failure.source_errors:
        shown = [str(error) for error in failure.source_errors[:_ERRORS_SHOWN]]
        details = "\n".join([*shown, where, f"Whole output: {log}"])
        return _compile_error(pin, failure, details)
    ending = [where, *lines[-_LAST_LINES:], _reason(stream), f"Whole output: {log}"]
    details = "\n".join(line for line in ending if line)
    return _step_error(pin, failure, [*lines, stream.error or ""], details)


def kind_of(error: ProvisionError) -> Literal["compile", "build", "missing", "failed"]:
    """Return the kind of a failure, as status, metrics and the matrix name it.

    ``compile``: a compiler refused the source, and will do so again. ``build``: another step
    failed. ``missing``: headers, kernel, driver or version. ``failed``: everything else.
    """
    match error:
        case BuildError():
            return "compile" if error.source_errors else "build"
        case NotFoundError():
            return "missing"
        case _:
            return "failed"


def _short(instruction: str) -> str:
    words = " ".join(instruction.split())
    return words if len(words) <= _INSTRUCTION_WIDTH else f"{words[:_INSTRUCTION_WIDTH]}…"


def _reason(stream: BuildStream) -> str:
    """Return the message of the engine, without the whole instruction that it repeats."""
    if stream.exit_status is not None:
        return f"The step ended with exit status {stream.exit_status}."
    return stream.error or ""


def source_errors(lines: Sequence[str]) -> list[SourceError]:
    """Return the errors of compilers and modpost in the output of a build, in its order."""
    errors = []
    for index, line in enumerate(lines):
        if match := _COMPILER.match(line):
            excerpt = _excerpt(lines[index + 1 :])
            errors.append(SourceError(match["file"], int(match["line"]), match["text"], excerpt))
        elif match := _MODPOST.match(line):
            errors.append(SourceError(match["file"], None, match["text"]))
    return errors


def _excerpt(following: Sequence[str]) -> tuple[str, ...]:
    lines = []
    for line in following[:_EXCERPT_LINES]:
        if not _EXCERPT.match(line):
            break
        lines.append(line)
    return tuple(lines)


def _compile_error(pin: Pin, failure: BuildFailure, details: str) -> BuildError:
    first = failure.source_errors[0]
    place = first.file if first.line is None else f"{first.file} line {first.line}"
    number = len(failure.source_errors)
    count = "1 error" if number == 1 else f"{number} errors"
    return BuildError(
        f"{what(pin)} does not compile: {count}, the first in {place}.",
        failure,
        resolution="Take a driver version that supports this kernel (--version), another flavour"
        f" (--flavour) or another kernel ('provision drivers kernels {pin.driver.name}' lists"
        f" them). If"
        " there is none, add a patch to the driver's patches/ folder, or report the lines above to"
        " its vendor.",
        details=details,
    )


def _step_error(pin: Pin, failure: BuildFailure, lines: Sequence[str], details: str) -> BuildError:
    found = cause_of(lines)
    if found is None:
        return BuildError(
            f"{what(pin)} could not be built.",
            failure,
            resolution="The lines above are the failing step's last ones; the whole output has the"
            " rest.",
            details=details,
        )
    cause, line = found
    return BuildError(
        cause.message(pin, line),
        replace(failure, is_outside=cause.is_outside, exit_code=cause.exit_code),
        resolution=cause.resolution,
        details=details,
    )
