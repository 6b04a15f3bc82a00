"""The command line as a whole: overview, errors, exit codes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import provision.cli as module
from provision.errors import InUseError, ProvisionError
from unit.cli.outcome import Outcome

Call = Callable[..., Outcome]


def _commands() -> list[tuple[str, click.Command]]:
    """Every command with its words, those of groups included."""
    found = [(name, module.load_command(name)) for name in module.COMMANDS]
    groups = [(name, one) for name, one in found if isinstance(one, click.Group)]
    return [*found, *((f"{n} {b}", c) for n, g in groups for b, c in g.commands.items())]


def test_every_command_is_verbose_wherever_that_is_written(call: Call, tmp_path: Path) -> None:
    for words, _command in _commands():
        assert call(*words.split(), "-v", "--help").code == 0, words
    assert call("drivers", "-v", "kernels", "--help").code == 0
    (tmp_path / "etc").mkdir()
    codes = {
        call(*words, "--root", tmp_path).code for words in (("status", "-v"), ("-v", "status"))
    }
    assert codes == {call("status", "--root", tmp_path).code}


@pytest.mark.parametrize("flag", ["--again", "--replace", "--refresh", "--jobs", "--parallel"])
def test_a_flag_has_one_meaning(flag: str) -> None:
    options = [
        option
        for _words, command in _commands()
        for option in command.params
        if isinstance(option, click.Option) and flag in option.opts
    ]
    # In brackets stands the value without it.
    meanings = {(option.help or "").partition("  [")[0] for option in options}
    assert len(meanings) == 1


@pytest.mark.parametrize("words", [[], ["export"], ["registry"]])
def test_a_group_without_a_command_shows_its_help(call: Call, words: list[str]) -> None:
    outcome = call(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("Usage: provision")
    assert ("Commands:" if words else "On a host:") in outcome.err
    assert "Error" not in outcome.err
    # What a command is for is said to its end.
    assert not re.search(r"[a-z]\.\.\.$", outcome.err, re.MULTILINE)


@pytest.mark.parametrize("command", ["status", "plan", "apply", "gc", "doctor", "facts"])
def test_a_root_that_does_not_exist_is_no_ready_host(
    call: Call, tmp_path: Path, command: str
) -> None:
    outcome = call(command, "--root", tmp_path / "typo")
    assert outcome.code == 2
    assert not outcome.out


def _raising(error: BaseException) -> Callable[..., None]:
    """What the system answers to the command `facts`."""

    def answer() -> None:
        raise error

    return answer


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ProvisionError("It broke.", resolution="Repair it.", details="a\nb"), 1, "It broke."),
        (InUseError("In use."), 4, "In use."),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (PermissionError(13, "Permission denied", "/var/lib/x"), 1, "'/var/lib/x': Permission"),
        (OSError(28, "No space left on device"), 1, "No space left"),
        (ZeroDivisionError("oops"), 1, "provision itself failed: ZeroDivisionError: oops"),
    ],
)
def test_whatever_happens_has_a_code_and_a_document(
    call: Call, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    monkeypatch.setattr("os.uname", _raising(error))
    outcome = call("facts", "--json")
    assert outcome.code == code
    assert said in outcome.document["error"]["message"]
    assert outcome.document["error"]["exit_code"] == code
    plain = call("facts")
    assert plain.code == code
    assert plain.out == ""
    assert said in plain.err


def test_a_closed_pipe_is_no_news(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.uname", _raising(BrokenPipeError()))
    monkeypatch.setattr("sys.stderr.close", lambda: None)
    assert call("facts").err == ""


def test_no_log_has_a_mirrors_password() -> None:
    """As a warning names the archive that it is about, and urllib3 what it tries again."""
    text = "%s can't be reached; using its index"
    record = logging.LogRecord("x", logging.WARNING, "", 0, text, ("https://me:hush@m/",), None)
    handlers = [handler for handler in module.handlers() if handler.formatter is not None]
    assert [handler.format(record) for handler in handlers] == [
        "https://me:***@m/ can't be reached; using its index"
    ]
