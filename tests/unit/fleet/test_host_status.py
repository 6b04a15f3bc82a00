"""Hosts from status files of every age, and of hosts that lie."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.agent.status import Trouble, failed_status
from provision.fleet.host_status import LARGEST_STATUS, STATES, host_of_status, rank, shown, worst
from unit.fleet.documents import HOSTILE, KERNEL, NEXT, NOW, document, driver, host, kernel


def test_a_status_is_read() -> None:
    found = host("web1", document(driver(kernel(), kernel(NEXT, role="next", state="pending"))))
    assert (found.name, found.state, found.time, found.running) == ("web1", "ready", NOW, KERNEL)
    (nvidia,) = found.drivers
    assert (nvidia.name, nvidia.loaded) == ("nvidia", "yes")
    assert [(k.release, k.role, k.state) for k in nvidia.kernels] == [
        (KERNEL, "running", "ready"),
        (NEXT, "next", "pending"),
    ]
    assert found.notes == ()


def test_what_the_agent_writes_is_read() -> None:
    trouble = Trouble("The disk is full", "Make room.", None, 1)
    written = failed_status(trouble, time=NOW).document()
    found = host_of_status("web1", json.dumps(written).encode())
    assert (found.state, found.reason, found.resolution) == (
        "failed",
        "The disk is full",
        "Make room.",
    )
    assert found.notes == ()
    assert found.is_whole


def test_a_newer_status_says_so_and_its_unknown_state_is_shown() -> None:
    newer = document(schema=2, state="quarantined", surprise={"a": [1]})
    found = host("web1", newer)
    assert found.state == "quarantined"
    assert "newer provision (schema 2)" in found.notes[0]
    assert rank("failed") < rank("quarantined") < rank("unreachable")


def test_an_older_status_has_defaults() -> None:
    found = host("web1", {"drivers": [{"name": "onload", "kernels": [{"is_ready": True}]}]})
    assert "older provision" in found.notes[0]
    assert (found.state, found.drivers[0].state) == ("ready", "ready")


def test_what_can_not_be_understood_is_a_note() -> None:
    found = host("web1", document(time="yesterday", drivers=[driver(loaded=7), "x"]))
    assert found.time is None
    assert "status.json: time: 'yesterday' can't be understood there" in found.notes
    assert any("drivers.loaded" in note for note in found.notes)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "has no state of the host"),
        (b" " * (LARGEST_STATUS + 1), "larger than"),
        (b"1" * 5000, "no JSON"),
    ],
)
def test_what_is_no_status_is_a_row_that_says_so(data: bytes, reason: str) -> None:
    found = host_of_status("web1", data)
    assert found.state == "unreadable"
    assert reason in (found.reason or "")
    assert found.resolution


def test_a_host_can_not_fill_the_table() -> None:
    many = document(*[driver(*[kernel() for _ in range(40)]) for _ in range(70)])
    found = host("web1", many)
    assert len(found.drivers) == 64
    assert {len(one.kernels) for one in found.drivers} == {32}
    assert len(host("x" * 10_000).name) == 120


def test_what_a_host_says_moves_no_cursor_and_has_one_line() -> None:
    found = host("a\x1b[2Jb\nc", document(driver(name=f"\x07{HOSTILE}"), state="<b>"))
    assert found.name == "a?[2Jb c"
    assert found.drivers[0].name.startswith("?<img")
    assert found.state == "unreadable"
    assert shown("https://user:pass@x/") == "https://user:***@x/"
    assert shown("\ud800") == "?"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["schema", "time", "state", "drivers", "kernels", "name", "error"])
            | st.text(max_size=4),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(_JSON)
def test_any_document_is_a_host(data: Any) -> None:  # noqa: ANN401 - whatever JSON has
    found = host_of_status("web1", json.dumps(data).encode())
    assert found.name == "web1"
    assert found.state
    for text in (found.state, found.reason or "", *found.notes):
        text.encode()


@given(st.binary(max_size=60))
def test_any_bytes_are_a_host(data: bytes) -> None:
    assert host_of_status("web1", data).state == "unreadable"


@given(st.lists(st.sampled_from(list(STATES))))
def test_the_worst_state_wins(states: list[str]) -> None:
    assert rank(worst(states)) == min(map(rank, states), default=rank("ready"))
