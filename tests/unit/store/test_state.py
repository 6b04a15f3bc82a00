"""What is remembered: it comes back whole, and what can't be read is neither lost nor hidden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.artifact import KERNEL, write
from provision.store import state as states
from provision.store.layout import Layout
from provision.store.state import (
    DriverState,
    Failure,
    KernelState,
    NewerStateError,
    copies_of,
    load_state,
    parse_state,
    store_state,
    update_state,
)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path, "demo")


_texts = st.text(max_size=8)
_failure = {
    "reason": "build",
    "message": "m",
    "resolution": "r",
    "details": None,
    "inputs": "i",
    "program": "0.1.0",
    "time": 5,
    "attempts": 3,
    "final": False,
    "log": None,
}
_STATE = {
    "schema": 1,
    "activated": "a",
    "kernels": {
        "6.1": {
            "inputs": "i",
            "wanted": "w",
            "version": "1",
            "previous": None,
            "fingerprint": "f",
            "damaged": None,
            "prepared": 2**53 - 1,
            "seconds": {"total": 1.5},
            "rejected": ["bad"],
            "refused": "later",
            "failure": _failure,
            "load_failure": None,
            "announced": "",
            "checked": {"bad": "boot"},
            "tried": "good",
            "untried": _failure,
        }
    },
}
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)


def test_what_is_remembered_comes_back_with_unknown_keys() -> None:
    """As a newer version of the same format writes them."""
    document = json.loads(json.dumps(_STATE))
    document["new"] = {"a": [1]}
    document["kernels"]["6.1"]["new"] = 1
    document["kernels"]["6.1"]["failure"]["new"] = "n"
    read = parse_state(json.dumps(document).encode())
    assert (read.problems, read.of("6.1").rejected) == ((), ("bad",))
    changed = read.updated("6.1", read.of("6.1").model_copy(update={"version": "2"}))
    document["kernels"]["6.1"]["version"] = "2"
    assert json.loads(states.state_text(changed)) == document


@given(_json | st.fixed_dictionaries({"schema": st.just(1), "kernels": _json}))
def test_any_document_is_read_or_said_to_be_unreadable(document: object) -> None:
    state = parse_state(json.dumps(document).encode())
    assert isinstance(state, DriverState)
    if not state.problems:
        # Then nothing of it is lost.
        assert isinstance(document, dict)
        again = json.loads(states.state_text(state))
        assert all(again[key] == value for key, value in document.items() if key != "kernels")


_REJECTED = {"schema": 1, "kernels": {KERNEL: {"rejected": ["bad"], "inputs": "i"}}}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kernels": {KERNEL: {"rejected": ["bad"], "seconds": "long"}}}, "seconds"),
        ({"kernels": {KERNEL: {"rejected": ["bad"], "failure": {"reason": "x"}}}}, "failure"),
        ({"activated": 5}, "activated"),
        ({"schema": "one"}, "schema"),
    ],
)
def test_what_can_not_be_read_is_said_and_kept_for_people(
    change: dict[str, Any], problem: str, layout: Layout
) -> None:
    text = json.dumps(_REJECTED | change)
    write(layout.state, text.encode())
    state = load_state(layout)
    assert problem in " ".join(state.problems)
    # What could be read still holds.
    assert state.of(KERNEL).rejected == ("bad",)
    assert update_state(layout, lambda s: s.updated(KERNEL, KernelState(rejected=("b",))))
    (kept,) = copies_of(layout.state)
    assert kept.read_text() == text
    assert load_state(layout).problems == ()


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"schema": 1', b"[" * 5000])
def test_a_file_that_is_none_is_set_aside_when_it_is_written(data: bytes, layout: Layout) -> None:
    write(layout.state, data)
    assert load_state(layout).problems
    for _ in range(2):
        # The same content twice is one copy: a run may be killed and repeated.
        write(layout.state, data)
        assert store_state(layout, DriverState(activated="a"))
    (kept,) = copies_of(layout.state)
    assert kept.read_bytes() == data
    assert load_state(layout) == DriverState(activated="a")


def test_the_file_of_a_newer_provision_is_left_alone(layout: Layout) -> None:
    newer = _REJECTED | {"schema": 2, "activated": "a", "new": True}
    write(layout.state, json.dumps(newer).encode())
    state = load_state(layout)
    assert (state.is_newer, state.activated) == (True, "a")
    with pytest.raises(NewerStateError):
        store_state(layout, DriverState())
    with pytest.raises(NewerStateError):
        update_state(layout, lambda s: s.updated(KERNEL, KernelState(inputs="x")))
    assert json.loads(layout.state.read_text()) == newer
    assert copies_of(layout.state) == ()


def test_what_does_not_change_is_not_written(layout: Layout) -> None:
    assert store_state(layout, DriverState(kernels={KERNEL: KernelState(inputs="i")}))
    assert not update_state(layout, lambda state: state)
    assert not store_state(layout, load_state(layout))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seconds", '{"total": NaN}'),
        ("seconds", '{"total": 1e999}'),
        ("seconds", f'{{"total": {10**400}}}'),
        ("prepared", str(10**400)),
        ("prepared", str(-(10**400))),
    ],
)
def test_numbers_that_cannot_be_counted_with_are_said(key: str, value: str) -> None:
    """The status is JSON, which has neither NaN nor infinity, and metrics are fractions."""
    text = f'{{"schema": 1, "kernels": {{"6.1": {{"{key}": {value}, "version": "1"}}}}}}'
    state = parse_state(text.encode())
    assert f"kernels.6.1.{key}" in " ".join(state.problems)


@pytest.mark.parametrize("rest", ["", ', "kernels": "in another form"'])
def test_a_schema_of_any_size_is_a_newer_one(rest: str) -> None:
    assert parse_state(f'{{"schema": {10**400}{rest}}}'.encode()).is_newer
    state = parse_state(f'{{"schema": 2{rest}}}'.encode())
    # Its own values are no mistakes.
    assert (state.is_newer, state.problems) == (True, ())


@pytest.mark.parametrize(
    ("changes", "after_s", "holds"),
    [
        ({}, 60, True),
        ({}, 3600, False),
        # A clock that was set back makes no one wait.
        ({}, -1, False),
        ({"attempts": 2**53 - 1}, 3600, True),
        ({"attempts": 2**53 - 1}, 24 * 3600, False),
        ({"reason": "missing"}, 0, False),
        # For another version of provision, nothing is final.
        ({"final": True}, 24 * 3600, True),
        ({"final": True, "program": "0.0.1"}, 3600, False),
    ],
)
def test_a_failure_holds_for_a_while(changes: dict[str, Any], after_s: int, *, holds: bool) -> None:
    failure = Failure(reason="build", message="m", inputs="x", time=10**9)
    failure = failure.model_copy(update=changes)
    assert failure.holds(now=failure.time + after_s) is holds
