"""The command ``provision``: loads and runs a command, and turns its errors into exit codes.

A command is imported only when it is called, so that ``--help`` does not wait for the Docker SDK.
"""

from __future__ import annotations

import gc
import importlib
import locale
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from provision import __version__
from provision.cli.output import fail, remark
from provision.errors import ExitCode, ProvisionError, UsageError, as_error, choices, redact

# What click 8.2 and later raise where a group has no command: its message is the help.
_NO_COMMAND: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
# The overview, which is shown without importing the commands.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "On a host": {
        "status": "Show the state of each driver, for this kernel and the next.",
        "plan": "Show what 'apply' would do, and why.",
        "apply": "Bring this host to the state that provision.toml describes.",
        "rollback": "Go back to the previous artifact of a driver.",
        "load": "Load drivers' modules from the store into the running kernel.",
        "unload": "Unload drivers' modules from the running kernel.",
        "gc": "Remove artifacts that no kernel needs.",
        "doctor": "Explain what is wrong with drivers on this host, and what to do.",
        "facts": "Show facts about this host: distro, kernel, engines, devices.",
        "devices": "Show the indices and UUIDs of devices, or read them again.",
        "units": "Install or remove the systemd units and kernel hooks.",
        "uninstall": "Remove all drivers, units and files that provision made.",
    },
    "Build": {
        "drivers": "List drivers, their kernels and versions; add drivers.",
        "resolve": "Decide every input of a build: the Pin.",
        "build": "Build a driver's modules and user space into an image.",
        "verify": "Compare an image or a store entry with its manifest, and try it in its kernel.",
        "install": "Put an artifact into the host's store and switch to it.",
        "matrix": "List or build drivers for many kernels; push and sign them for a fleet.",
    },
    "Share": {
        "registry": "Push, pull, sign and list artifact images; make the keys.",
    },
    "Export": {
        "export": "Write a driver, or what hosts need first, for another system.",
    },
}
COMMANDS: Mapping[str, str] = {
    name: line for commands in GROUPS.values() for name, line in commands.items()
}
_MODULES: Mapping[str, str] = {
    **dict.fromkeys(("status", "plan", "apply", "rollback"), "agent"),
    **dict.fromkeys(("load", "unload", "facts", "devices"), "host"),
    **dict.fromkeys(("doctor", "units", "gc", "uninstall"), "maintenance"),
    **dict.fromkeys(("resolve", "verify", "install"), "build"),
}


def load_command(name: str) -> click.Command:
    """Import the command of a name."""
    module = importlib.import_module(f"provision.cli.{_MODULES.get(name, name)}")
    if not gc.isenabled():
        # `main` switched it off. Imported modules stay, so the last collection can skip them.
        gc.freeze()
        gc.enable()
    found = (one for one in vars(module).values() if isinstance(one, click.Command))
    return next(one for one in found if one.name == name)


_VERBOSE = ("-v", "--verbose")


class LazyGroup(click.Group):
    """A group whose commands are loaded when they are called, and which takes -v anywhere."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the program's own option before a command for one after it."""
        return super().parse_args(ctx, sorted(args, key=_VERBOSE.__contains__, reverse=True))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of their use."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        del ctx
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name; suggest one for an unknown name."""
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        raise click.UsageError(f"There is no command '{name}'. {choices(name, COMMANDS)}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview without loading the commands."""
        del ctx
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


_UMASK = 0o022
_HELP = {"help_option_names": ["-h", "--help"]}
_EXIT_CODES = (
    "Exit codes: 0 done, or nothing to do; 1 failed; 2 wrong usage or configuration; 3 not found"
    " or not supported; 4 in use, or a reboot is needed; 130 interrupted."
)


def handlers() -> list[logging.Handler]:
    """Return the handlers of logs: standard error, without secrets."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Redacting("%(message)s"))
    return [handler]


class _Redacting(logging.Formatter):
    """Removes the passwords from addresses, which libraries log too."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


@click.group(cls=LazyGroup, context_settings=_HELP, epilog=_EXIT_CODES)
@click.option(
    *_VERBOSE,
    is_flag=True,
    help="Show the programs that are run, and all output of builds.",
)
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
    """Run ``provision`` and exit; without arguments, with those of this process."""
    if arguments is None:
        _in_utf8()
    signal.signal(signal.SIGTERM, _terminate)
    # Modes are set, never inherited: a driver's files are for all users to read, and for none but
    # this one to write. What is for this user alone is made so by name.
    os.umask(_UMASK)
    # Until the command is imported, there is no garbage, and looking for it takes 0.05 s of 0.3 s.
    gc.disable()
    args = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(args))


def run(args: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    try:
        result = group.main(args=list(args), prog_name="provision", standalone_mode=False)
    except BrokenPipeError:
        # The reader has closed our output: no message would reach it.
        sys.stderr.close()
        return ExitCode.FAILED
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, _NO_COMMAND):
            remark(error.format_message())
            return ExitCode.USAGE
        # The caller reads JSON even if the command line has mistakes.
        return fail(_explained(error), as_json="--json" in args)
    return result if isinstance(result, int) else ExitCode.DONE


def _explained(error: BaseException) -> ProvisionError:
    if isinstance(error, click.UsageError):
        program = error.ctx.command_path if error.ctx else "provision"
        return UsageError(
            error.format_message(), resolution=f"'{program} --help' lists the options."
        )
    return as_error(KeyboardInterrupt() if isinstance(error, click.Abort) else error)


def _in_utf8() -> None:
    """Start this process again in Python's UTF-8 mode if the locale has another encoding.

    What provision reads and writes is UTF-8, whatever a locale such as ``de_DE`` says. From
    Python 3.15 on, that mode is the default: https://peps.python.org/pep-0686/.
    """
    if locale.getpreferredencoding(do_setlocale=False).lower() not in ("utf-8", "utf8"):
        again = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
        os.execv(again[0], again)  # noqa: S606 - this program itself


def _terminate(number: int, frame: FrameType | None) -> None:
    """Stop as on Ctrl-C, so that running work cleans up."""
    del number, frame
    raise KeyboardInterrupt
