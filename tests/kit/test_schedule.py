"""The schedule: every test is of one tier, and one of the night in one share of equal length."""

from __future__ import annotations

import re
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.cache import REPOSITORY
from kit.files import write
from kit.schedule import NIGHT, name_of, record, recorded_seconds, share, tier_of

pytest_plugins = ["pytester"]


def test_each_scope_is_in_one_share_and_shares_take_equally_long() -> None:
    minutes = {f"file {n}": float(n % 7 + 1) for n in range(60)}
    shares = [share(minutes, number, 6) for number in range(6)]
    assert sorted(scope for part in shares for scope in part) == sorted(minutes)
    loads = [sum(minutes[scope] for scope in part) for part in shares]
    assert max(loads) - min(loads) <= max(minutes.values())
    assert share(minutes, 7, 6) == shares[1]


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
