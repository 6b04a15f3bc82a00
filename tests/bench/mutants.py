"""Mutants of `provision.agent`, `store`, `kmod` and `build`: how many their unit tests let live.

mutmut's operators change the code. Strings, and what a `raise` says, stay: wording is no promise.
Of each function a mutant is drawn by its checksum, and of these a share, so that the same code
gives the same sample. The tests are collected once. Each mutant lives in a fork, in which its
function has another body, and meets the tests that called this function before.

Run it by `make mutants`, as root. A mutant may delete what it must not, so it runs as `nobody`, in
namespaces of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import libcst as cst
import pytest
from _pytest.runner import runtestprotocol
from mutmut.mutation.mutators import mutation_operators, operator_string

from kit.probe import is_root

# The most per cent of the sample that may live; those that no test calls count too. Half of what
# lives in `build` is called by engines' tests only, such as what makes base images.
LIMITS = {"agent": 3, "store": 11, "kmod": 5, "build": 20}
TESTS = [
    *(f"tests/unit/{package}" for package in LIMITS),
    # They call functions of these packages, or commands that do.
    "tests/unit/cli",
    "tests/unit/doctor",
    "tests/unit/export/test_artifact_source.py",
    "tests/unit/host/test_device_trees.py",
    "tests/golden",
    "tests/unit/registry/test_find.py",
    "tests/unit/test_root_boundary.py",
]
# Takes minutes, because it kills itself some hundred times.
SLOW = "tests/unit/agent/test_power_cut.py"
_NOBODY = "65534"
_OPERATORS = [pair for pair in mutation_operators if pair[1] is not operator_string]
_UNCHANGED = (cst.Annotation, cst.Raise, cst.Assert)


@dataclass(frozen=True)
class Mutant:
    """One change in one function; its number is among all changes of the function."""

    file: str
    function: str
    number: int
    module: str = ""

    @property
    def name(self) -> str:
        """How it is listed."""
        return f"{self.file}:{self.function}:{self.number}"

    @property
    def rank(self) -> int:
        """Its place in the draw."""
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16)


def sample_of(file: Path, share: int) -> Iterator[Mutant]:
    """The mutants that are tried of a file: of one function in `share`, one each."""
    module = cst.parse_module(file.read_text())
    for name, function in _functions(module):
        changes = list(_changes(function.body))
        ranked = [Mutant(str(file), name, number) for number in range(len(changes))]
        drawn = min(ranked, key=lambda mutant: mutant.rank, default=None)
        if drawn is not None and drawn.rank % share == 0:
            changed = module.deep_replace(*changes[drawn.number])
            assert isinstance(changed, cst.Module)
            yield Mutant(drawn.file, name, drawn.number, changed.code)


def _functions(
    owner: cst.Module | cst.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, cst.FunctionDef]]:
    for node in owner.body if isinstance(owner, cst.Module) else owner.body.body:
        if isinstance(node, cst.FunctionDef):
            yield prefix + node.name.value, node
        elif isinstance(node, cst.ClassDef):
            yield from _functions(node, f"{prefix}{node.name.value}.")


def _changes(node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    if isinstance(node, _UNCHANGED):
        return
    for kind, operator in _OPERATORS:
        if isinstance(node, kind):
            for changed in operator(node):
                yield node, changed
    for child in node.children:
        yield from _changes(child)


class Live:
    """The functions of this process that may get another body."""

    def __init__(self, files: list[Path]) -> None:
        """Import the files; nothing of them has run yet."""
        for file in files:
            parts = file.with_suffix("").parts[1:]
            importlib.import_module(".".join(parts).removesuffix(".__init__"))
        wanted = {str(file.resolve()): str(file) for file in files}
        self._functions: dict[tuple[str, str], list[FunctionType]] = {}
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType) and thing.__code__.co_filename in wanted:
                key = wanted[thing.__code__.co_filename], thing.__code__.co_qualname
                self._functions.setdefault(key, []).append(thing)
        self.names = {
            id(function.__code__): key
            for key, found in self._functions.items()
            for function in found
        }

    def bodies(self, mutant: Mutant) -> list[tuple[FunctionType, CodeType]]:
        """Which functions to change, and what into; none if that would change nothing."""
        try:
            module = compile(
                mutant.module, str(Path(mutant.file).resolve()), "exec", dont_inherit=True
            )
        except SyntaxError:
            return []
        return [
            (function, code)
            for code in _code_in(module)
            if code.co_qualname == mutant.function
            for function in self._functions.get((mutant.file, mutant.function), [])
            # A property and its setter have one name.
            if function.__code__.co_firstlineno == code.co_firstlineno
            and function.__code__ != code
            and function.__code__.co_freevars == code.co_freevars
        ]


def _code_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_in(constant)


class Trial:
    """Takes the place of pytest's loop: notes what each test calls, then tries the mutants."""

    def __init__(self, sample: list[Mutant], live: Live) -> None:
        """Nothing is tried yet."""
        self._sample = sample
        self._live = live
        self.verdicts: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try all; no test of this process itself runs."""
        if session.testsfailed:
            raise pytest.UsageError("not all tests can be collected")
        notes, _ = _forked(lambda: _note(session.items, self._live), 3600)
        failing = [name for name, note in (notes or {"all": None}).items() if note is None]
        if failing:
            raise pytest.UsageError(f"these fail without a mutant: {', '.join(failing)}")
        for place, mutant in enumerate(self._sample, start=1):
            calls = [mutant.file, mutant.function]
            tests = {
                item: float(notes[item.nodeid]["seconds"])
                for item in session.items
                if calls in notes[item.nodeid]["calls"]
            }
            self.verdicts[mutant.name] = self._verdict(mutant, tests)
            _say(f"{place}/{len(self._sample)} {self.verdicts[mutant.name]}: {mutant.name}")
        return True

    def _verdict(self, mutant: Mutant, seconds: dict[pytest.Item, float]) -> str:
        bodies = self._live.bodies(mutant)
        if not bodies:
            return "changes nothing"
        if not seconds:
            return "never called"
        tests = sorted(seconds, key=seconds.__getitem__)

        def judge() -> str:
            for function, code in bodies:
                function.__code__ = code
            for item, following in zip(tests, [*tests[1:], None], strict=True):
                # It kills a test that does not end.
                signal.alarm(60 + 10 * round(seconds[item]))
                if not _passes(item, following):
                    return "noticed"
            return "lives"

        verdict, ended = _forked(judge, 60 + 3 * sum(seconds.values()))
        return (verdict or "noticed") if ended else "never ends"


def _passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    return not any(r.failed for r in runtestprotocol(item, nextitem=following, log=False))


def _note(items: list[pytest.Item], live: Live) -> dict[str, Any]:
    """By test: seconds and the functions that it called; None if it fails."""
    called: set[tuple[str, str]] = set()

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (key := live.names.get(id(frame.f_code))):
            called.add(key)

    notes: dict[str, Any] = {}
    threading.setprofile(profile)
    for item, following in zip(items, [*items[1:], None], strict=True):
        called.clear()
        begun = time.monotonic()
        sys.setprofile(profile)
        # What an earlier test left open fails the one in which it is collected.
        passed = _passes(item, following) or _passes(item, following)
        sys.setprofile(None)
        note = {"seconds": time.monotonic() - begun, "calls": sorted(called)}
        notes[item.nodeid] = note if passed else None
    return notes


def _forked(do: Callable[[], Any], limit: float) -> tuple[Any, bool]:
    """What it returns in a process of its own, None if that dies, and whether it ended in time."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        errors, quiet = os.dup(2), os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(quiet, stream)
        try:
            answer = json.dumps(do()).encode()
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(answer)
        except BaseException:
            os.write(errors, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writer)
    said, until = b"", time.monotonic() + limit
    while (left := until - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
        if not (some := os.read(reader, 1 << 20)):
            break
        said += some
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return (json.loads(said) if said else None), left > 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _alone(folder: str) -> None:
    """Become `nobody` in namespaces of its own, and begin again; the folder is all it may write."""
    # Settings in a folder that everyone may write are refused.
    os.chown(folder, int(_NOBODY), int(_NOBODY))
    within = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]
    # Tests serve files on 127.0.0.1.
    loopback = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    who = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    environment = {
        **os.environ,
        "CI": "",
        "HOME": folder,
        "TMPDIR": folder,
        "HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/hypothesis",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    again = [sys.executable, "-m", "bench.mutants", *sys.argv[1:]]
    words = ["nice", *within, *loopback, *who, "--no-new-privs", *again]
    sys.exit(subprocess.run(words, env=environment, check=False).returncode)


def main() -> None:
    """Try the sample, list who lives, and fail above the limits."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--share", type=int, default=4, help="one function in so many (4)")
    parser.add_argument("--only", default="", help="files whose path has this")
    options = parser.parse_args()
    if is_root():
        with tempfile.TemporaryDirectory(prefix="provision-mutants-") as folder:
            _alone(folder)
    files = sorted(
        file
        for package in LIMITS
        for file in Path("src/provision", package).rglob("*.py")
        if options.only in str(file)
    )
    trial = Trial([m for file in files for m in sample_of(file, options.share)], Live(files))
    words = ["-q", "-s", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--deselect", SLOW]
    ended = pytest.main([*words, "-o", "tmp_path_retention_policy=none", *TESTS], plugins=[trial])
    if ended not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        sys.exit(f"mutants: pytest ended with {ended}")
    sys.exit("".join(_reports(trial.verdicts)) or 0)


def _reports(verdicts: dict[str, str]) -> Iterator[str]:
    """Say what became of each package's mutants; yields what is above a limit."""
    for package, limit in LIMITS.items():
        place = f"src/provision/{package}/"
        found = Counter(verdict for name, verdict in verdicts.items() if name.startswith(place))
        tried = found.total() - found["changes nothing"]
        living = found["lives"] + found["never called"]
        _say(f"{package}: {living} of {tried} mutants live {dict(sorted(found.items()))}")
        if tried and living * 100 > limit * tried:
            yield f"mutants: more than {limit} % of {package} live\n"


if __name__ == "__main__":
    main()
