"""The errors of provision: what happened, to what, and what to do next; without secrets.

A mirror's address may contain a password, and errors name addresses. Any user can read errors: on a
terminal, in the journal, in the status. Errors also quote servers and programs, whose control
characters could move the cursor or overwrite other output.

Lower layers raise these; only the outermost layer (``provision.cli``) turns them into exit codes.
"""

from __future__ import annotations

import difflib
import errno
import re
import traceback
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

# What is shown of a secret, and the secret. The first form that fits at a place counts. Parts that
# other forms could begin in have a limit: a program may print a line of any length.
_FORMS = (
    # The PIN in a PKCS#11 URI (RFC 7512, section 2.4) with its quotes.
    (r"pin(?:-|%2d)value(?:=|%3d)", r"[^&\s]*[^&\s'\"]"),
    # The password in an address (RFC 3986, 3.2.1), up to the last '@', if neither '@' nor '/' is
    # encoded. A number before '/' is a port.
    (r"://(?!\[)[^/:\s]*:", r"(?!\d+[/?#])[^\s\"<>]{1,512}(?=@)"),
    # One without a scheme, as of a proxy in a variable, or of an image: before a port,
    # a folder, or the end of a quotation. The '@' before a digest is another.
    (
        r"(?<![\w.%+/:@-])(?!(?<=\[)[\da-f:.]+\])[\w.%+-]{0,64}:",
        (
            r"(?!/|\d+/)[^\s\"'<>]{1,512}"
            r"(?=@(?!sha256:)(?:[\w.-]+|\[[\da-f:.]+\])(?::\d{1,5}(?!\w)|[/'\")\]]))"
        ),
    ),
    # What programs quote of an address with '/' in its password: Python, urllib3, curl, Go.
    (
        r"(?:integer value as|failed to parse:|proxy syntax in|invalid port) ['\"](?:[^'\":\s]*:)?",
        r"[^'\"]+",
    ),
    # A token in the password's place.
    (r"https?://", r"[^/@:\s?#]+(?=@(?![^/@:\s]*:[^/@\s]*@))"),
    # A value of the query whose name says that it is one.
    (
        (
            r"[?&#](?:[\w.-]*(?:token|secret|passw|pwd|signature|credential|auth|api_?key)[\w.-]*"
            r"|key|sig|code|jwt)="
        ),
        r"[^&\s'\"<>]+",
    ),
    # A query that is nothing but a token, as SUSE's.
    (r"https?://[^\s?'\"]{1,512}\?", r"[^&=\s'\"<>]{16,}=*(?=[\s'\"<>.,;)]|$)"),
    # Headers of HTTP.
    (
        r"\b(?:proxy-)?authorization['\"]?\s*[:=]\s*['\"]?(?:(?:basic|bearer|token|negotiate)\s+)?",
        r"[^\s'\"]+",
    ),
    (
        r"\b(?:x-[\w-]{0,64}(?:token|key|auth|secret)[\w-]{0,64}|private-token|(?:set-)?cookie)['\"]?:\s*['\"]?",
        r"[^\s'\"][^\n'\"]*",
    ),
    (r"\bbearer\s+", r"(?=[\w.~+/-]*\d)[\w.~+/-]{8,}=*"),
    # Variables and options of programs.
    (
        r"(?:passw(?:or)?d|secret(?:[_-]access[_-]key)?|(?:access|auth|api)[_-]?(?:token|key))=['\"]?",
        r"[^\s&'\"<>;,]+",
    ),
    # What apt and curl read logins from: apt_auth.conf(5).
    (r"\blogin\s+\S{1,512}\s+password\s+", r"\S+"),
    # What only this user knows of the engine's cache, see provision.build.image.
    (r"provision\.cache=", r"\w+"),
    # A server's answer, or a file of logins, in JSON.
    (r"\"[\w-]*(?:token|secret|passw\w*|pwd|auth)\"\s*:\s*\"", r"[^\"]+"),
    # Tokens that are known by how they begin: those of GitHub, GitLab, Hugging Face, Docker Hub,
    # Slack; JWT.
    (
        r"\b",
        (
            r"(?:(?:gh[pousr]|github_pat|hf)_\w{16,}|glpat-[\w-]{16,}|dckr_[po]at_[\w-]{16,}|xox[abprs]-[\w-]{10,}"
            r"|eyJ[\w-]{8,2048}\.eyJ[\w-]+\.[\w-]*)"
        ),
    ),
)
_SECRET = re.compile("|".join(f"({shown}){secret}" for shown, secret in _FORMS), re.IGNORECASE)
# Colours and line ends of other systems are removed without a replacement.
_HARMLESS = re.compile(r"\x1b\[[0-9;]*m|\r(?=\n)")
# All other control characters but the tab and the end of a line, and those that turn the direction
# of writing (https://www.unicode.org/reports/tr36/#Bidirectional_Text_Spoofing).
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return a text that does nothing to a terminal; control characters become question marks."""
    return _CONTROL.sub("?", _HARMLESS.sub("", text))


def redact(text: str) -> str:
    """Return a text that any user may see on any terminal.

    PINs of PKCS#11 URIs, passwords and tokens in addresses, headers and answers are removed;
    control characters become question marks.
    """
    return _SECRET.sub(lambda found: f"{found[found.lastindex or 0]}***", printable(text))


def plain(value: object) -> Any:  # noqa: ANN401 - any JSON
    """Return a value as JSON has it: a named tuple or a model as an object."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        named = getattr(value, "_fields", None)
        inner = map(plain, value)
        return list(inner) if named is None else dict(zip(named, inner, strict=True))
    dump = getattr(value, "model_dump", None)
    return str(value) if dump is None else dump(mode="json")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question after the name that was probably meant, and a blank; "": none is near."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return f"Did you mean '{close[0]}'? " if close else ""


def choices(name: str, there: Iterable[str], *, also: Iterable[str] = ()) -> str:
    """Return the names that exist, after the one that was probably meant."""
    names = list(there)
    are = "is" if len(names) == 1 else "are"
    return f"{did_you_mean(name, [*names, *also])}There {are} {', '.join(names) or 'none'}."


class ExitCode(IntEnum):
    """Exit codes of every ``provision`` command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    IN_USE = 4
    INTERRUPTED = 130


class ProvisionError(Exception):
    """A failure with a reason that the user can act on."""

    exit_code = ExitCode.FAILED
    # The kind of failure, as status, metrics, the matrix and JSON name it.
    reason = "failed"
    # Whether the machine or a network failed, and not what was asked for: other builds would fail
    # alike, and the same one may work later.
    is_outside = False

    def __init__(
        self,
        message: str,
        *,
        resolution: str | None = None,
        details: str | None = None,
        reason: str | None = None,
        is_outside: bool = False,
    ) -> None:
        self.reason = reason or self.reason
        self.is_outside = is_outside or self.is_outside
        # Terminals, the journal and world-readable files show them.
        self.message = redact(message)
        self.resolution = resolution and redact(resolution)
        self.details = details and redact(details)
        super().__init__(self.message)

    def members(self) -> dict[str, object]:
        """Return further members of the error's JSON document, for programs."""
        return {}

    def document(self) -> dict[str, Any]:
        """Return the error as JSON has it."""
        return {
            "message": self.message,
            "resolution": self.resolution,
            "details": self.details,
            "exit_code": int(self.exit_code),
            "reason": self.reason,
            "is_outside": self.is_outside,
            **self.members(),
        }


class UsageError(ProvisionError):
    """The command line, or an argument of a function, is not valid."""

    exit_code = ExitCode.USAGE


class NotFoundError(ProvisionError):
    """A kernel, its headers, a driver, a version or a distro is unknown or unsupported."""

    exit_code = ExitCode.NOT_FOUND
    reason = "missing"


class InUseError(ProvisionError):
    """The thing to change is in use, or a reboot is needed first."""

    exit_code = ExitCode.IN_USE
    is_outside = True


class UnreachableError(ProvisionError):
    """The network or the server failed, so that the same request may work later."""

    is_outside = True


class DeniedError(ProvisionError):
    """A registry or repository denies this host access.

    Many registries give the same answer for missing repositories, so as not to reveal which exist.
    """


class WrongContentError(ProvisionError):
    """What was sent is not what its digest, its signature or the server's certificate says."""


class UntrustedError(ProvisionError):
    """An image lacks a trusted signature or origin, or is older than what was installed before."""

    reason = "untrusted"


class UnfitError(ProvisionError):
    """A module does not fit the running kernel: no other moment, key or setting would help."""


class Mistake(NamedTuple):
    """One mistake of a configuration file."""

    # Where in the file, as dotted keys (``flavours.open.build.command``); empty for the whole file.
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(ProvisionError):
    """A configuration file has mistakes; carries all of them, not only the first."""

    exit_code = ExitCode.USAGE

    def __init__(
        self, file: str, mistakes: Iterable[Mistake], *, resolution: str | None = None
    ) -> None:
        self.file = file
        # Programs print them as they are.
        self.mistakes = tuple(Mistake(redact(one.path), redact(one.message)) for one in mistakes)
        # Where there is room for one line, it names the first.
        first, *others = map(str, self.mistakes)
        super().__init__(
            f"{file}: {first}" + (f" (and {len(others)} more)" if others else ""),
            resolution=resolution,
            details="\n".join((first, *others)),
        )

    def members(self) -> dict[str, object]:
        """Return the file and each mistake."""
        return {"file": self.file, "mistakes": [mistake._asdict() for mistake in self.mistakes]}


class UnexpectedError(ProvisionError):
    """An error that the program does not expect: one of a library, or a defect."""

    is_outside = True


class InterruptedRunError(ProvisionError):
    """Ctrl-C, or SIGTERM."""

    exit_code = ExitCode.INTERRUPTED


def as_error(error: BaseException) -> ProvisionError:
    """Return the error to report for an exception."""
    resolution: str | None
    match error:
        case ProvisionError():
            return error
        case KeyboardInterrupt():
            return InterruptedRunError(
                "Interrupted.", resolution="Run the command again: it continues where it can."
            )
        case PermissionError():
            resolution = "Run the command as root, or give another --root."
        case OSError() if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}:
            resolution = "Free some space or make the folder writable, then run the command again."
        case OSError() if error.errno is not None:
            resolution = f"Look at it: ls -ld '{error.filename}'" if error.filename else None
        case _:
            return UnexpectedError(
                f"provision itself failed: {type(error).__name__}: {error}",
                resolution="Run the command again. If the error persists, it is a defect: report it"
                " with the lines above.",
                details="".join(traceback.format_exception(error)).rstrip(),
            )
    what = f"'{error.filename}': " if error.filename else ""
    message = f"{what}{error.strerror or error}."
    return ProvisionError(message, resolution=resolution, is_outside=True)
