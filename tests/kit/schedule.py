"""Which tests are of a tier, which share a process, which begin first.

Test files say it themselves: `pytest.mark.nightly` and `pytest.mark.tier` where a test is not of
its folder's tier, and `pytest.mark.xdist_group` what shares something costly. How long tests take
is recorded in the cache. `pytest.mark.minutes` is for a machine that has not run them yet: how long
all takes that the mark stands on, where that is more than a minute.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Mapping
from fcntl import LOCK_EX, flock

import pytest
from xdist.scheduler import LoadScopeScheduling

from kit.cache import cache_dir

# The tier of what is long or rare.
NIGHT = 3
# Minutes that a scope may take by its marks, so that a night of CI that begins with it ends it.
LONGEST_AT_NIGHT = 14
# Tests that need no root and no network are of the first tier, and real programs of the second.
_QUICK = ("tests/unit/", "tests/golden/", "tests/kit/")

# Files that take some three minutes on two processes.
_BEFORE_LIVES = 6

_RECORD = "durations.json"
# What a test takes that doesn't say.
_UNSAID = 0.1
# How much longer a slower machine may take.
_SLOWER = 1.1


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no type hints
    """Gives each process whole groups of tests, or else whole files, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_in(nodeid)


def name_of(nodeid: str) -> str:
    """What a test is called without its group, which xdist appends in processes that run tests."""
    # After whatever a parameter has in its brackets.
    end = nodeid.rfind("]") + 1
    return nodeid[:end] + nodeid[end:].partition("@")[0]


def scope_in(nodeid: str) -> str:
    """The scope of a test by its name with its group: that, or else its file."""
    group = nodeid.removeprefix(name_of(nodeid))
    return group.removeprefix("@") or nodeid.split("::", 1)[0]


def tier_of(item: pytest.Item) -> int:
    """The one tier of a test: 1 what every change runs, 2 the rest of a day, 3 the night."""
    if item.get_closest_marker("nightly"):
        return NIGHT
    if mark := item.get_closest_marker("tier"):
        return int(mark.args[0])
    return 1 if item.nodeid.startswith(_QUICK) else 2


def scope_of(item: pytest.Item) -> str:
    """What an item shares a process with: the name of its group, or else of its file."""
    mark = item.get_closest_marker("xdist_group")
    if mark is None:
        return item.nodeid.split("::", 1)[0]
    return str(mark.args[0] if mark.args else mark.kwargs["name"])


def minutes_of(
    items: Iterable[pytest.Item], recorded: Mapping[str, float] | None = None
) -> dict[str, float]:
    """How long each scope takes: as recorded, where all its tests are, in seconds by their names.

    Else by marks; one counts once, however many tests it stands on.
    """
    scopes: dict[str, list[pytest.Item]] = {}
    for item in items:
        scopes.setdefault(scope_of(item), []).append(item)
    known = recorded or {}
    return {
        scope: sum(known[name_of(item.nodeid)] for item in tests) / 60
        if all(name_of(item.nodeid) in known for item in tests)
        else _minutes_by_marks(tests)
        for scope, tests in scopes.items()
    }


def _minutes_by_marks(items: Iterable[pytest.Item]) -> float:
    minutes, counted = 0.0, set()
    for item in items:
        marks = list(item.iter_markers("minutes"))
        took = sum(mark.args[0] for mark in marks if id(mark) not in counted)
        counted |= {id(mark) for mark in marks}
        minutes += took if marks else _UNSAID
    return minutes


def put_in_order(
    items: list[pytest.Item], minutes: Mapping[str, float], draw: float | None = None
) -> None:
    """Begin with what takes longest, so that no process is left alone with it at the end.

    Only what waits for a guest comes after some others: its disk is being made (`kit.prepare`).

    With a `draw`, a number that is the same in all processes of a run: in the order of `drawn`.
    """
    scopes = list(dict.fromkeys(map(scope_of, items)))
    if draw is None:
        scopes.sort(key=lambda scope: -minutes[scope])
        lives = {scope_of(item) for item in items if item.get_closest_marker("stages")}
        others = [scope for scope in scopes if scope not in lives]
        later = others[_BEFORE_LIVES:]
        scopes = [*others[:_BEFORE_LIVES], *(one for one in scopes if one in lives), *later]
    else:
        scopes = drawn({scope: minutes[scope] for scope in scopes}, draw)
    ranks = {scope: rank for rank, scope in enumerate(scopes)}
    items.sort(key=lambda item: ranks[scope_of(item)])


def drawn(minutes: Mapping[str, float], draw: float) -> list[str]:
    """Put scopes into a random order, for a run that ends before all had their turn.

    What takes long comes first more often, as often as it takes longer: only there it ends in time.
    So no run has to know which were run before.
    """
    # Efraimidis and Spirakis, Weighted random sampling with a reservoir (2006).
    chance = random.Random(draw)  # noqa: S311 - no secret
    keys = {scope: chance.random() ** (1 / max(took, _UNSAID)) for scope, took in minutes.items()}
    return sorted(keys, key=lambda scope: -keys[scope])


def time_left_for(minutes: float, end: float) -> bool:
    """Whether what takes so long would be at its end by that time."""
    return time.time() + 60 * _SLOWER * minutes <= end


def recorded_seconds() -> dict[str, float]:
    """How long tests took when they last passed on this machine, by their names."""
    try:
        seconds: dict[str, float] = json.loads((cache_dir() / _RECORD).read_text())
    except (OSError, ValueError):
        # None has run yet, or someone has edited it.
        return {}
    return seconds


def record(seconds: Mapping[str, float]) -> None:
    """Remember how long tests took, and what another run of them remembers at the same moment."""
    file = cache_dir() / _RECORD
    with file.with_suffix(".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        draft = file.with_suffix(".draft")
        draft.write_text(json.dumps({**recorded_seconds(), **seconds}, indent=0, sort_keys=True))
        draft.rename(file)
