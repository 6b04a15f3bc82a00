"""The one family of errors: what happened, to what, and what to do next.

Lower layers raise these; only the outermost layer (``provision.cli``) turns them into exit codes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import IntEnum

from provision.redaction import redact


class ExitCode(IntEnum):
    """Exit codes of every ``provision`` command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    IN_USE = 4
    INTERRUPTED = 130


class ProvisionError(Exception):
    """Something failed for a reason that its reader can act upon.

    Args:
        message: What happened and to what, in one line.
        resolution: What to do next; shown after the message.
        details: Further text (a compiler's last lines, a program's stderr); shown indented.
    """

    exit_code = ExitCode.FAILED

    def __init__(
        self, message: str, *, resolution: str | None = None, details: str | None = None
    ) -> None:
        # They end up on terminals, in journals and in files that everyone may read.
        self.message = redact(message)
        self.resolution = resolution and redact(resolution)
        self.details = details and redact(details)
        super().__init__(self.message)

    def members(self) -> dict[str, object]:
        """Return what programs want to know besides the text, as what ``json.dumps`` takes."""
        return {}


class UsageError(ProvisionError):
    """The command line or a value given to a function makes no sense."""

    exit_code = ExitCode.USAGE


class NotFoundError(ProvisionError):
    """A kernel, its headers, a driver, a version or a distro is not known or not supported."""

    exit_code = ExitCode.NOT_FOUND


class InUseError(ProvisionError):
    """The thing to change is in use, or a reboot is needed first."""

    exit_code = ExitCode.IN_USE


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake of a configuration file.

    Attributes:
        path: Where in the file, as dotted keys (``flavours.open.build.command``); empty for the
            whole file.
        message: What is wrong there.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(ProvisionError):
    """A configuration file is wrong; carries all of its mistakes, not only the first.

    Args:
        file: The file, as the user would name it.
        mistakes: Everything that is wrong with it.
        resolution: What to do next.
    """

    exit_code = ExitCode.USAGE

    def __init__(
        self, file: str, mistakes: Iterable[Mistake], *, resolution: str | None = None
    ) -> None:
        self.file = file
        self.mistakes = tuple(mistakes)
        count = len(self.mistakes)
        super().__init__(
            f"{file}: {count} mistake{'' if count == 1 else 's'}",
            resolution=resolution,
            details="\n".join(str(mistake) for mistake in self.mistakes),
        )

    def members(self) -> dict[str, object]:
        """Return the file and each mistake."""
        return {"file": self.file, "mistakes": [asdict(mistake) for mistake in self.mistakes]}
