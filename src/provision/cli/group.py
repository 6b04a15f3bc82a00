"""The commands, each loaded when it is called: ``--help`` must not wait for the Docker SDK."""

from __future__ import annotations

import difflib
import importlib
import keyword
from collections.abc import Mapping

import click

# Name, and what the overview says: without importing the command.
COMMANDS: Mapping[str, str] = {
    "facts": "Show what this host is: distro, kernel, engines, devices.",
    "drivers": "List the drivers of the catalogue.",
    "kernels": "List the packaged kernels, and whether a driver builds on each.",
    "versions": "Show which versions of a driver are installed and offered.",
    "import": "Write the recipe of a driver that brings a dkms.conf.",
    "resolve": "Decide every input of a build: the Pin.",
    "render": "Write the Dockerfile and build context of a Pin.",
    "base": "Make the base image of a distro where it can't be pulled.",
    "build": "Build a driver's modules and user space into an image.",
    "matrix": "Build drivers for many kernels, and show which of them build.",
    "prebuild": "Build, push and sign the drivers of a fleet, each cell once.",
    "key": "Make the keys that images are signed with.",
    "push": "Push an artifact image to a registry, from where hosts pull it.",
    "sign": "Sign an artifact image of a registry.",
    "catalogue": "Bring a registry's catalogue of a driver up to date, and sign it.",
    "search": "List the artifact images of a driver in a registry.",
    "pull": "Put the artifact of a registry's image into the store, if it is signed.",
    "mirror": "Copy signed artifact images from one registry to another.",
    "bundle": "Carry artifacts, and what builds need, over an air gap.",
    "verify": "Compare an image or a store entry with its manifest.",
    "install": "Put an artifact into the host's store and switch to it.",
    "plan": "Say what 'apply' would do, and why.",
    "apply": "Bring this host to what provision.toml says.",
    "prepare": "Have drivers ready for kernels that are yet to come.",
    "status": "Show how each driver is, for this kernel and the next.",
    "fleet": "Show how many hosts are, from one place.",
    "rollback": "Go back to the artifact of a driver that was in use before.",
    "gc": "Remove artifacts that no kernel needs.",
    "load": "Load drivers' modules from the store into the running kernel.",
    "unload": "Unload drivers' modules from the running kernel.",
    "devices": "Show devices' indices and UUIDs, or look at them again.",
    "vendor-file": "Write the vendor file of a driver that the host has from elsewhere.",
    "doctor": "Explain what is wrong with drivers on this host, and what to do.",
    "host-python": "Make a Python for hosts that have none.",
    "units": "Install or remove the systemd units and kernel hooks.",
    "export": "Write a driver for KMM, for a DaemonSet, or as a system extension.",
    "ignition": "Make what Fedora CoreOS or Flatcar needs at its first boot.",
}

# Commands whose module is named after another one; in a module of several they are NAME_command.
_SHARED: Mapping[str, str] = {
    "doctor": "verify",
    "host-python": "base",
    "kernels": "versions",
    "key": "sign",
    "plan": "apply",
    "render": "resolve",
    "rollback": "status",
    "unload": "load",
    "vendor-file": "devices",
}


def load_command(name: str) -> click.Command:
    """Import a command; a module can't be called ``import``, so that one has a ``_``."""
    own_name = name.replace("-", "_")
    module_name = _SHARED.get(name, own_name)
    if keyword.iskeyword(module_name):
        module_name += "_"
    module = importlib.import_module(f"provision.cli.commands.{module_name}")
    command: click.Command = vars(module).get(f"{own_name}_command") or module.command
    return command


class LazyGroup(click.Group):
    """A group whose commands are the modules of ``provision.cli.commands``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which one uses them."""
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
        """Find the command that the arguments begin with; an unknown one gets a suggestion."""
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
