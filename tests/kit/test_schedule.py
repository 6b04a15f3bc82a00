"""The schedule: every test is of one tier, and one of the night in one share of equal length."""

from __future__ import annotations

import re
import textwrap
import time

import pytest

from kit.cache import REPOSITORY
from kit.files import write
from kit.schedule import (
    NIGHT,
    minutes_of,
    name_of,
    put_in_order,
    record,
    recorded_seconds,
    share,
    tier_of,
    time_left_for,
)

pytest_plugins = ["pytester"]

_FILES = {
    "test_alone": """
        import pytest
        @pytest.mark.minutes(3)
        @pytest.mark.parametrize("n", [1, 2])
        def test_three(n): pass
        def test_quick(): pass
    """,
    "test_first": """
        import pytest
        pytestmark = [pytest.mark.minutes(2), pytest.mark.xdist_group("both")]
        def test_one(): pass
        @pytest.mark.minutes(9)
        def test_two(): pass
    """,
    "test_second": """
        import pytest
        pytestmark = pytest.mark.xdist_group("both")
        def test_one(): pass
    """,
}


def test_a_group_takes_what_its_marks_say_and_the_longest_begins(pytester: pytest.Pytester) -> None:
    paths = [pytester.makepyfile(**{name: text}) for name, text in _FILES.items()]
    pytester.makeini("[pytest]\nmarkers = minutes(n)\n")
    items, _ = pytester.inline_genitems(*paths)
    minutes = minutes_of(items)
    assert minutes == {"test_alone.py": 3.1, "both": 11.1}
    put_in_order(items, minutes)
    assert [item.name for item in items] == [
        *("test_one", "test_two", "test_one"),
        *("test_three[1]", "test_three[2]", "test_quick"),
    ]
    assert time_left_for(10, time.time() + 910)
    assert not time_left_for(10, time.time() + 890)


def test_what_is_recorded_of_all_tests_of_a_scope_counts_more_than_its_marks(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVISION_TEST_CACHE", str(pytester.path / "cache"))
    paths = [pytester.makepyfile(**{name: text}) for name, text in _FILES.items()]
    pytester.makeini("[pytest]\nmarkers = minutes(n)\n")
    items, _ = pytester.inline_genitems(*paths)
    assert recorded_seconds() == {}
    record({item.nodeid: 90.0 for item in items if item.path.stem == "test_alone"})
    record({items[-1].nodeid: 90.0})
    assert minutes_of(items, recorded_seconds()) == {"test_alone.py": 4.5, "both": 11.1}
    (pytester.path / "cache/durations.json").write_text("{")
    assert recorded_seconds() == {}


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
