"""The entry point: runs a command and turns what it raises into a message and an exit code."""

from __future__ import annotations

import json
import logging
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from provision import __version__
from provision.cli.group import COMMANDS, LazyGroup
from provision.errors import ExitCode, ProvisionError, UsageError, redact

_INDENT = "  "
_HELP = {"help_option_names": ["-h", "--help"]}
_EXIT_CODES = (
    "Exit codes: 0 done, or nothing to do; 1 failed; 2 wrong usage or configuration; 3 not found"
    " or not supported; 4 in use, or a reboot is needed; 130 interrupted."
)


class InterruptedByUserError(ProvisionError):
    """Ctrl-C, or SIGTERM."""

    exit_code = ExitCode.INTERRUPTED


def handlers() -> list[logging.Handler]:
    """Return where logs go to: standard error, without secrets."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Redacting("%(message)s"))
    return [handler]


class _Redacting(logging.Formatter):
    """Libraries log addresses too, with the passwords in them."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


@click.group(cls=LazyGroup, context_settings=_HELP, epilog=_EXIT_CODES)
@click.option("-v", "--verbose", is_flag=True, help="Show what is run, and all output of builds.")
@click.version_option(__version__, "--version", message="%(prog)s %(version)s")
def group(*, verbose: bool) -> None:
    """Puts accelerator drivers onto container hosts.

    Builds a driver's kernel modules and user space in a container, pinned to kernel and driver
    version, and installs them: facts → resolve → build → verify → install.
    """
    level = logging.DEBUG if verbose else logging.WARNING
    logging.basicConfig(level=logging.WARNING, handlers=handlers())
    logging.getLogger("provision").setLevel(level)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run ``provision`` and exit.

    Args:
        arguments: The command line without the program's name; None: this process's own.
    """
    signal.signal(signal.SIGTERM, _terminate)
    args = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(args))


def run(args: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    try:
        result = group.main(args=list(args), prog_name="provision", standalone_mode=False)
    except BrokenPipeError:
        # The reader of our output has closed it: no message reaches it.
        sys.stderr.close()
        return ExitCode.FAILED
    except (Exception, KeyboardInterrupt) as error:
        return _fail(args, _explained(args, error))
    return result if isinstance(result, int) else ExitCode.DONE


def _explained(args: Sequence[str], error: BaseException) -> ProvisionError:
    """Return the error that stands for anything that a command raised."""
    match error:
        case ProvisionError():
            return error
        case click.UsageError():
            return _usage_error(args, error)
        case KeyboardInterrupt() | click.Abort():
            return InterruptedByUserError(
                "Interrupted.", resolution="Run the command again: it goes on where it can."
            )
        case OSError():
            return _system_error(error)
        case _:
            return _defect(error)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Stop as on Ctrl-C, so that whatever is under way cleans up behind itself."""
    del number, frame
    raise KeyboardInterrupt


def _fail(args: Sequence[str], error: ProvisionError) -> int:
    if _wants_json(args):
        document: dict[str, Any] = {
            "message": error.message,
            "resolution": error.resolution,
            "details": error.details,
            "exit_code": int(error.exit_code),
            **error.members(),
        }
        click.echo(json.dumps({"error": document}, indent=2))
    else:
        click.echo(_text(error), err=True)
    return int(error.exit_code)


def _text(error: ProvisionError) -> str:
    lines = [f"{click.style('Error:', fg='red', bold=True)} {error.message}"]
    lines += [_INDENT + line for line in (error.details or "").splitlines()]
    if error.resolution:
        lines.append(f"{click.style('What to do:', bold=True)} {error.resolution}")
    return "\n".join(lines)


def _wants_json(args: Sequence[str]) -> bool:
    """Whether the caller reads JSON, even where the command line could not be understood."""
    return "--json" in args


def _usage_error(args: Sequence[str], error: click.UsageError) -> UsageError:
    # Mistakes in options are found before click knows which command it is about.
    command = next((word for word in args if word in COMMANDS), None)
    program = f"provision {command}" if command else "provision"
    return UsageError(
        error.format_message(), resolution=f"'{program} --help' shows what can be given."
    )


def _system_error(error: OSError) -> ProvisionError:
    what = f"'{error.filename}': " if error.filename else ""
    resolution = None
    if isinstance(error, PermissionError):
        resolution = "Run the command as root, or give another --root."
    return ProvisionError(f"{what}{error.strerror or error}.", resolution=resolution)


def _defect(error: BaseException) -> ProvisionError:
    return ProvisionError(
        f"provision itself failed: {type(error).__name__}: {error}",
        resolution="This is a defect: please report it with the lines above.",
        details=traceback.format_exc().rstrip(),
    )
