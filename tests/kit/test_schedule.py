"""The schedule: every test of the night is in one share, and shares take equally long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kit.schedule import minutes_of, put_in_order, share, time_left_for

if TYPE_CHECKING:
    import pytest

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
    assert minutes_of(items) == {"test_alone.py": 3.1, "both": 11.1}
    put_in_order(items)
    assert [item.name for item in items] == [
        *("test_one", "test_two", "test_one"),
        *("test_three[1]", "test_three[2]", "test_quick"),
    ]
    assert time_left_for(items[1], time.time() + 900)
    assert not time_left_for(items[1], time.time() + 800)


def test_each_scope_is_in_one_share_and_shares_take_equally_long() -> None:
    minutes = {f"file {n}": float(n % 7 + 1) for n in range(60)}
    shares = [share(minutes, number, 6) for number in range(6)]
    assert sorted(scope for part in shares for scope in part) == sorted(minutes)
    loads = [sum(minutes[scope] for scope in part) for part in shares]
    assert max(loads) - min(loads) <= max(minutes.values())
    assert share(minutes, 7, 6) == shares[1]
