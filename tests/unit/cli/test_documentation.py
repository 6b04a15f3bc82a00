"""The reference names every command, option and exit code."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from provision.cli.entry import COMMANDS, load_command
from provision.errors import ExitCode

_REFERENCE = Path(__file__).parents[3] / "docs/reference"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_reference_names_every_command_with_its_options(name: str) -> None:
    text = (_REFERENCE / "provision.md").read_text()
    command = load_command(name)
    below = command.commands if isinstance(command, click.Group) else {"": command}
    for words in (f"{name} {one}".strip() for one in below):
        assert f"## `provision {words}" in text


def test_the_reference_names_every_exit_code() -> None:
    text = (_REFERENCE / "provision.md").read_text()
    for code in ExitCode:
        assert f"| {int(code)} |" in text
