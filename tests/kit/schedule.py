"""Which tests share a process, which begin first, and which of the night's tests are a share of it.

Test files say both themselves: `pytest.mark.xdist_group` names what shares something costly, and
`pytest.mark.minutes` how long all takes that the mark stands on, where that is more than a minute.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Scheduling", "minutes_of", "put_in_order", "scope_of", "share", "time_left_for"]

# What a test takes that doesn't say.
_UNSAID = 0.1
# How much longer a slower machine may take.
_SLOWER = 1.5


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no type hints
    """Gives each process whole groups of tests, or else whole files, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        # xdist appends the group, after whatever a parameter has in its brackets.
        _, at, group = nodeid[nodeid.rfind("]") + 1 :].rpartition("@")
        return group if at else nodeid.split("::", 1)[0]


def scope_of(item: pytest.Item) -> str:
    """What an item shares a process with: the name of its group, or else of its file."""
    mark = item.get_closest_marker("xdist_group")
    if mark is None:
        return item.nodeid.split("::", 1)[0]
    return str(mark.args[0] if mark.args else mark.kwargs["name"])


def minutes_of(items: Iterable[pytest.Item]) -> dict[str, float]:
    """How long each scope takes; a mark counts once, however many tests it stands on."""
    minutes: dict[str, float] = {}
    counted = set()
    for item in items:
        marks = list(item.iter_markers("minutes"))
        took = sum(mark.args[0] for mark in marks if id(mark) not in counted)
        counted |= {id(mark) for mark in marks}
        scope = scope_of(item)
        minutes[scope] = minutes.get(scope, 0) + (took if marks else _UNSAID)
    return minutes


def put_in_order(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no process is left alone with it at the end."""
    minutes = minutes_of(items)
    first = {scope: rank for rank, scope in enumerate(dict.fromkeys(map(scope_of, items)))}
    items.sort(key=lambda item: (-minutes[scope_of(item)], first[scope_of(item)]))


def share(minutes: Mapping[str, float], number: int, parts: int) -> set[str]:
    """The scopes of one of so many shares that take equally long; `number` begins with 0."""
    loads = [0.0] * parts
    chosen = set()
    for scope in sorted(minutes, key=lambda name: (-minutes[name], name)):
        part = loads.index(min(loads))
        loads[part] += minutes[scope]
        if part == number % parts:
            chosen.add(scope)
    return chosen


def time_left_for(item: pytest.Item, end: float) -> bool:
    """Whether an item would be at its end by that time."""
    mark = item.get_closest_marker("minutes")
    return time.time() + 60 * _SLOWER * (mark.args[0] if mark else _UNSAID) <= end
