"""The command line as a whole: overview, errors, exit codes, progress, and how it looks."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import pytest
from rich.console import Console

import provision.cli as module
from kit.host_tree import HostTree
from kit.process import run
from provision.cli import output
from provision.cli.output import Screen
from provision.errors import ExitCode, InUseError, ProvisionError
from provision.progress import Event, Note, Output, Step, Transfer, report
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


def test_it_takes_no_heavy_library_to_see_that_nothing_is_to_be_done(host_tree: HostTree) -> None:
    host_tree.want()
    host_tree.offer()
    words = ["apply", "--root", str(host_tree.root)]
    program = (
        f"import sys; from provision.cli import run; code = run({words!r});"
        "heavy = {'docker', 'requests', 'rich', 'jinja2'};"
        "print(*heavy & {*sys.modules}, code)"
    )
    said = [
        run([sys.executable, "-c", program], env=host_tree.environment).stdout.splitlines()[-1]
        for _ in range(2)
    ]
    assert said[0].endswith(" 0")
    assert said[1] == "0"


def test_the_encoding_of_a_locale_changes_nothing(host_tree: HostTree) -> None:
    host_tree.want("# é\n")
    # Without what Python does for the locale C, that is ASCII.
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in (["--help"], ["plan", "--root", str(host_tree.root)]):
        program = [sys.executable, "-m", "provision", *words]
        one, other = (
            run(program, env={**host_tree.environment, **encoding}, check=False)
            for encoding in (ascii_only, {"LC_ALL": "C.UTF-8"})
        )
        assert (one.returncode, one.stdout, one.stderr) == (
            other.returncode,
            other.stdout,
            other.stderr,
        )


@pytest.mark.parametrize("words", [[], ["export"], ["registry"]])
def test_a_group_without_a_command_shows_its_help(call: Call, words: list[str]) -> None:
    outcome = call(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("Usage: provision")
    assert ("Commands:" if words else "On a host:") in outcome.err
    assert "Error" not in outcome.err
    # What a command is for is said to its end.
    assert not re.search(r"[a-z]\.\.\.$", outcome.err, re.MULTILINE)


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


_EVENTS: list[Event] = [
    Note("Pulling"),
    Step(1, 2, "RUN make  &&   more"),
    Output("CC demo.o"),
    Step(2, 2, "x" * 300),
    Transfer("Unpacking", 5_000_000, 10_000_000),
]


@contextmanager
def shown(*, verbose: bool) -> Iterator[None]:
    """The progress of a command, called with or without -v."""
    context = click.Context(click.Command("provision"))
    context.params["verbose"] = verbose
    with context, output.progress():
        yield


@pytest.mark.parametrize(("verbose", "count"), [(False, 3), (True, 4)])
def test_off_a_terminal_an_event_is_a_line(
    capsys: pytest.CaptureFixture[str], *, verbose: bool, count: int
) -> None:
    with shown(verbose=verbose):
        for event in _EVENTS:
            report(event)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == count
    assert lines[:2] == ["Pulling", "Step 1/2: RUN make && more"]
    assert lines[-1].endswith("…")
    assert ("  CC demo.o" in lines) == verbose


def test_no_progress_shows_a_mirrors_password(capsys: pytest.CaptureFixture[str]) -> None:
    url = "https://me:hush@mirror.example/debian"
    with shown(verbose=True):
        for event in (Note(url), Step(1, 2, url), Output(url), Transfer(url, 1)):
            report(event)
    printed = capsys.readouterr().err
    assert "hush" not in printed
    assert printed.count("https://me:***@mirror.example/debian") == 3


def test_on_a_terminal_done_steps_stay_with_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    time = iter(range(100))
    monkeypatch.setattr("time.monotonic", lambda: float(next(time)))
    console = Console(file=written, force_terminal=True, width=80, color_system=None)
    screen = Screen(console, verbose=True)
    for event in _EVENTS:
        screen(event)
        console.print(screen.render())
    screen.end_step()
    text = written.getvalue()
    assert "Step 1/2: RUN make && more" in text
    assert " s\n" in text
    assert "Unpacking: 5 of 10 MB" in text
    assert "CC demo.o" in text


_REFERENCE = Path(__file__).parents[3] / "docs/reference"


def test_the_reference_names_every_exit_code() -> None:
    text = (_REFERENCE / "provision.md").read_text()
    for code in ExitCode:
        assert f"| {int(code)} |" in text


def test_the_reference_names_every_variable_of_the_environment() -> None:
    """Those that are asked for by name, or stand in a list of what is passed on."""
    reads = re.compile(r"environ(?:ment)?(?:\.get\(|\[|\.pop\()\"([A-Za-z_]+)\"")
    lists = re.compile(r"(?m)^_(?:INHERITED|PROXIES|SETTINGS|TOKEN_VARIABLES) = \(([^)]*)\)")
    found: set[str] = set()
    for path in (_REFERENCE.parents[1] / "src/provision").rglob("*.py"):
        text = path.read_text()
        found.update(reads.findall(text))
        for names in lists.findall(text):
            found.update(re.findall(r'"([A-Za-z_]+)"', names))
    assert len(found) > 20
    section = (_REFERENCE / "provision.md").read_text().partition("\n## Environment\n")[2]
    table = section.partition("\n## ")[0]
    assert {name for name in found if f"`{name.lower()}`" not in table.lower()} == set()


_PROGRAM = Path(sys.executable).with_name("provision")
_WIDTH = 60
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _in_terminal(*words: str | Path, **variables: str) -> str:
    """What a command prints in a terminal of 60 columns."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, _WIDTH, 0, 0))
        dropped = ("COLUMNS", "PYTEST")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
        argv = [str(_PROGRAM), *map(str, words)]
        os.execve(_PROGRAM, argv, {**kept, "TERM": "xterm", **variables})  # noqa: S606
    printed = b""
    # When the last process that has the terminal ends, Linux answers EIO.
    with suppress(OSError):
        while piece := os.read(terminal, 4096):
            printed += piece
    os.close(terminal)
    os.waitpid(child, 0)
    return printed.decode()


def test_lines_fit_the_terminal_and_words_stay_whole(tmp_path: Path) -> None:
    words = ("resolve", "nvida", "--kernel", "6.1.0-56-amd64", "--root", tmp_path)
    lines = _COLOUR.sub("", _in_terminal(*words)).splitlines()
    assert len(lines) > 2
    # A command to paste is one piece.
    assert [line for line in lines if len(line) > _WIDTH and " " in line.strip()] == []


@pytest.mark.parametrize(("value", "is_coloured"), [(None, True), ("", True), ("1", False)])
def test_colours_are_left_out_where_they_are_unwanted(
    tmp_path: Path, value: str | None, *, is_coloured: bool
) -> None:
    variables = {} if value is None else {"NO_COLOR": value}
    printed = _in_terminal("resolve", "nvida", "--root", tmp_path, **variables)
    assert bool(_COLOUR.search(printed)) == is_coloured


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("res", ["resolve"]),
        ("resolve nvi", ["nvidia"]),
        ("resolve nvidia --flavour op", ["open"]),
        ("build onload --flavour op", []),
        ("load --root {root} z", ["zfs"]),
    ],
)
def test_names_are_completed(host_tree: HostTree, words: str, offered: list[str]) -> None:
    host_tree.want()
    line = f"provision {words.format(root=host_tree.root)}"
    variables = {
        "_PROVISION_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    printed = run([_PROGRAM], env=variables).stdout.split()
    assert printed == [f"plain,{name}" for name in offered]
