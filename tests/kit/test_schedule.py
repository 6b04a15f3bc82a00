"""The schedule: every test is of one tier, and each of the night has its turn."""

from __future__ import annotations

import re
import textwrap
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.cache import REPOSITORY
from kit.files import write
from kit.schedule import (
    LONGEST_AT_NIGHT,
    NIGHT,
    drawn,
    name_of,
    record,
    recorded_seconds,
    tier_of,
    time_left_for,
)

pytest_plugins = ["pytester"]


def test_in_a_run_with_an_end_everything_has_its_turn_what_takes_long_too() -> None:
    """As CI has 16 minutes for two processes, once for each landing."""
    minutes = {f"file {n}": float(n % LONGEST_AT_NIGHT + 1) for n in range(70)}
    turns: Counter[str] = Counter()
    for run in range(1000):
        free = [0.0, 0.0]
        for scope in drawn(minutes, run):
            begun = min(free)
            if time_left_for(minutes[scope], time.time() + 60 * (16 - begun)):
                free[free.index(begun)] += minutes[scope]
                turns[scope] += 1
    # All take 525 minutes, of which some 30 are run each time: half as often is the least.
    assert min(turns[scope] for scope in minutes) >= 1000 / 40


_PLACES = {
    "unit": """
        import pytest
        def test_quick(): pass
        @pytest.mark.tier(2)
        def test_sweep(): pass
        @pytest.mark.nightly
        def test_long(): pass
    """,
    "engine": """
        import pytest
        pytestmark = pytest.mark.tier(1)
        @pytest.mark.parametrize(
            "n", [1, pytest.param(2, marks=pytest.mark.tier(2)),
                  pytest.param(3, marks=pytest.mark.nightly)]
        )
        def test_main(n): pass
    """,
    "vm": """
        def test_guest(): pass
    """,
}


def test_a_name_has_no_group() -> None:
    names = ("tests/a.py::test_one", "tests/a.py::test_one[a@b]")
    assert {name_of(f"{name}{end}") for name in names for end in ("", "@a group")} == set(names)


def test_each_test_is_of_one_tier(pytester: pytest.Pytester) -> None:
    paths = [pytester.path / f"tests/{folder}/test_{folder}.py" for folder in _PLACES]
    for path, text in zip(paths, _PLACES.values(), strict=True):
        write(path, textwrap.dedent(text))
    pytester.makeini("[pytest]\nmarkers = tier(n)\n nightly\n")
    items, _ = pytester.inline_genitems(*paths)
    assert {item.name: tier_of(item) for item in items} == {
        "test_quick": 1,
        "test_sweep": 2,
        "test_long": 3,
        "test_main[1]": 1,
        "test_main[2]": 2,
        "test_main[3]": 3,
        "test_guest": 2,
    }


def test_runs_that_end_at_the_same_moment_all_record_their_tests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROVISION_TEST_CACHE", str(tmp_path))
    names = [f"test_{number}" for number in range(50)]
    with ThreadPoolExecutor(10) as runs:
        list(runs.map(lambda name: record({name: 1.0}), names))
    assert set(recorded_seconds()) == set(names)


def test_each_tier_is_run_on_every_folder_with_tests() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    (quick,) = re.findall(r"(?m)^QUICK := (.*)$", makefile)
    (real,) = re.findall(r"(?m)^REAL := (.*)$", makefile)
    tests = REPOSITORY / "tests"
    folders = {path.relative_to(tests).parts[0] for path in tests.rglob("test_*.py")}
    assert sorted(f"tests/{name}" for name in folders) == sorted(f"{quick} {real}".split())
    for tier in range(1, NIGHT + 1):
        lines = [line for line in makefile.splitlines() if f" --tier={tier} " in line]
        assert all(any(f"$({name})" in line for line in lines) for name in ("QUICK", "REAL")), tier
