"""What `provision` says to people, in one file that is read as prose: tests/data/messages.txt.

No other test asserts wording. After a message has changed: UPDATE_MESSAGES=1 pytest THIS FILE, and
read the difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from kit.cache import REPOSITORY
from kit.host_tree import NEXT, HostTree
from kit.probe import is_root, need
from provision.cli import COMMANDS, load_command
from unit.cli.outcome import Outcome
from unit.cli.states import STATES
from unit.doctor.host import DoctorHost
from unit.doctor.troubles import CASES

Call = Callable[..., Outcome]
_FILE = REPOSITORY / "tests/data/messages.txt"
_HEAD = re.compile(r"(?m)^=== (.+)\n")
_USAGE = (
    "instal",
    "frobnicate",
    "verify",
    "build",
    "build x --pin pin.json",
    "build --pin pin.json --kernel 6.1",
    "build x --jobs 0",
    "drivers x --distros",
    "registry key --output {folder}/new",
    "registry key --output {folder}/new --no-password --password-fd 9",
    "registry push demo demo",
    "registry push demo r.example/demo:1 --key /none.key",
    "units install --program bin/provision --root {root}",
    "units install --program /root/clone/.venv/bin/provision --root {root}",
    "status --root {root}/typo",
    "registry list demo --root {root}",
    "drivers nvdia --root {root}",
    "apply --boot --kernel 6.1 --root {root}",
    "matrix --root {root}",
    "matrix --build --root {root}",
)
_TALKS = (
    *(("empty", words) for words in ("status", "plan", "apply", "doctor", "gc", "verify demo")),
    *(("mistakes", words) for words in ("status", "apply")),
    ("no os-release", "facts"),
    *(("wanted", words) for words in ("status", "plan", "apply", "apply --boot", "doctor")),
    *(("wanted, offered by nobody", words) for words in ("plan", "apply")),
    ("wanted, signed by a stranger", "apply"),
    ("wanted, not signed", "apply"),
    ("wanted, no keys", "apply"),
    ("wanted, to be built", "build demo"),
    ("wanted, vendor file of an admin", "apply"),
    *(("wanted, DKMS has it too", words) for words in ("status", "plan")),
    ("wanted, the kernel refuses it", "apply"),
    ("wanted, conflict in use", "apply"),
    *(("ready", words) for words in ("status", "plan", "apply", "verify demo", "rollback demo")),
    *(("ready", words) for words in ("unload", "load", "gc", "doctor")),
    ("in use", "unload"),
    ("newer, in use", "apply"),
    *(("two versions", words) for words in ("rollback demo --dry-run", "rollback demo")),
    *(("two versions, keep none", words) for words in ("gc --dry-run", "gc")),
    *(("next kernel", words) for words in ("status", "apply", "doctor")),
    ("result of a matrix", "matrix"),
    ("wanted", f"apply --kernel {NEXT}"),
    ("unprepared kernel runs", "load"),
    ("not wanted any more", "apply"),
    *(("damaged", words) for words in ("verify demo", "load", "apply")),
    ("rebooted, entry gone", "load"),
    ("state of a newer provision", "apply"),
    ("carried of a stranger", "install oci:{folder}/carried/demo:1"),
    ("carried, no trust", "install oci:{folder}/carried/demo:1"),
    ("carried", "install oci:{folder}/carried/demo:1"),
    ("device", "facts"),
    ("broken recipe", "drivers"),
    ("units of a package", "units install"),
)


_FINDINGS = {
    # Counted within a check, so that a new case changes the names of no other check.
    f"{case[0]} {sum(other[0] == case[0] for other in CASES[:number]) + 1}": case[:3]
    for number, case in enumerate(CASES)
}


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def test_help(call: Call) -> None:
    names = ["", *(words for words, _ in _commands())]
    said = {name: call(*name.split(), "--help").out for name in names}
    # Options are read as prose in docs/reference, which is made of them.
    _compare("help", {n: t.partition("\nOptions:\n")[0] if n else t for n, t in said.items()})


def test_wrong_usage(call: Call, host_tree: HostTree) -> None:
    said = {words: _said(call, host_tree, words) for words in _USAGE}
    _compare("usage", said)


@pytest.mark.parametrize(("state", "words"), _TALKS, ids=[": ".join(one) for one in _TALKS])
def test_what_a_command_says(call: Call, host_tree: HostTree, state: str, words: str) -> None:
    STATES[state](host_tree, lambda *more: call(*more, "--root", host_tree.root))
    said = _said(call, host_tree, f"{words} --root {{root}}")
    _compare("host", {f"{state}: {words}": said}, whole=False)


@pytest.mark.parametrize("name", _FINDINGS)
def test_what_doctor_finds(plain_path: Path, name: str) -> None:
    need(is_root(), "root", "only root can set labels")
    check, broken, state = _FINDINGS[name]
    host = DoctorHost.make(plain_path)
    broken(host)
    found = [result for result in host.results(check) if result.state == state]
    assert found, host.results(check)
    lines = [f"{r.state}: {r.seen}\n  cause: {r.cause}\n  cure: {r.cure}\n" for r in found]
    said = _settled("".join(lines).replace(str(host.root), "{root}"))
    _compare("doctor", {name: said}, whole=False)


def _commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = load_command(name)
        yield name, command
        for below, one in command.commands.items() if isinstance(command, click.Group) else ():
            yield f"{name} {below}", one


def _said(call: Call, host: HostTree, words: str) -> str:
    outcome = call(*(word.format(root=host.root, folder=host.folder) for word in words.split()))
    text = f"{outcome.err}{outcome.out}(exit {outcome.code})\n"
    text = text.replace(str(host.root), "{root}").replace(str(host.folder), "{folder}")
    return re.sub(r"(?m)[ \t]+$", "", _settled(re.sub("─+", "──", text)))


def _settled(text: str) -> str:
    """A text without what differs by checkout or by day, or with each change of a format."""
    text = text.replace(str(REPOSITORY), "{repository}")
    text = re.sub(r"\b[0-9.]+ kB\b", "N kB", text)
    text = re.sub(r"\b[0-9]+ months old\b", "N months old", text)
    return re.sub(r"\b([0-9a-f]{64}|[0-9a-f]{12})\b", "DIGEST", text)


def _compare(kind: str, said: dict[str, str], *, whole: bool = True) -> None:
    """Compare what was said with the file; `whole`: it is all of its kind that is there."""
    recorded = _read()
    mine = {f"{kind}: {name}": f"{text.rstrip()}\n" for name, text in said.items()}
    if os.environ.get("UPDATE_MESSAGES"):
        kept = {k: v for k, v in recorded.items() if not (whole and k.startswith(f"{kind}: "))}
        _write({**kept, **mine})
        return
    assert {name: recorded.get(name) for name in mine} == mine
    if whole:
        assert {name for name in recorded if name.startswith(f"{kind}: ")} == mine.keys()


def _read() -> dict[str, str]:
    if not _FILE.exists():
        return {}
    _, *parts = _HEAD.split(_FILE.read_text())
    texts = [f"{text.rstrip()}\n" for text in parts[1::2]]
    return dict(zip(parts[::2], texts, strict=True))


def _write(texts: dict[str, str]) -> None:
    sections = [f"=== {name}\n{text}" for name, text in sorted(texts.items())]
    _FILE.write_text("\n".join(sections))


def test_nothing_is_recorded_that_nobody_says() -> None:
    kinds = {
        "host": {f"{state}: {words}" for state, words in _TALKS},
        "doctor": set(_FINDINGS),
    }
    for name in _read():
        kind, _, rest = name.partition(": ")
        assert kind not in kinds or rest in kinds[kind]
