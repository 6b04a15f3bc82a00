"""The entry point: loads and runs a command, and turns its errors into messages and exit codes.

A command is imported only when it is called, so that ``--help`` does not wait for the Docker SDK.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import json
import logging
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from provision import __version__
from provision.errors import ExitCode, ProvisionError, UsageError, redact

# What click 8.2 and later raise where a group has no command: its message is the help.
_NO_COMMAND: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
# Names with their lines in the overview, which is shown without importing the commands.
COMMANDS: Mapping[str, str] = {
    "facts": "Show facts about this host: distro, kernel, engines, devices.",
    "drivers": "List the drivers of the catalogue.",
    "kernels": "List the packaged kernels, and whether a driver builds on each.",
    "versions": "Show which versions of a driver are installed and offered.",
    "import": "Write the recipe of a driver that has a dkms.conf.",
    "resolve": "Decide every input of a build: the Pin.",
    "render": "Write the Dockerfile and build context of a Pin.",
    "base": "Pull or make the base image of a distro.",
    "build": "Build a driver's modules and user space into an image.",
    "matrix": "Build drivers for many kernels, and show which of them build.",
    "prebuild": "Build, push and sign the drivers of a fleet, each cell once.",
    "key": "Generate the keys that sign images.",
    "push": "Push an artifact image to the registry that hosts pull from.",
    "sign": "Sign an artifact image in a registry or an archive.",
    "search": "List the artifact images of a driver in a registry.",
    "pull": "Put a signed artifact of a registry into the store.",
    "bundle": "Carry artifacts, and what builds need, over an air gap.",
    "verify": "Compare an image or a store entry with its manifest.",
    "install": "Put an artifact into the host's store and switch to it.",
    "plan": "Show what 'apply' would do, and why.",
    "apply": "Bring this host to the state that provision.toml describes.",
    "prepare": "Make drivers ready for kernels that are not installed yet.",
    "status": "Show the state of each driver, for this kernel and the next.",
    "rollback": "Go back to the previous artifact of a driver.",
    "gc": "Remove artifacts that no kernel needs.",
    "load": "Load drivers' modules from the store into the running kernel.",
    "unload": "Unload drivers' modules from the running kernel.",
    "devices": "Show the indices and UUIDs of devices, or read them again.",
    "vendor-file": "Write the vendor file of a driver that provision did not install.",
    "doctor": "Explain what is wrong with drivers on this host, and what to do.",
    "host-python": "Make a Python for hosts that have none.",
    "units": "Install or remove the systemd units and kernel hooks.",
    "export": "Write a driver for KMM, for a DaemonSet, or as a system extension.",
    "ignition": "Make the files for the first boot of Fedora CoreOS or Flatcar.",
}

# Commands that share a module with the one that it is named after.
_MODULES: Mapping[str, str] = {
    "base": "build",
    "devices": "load",
    "facts": "doctor",
    "gc": "status",
    "host-python": "ignition",
    "import": "drivers",
    "kernels": "versions",
    "key": "push",
    "plan": "apply",
    "prepare": "apply",
    "render": "resolve",
    "rollback": "status",
    "search": "pull",
    "sign": "push",
    "unload": "load",
    "vendor-file": "load",
    "verify": "install",
}


def load_command(name: str) -> click.Command:
    """Import a command: ``command`` of the module of its name, or ``NAME_command`` of another."""
    module = importlib.import_module(f"provision.cli.commands.{_MODULES.get(name, name)}")
    if not gc.isenabled():
        # `main` switched it off. Imported modules stay, so the last collection can skip them.
        gc.freeze()
        gc.enable()
    command: click.Command = vars(module).get(f"{name.replace('-', '_')}_command") or module.command
    _let_be_verbose(command)
    return command


def _let_be_verbose(command: click.Command) -> None:
    """Let a command and those below it take ``-v``, which is the program's own option."""
    names = {name for option in command.params for name in option.opts}
    if not names & {"-v", "--verbose"}:
        command.params.append(
            click.Option(
                ["-v", "--verbose"],
                is_flag=True,
                hidden=True,
                expose_value=False,
                callback=_be_verbose,
            )
        )
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _let_be_verbose(below)


def _be_verbose(context: click.Context, option: click.Parameter, value: bool) -> None:  # noqa: FBT001 - as click calls it
    del option
    if value:
        context.find_root().params["verbose"] = True
        logging.getLogger("provision").setLevel(logging.DEBUG)


class LazyGroup(click.Group):
    """A group whose commands are loaded from ``provision.cli.commands`` when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of their use."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        return load_command(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name; suggest one for an unknown name."""
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        close = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise click.UsageError(
            f"There is no command '{name}'.{hint} There are {', '.join(COMMANDS)}.", ctx
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview without loading the commands."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


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
    "-v",
    "--verbose",
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
    """Run ``provision`` and exit.

    Args:
        arguments: The command line without the program's name; None: this process's own.
    """
    signal.signal(signal.SIGTERM, _terminate)
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
            click.echo(error.format_message(), err=True)
            return ExitCode.USAGE
        return _fail(args, _explained(args, error))
    return result if isinstance(result, int) else ExitCode.DONE


def _explained(args: Sequence[str], error: BaseException) -> ProvisionError:
    """Return the error to report for an exception of a command."""
    match error:
        case ProvisionError():
            return error
        case click.UsageError():
            return _usage_error(args, error)
        case KeyboardInterrupt() | click.Abort():
            return InterruptedByUserError(
                "Interrupted.", resolution="Run the command again: it continues where it can."
            )
        case OSError():
            return _system_error(error)
        case _:
            return _defect(error)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Stop as on Ctrl-C, so that running work cleans up."""
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
    """Whether the caller reads JSON, even if the command line has mistakes."""
    return "--json" in args


def _usage_error(args: Sequence[str], error: click.UsageError) -> UsageError:
    # click finds mistakes in options before it knows the command.
    command = next((word for word in args if word in COMMANDS), None)
    program = f"provision {command}" if command else "provision"
    return UsageError(error.format_message(), resolution=f"'{program} --help' lists the options.")


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
