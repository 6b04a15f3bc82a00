"""What is remembered: it comes back whole, and what can't be read is neither lost nor hidden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.store import state as states
from provision.store.layout import Layout
from provision.store.lenient import copies_of
from provision.store.state import (
    DriverState,
    Failure,
    KernelState,
    NewerStateError,
    load_state,
    parse_state,
    store_state,
    update_state,
)
from unit.kmod.artifact import KERNEL, write


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path, "demo")


_texts = st.text(max_size=8)
_maybe = st.none() | _texts
_extra = st.dictionaries(
    st.text(min_size=1, max_size=5).map(lambda name: f"x-{name}"),
    st.recursive(
        st.none() | st.booleans() | st.integers() | _texts,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_texts, inner, max_size=2),
        max_leaves=4,
    ),
    max_size=2,
)
_failures = st.builds(
    Failure,
    reason=_texts,
    message=_texts,
    resolution=_maybe,
    details=_maybe,
    inputs=_texts,
    time=st.integers(0, 1 << 40),
    attempts=st.integers(1, 99),
    final=st.booleans(),
    log=_maybe,
    extra=_extra,
)
_kernels = st.builds(
    KernelState,
    inputs=_maybe,
    wanted=_maybe,
    version=_maybe,
    previous=_maybe,
    fingerprint=_maybe,
    damaged=_maybe,
    prepared=st.none() | st.integers(0, 1 << 40),
    seconds=st.dictionaries(_texts, st.floats(0, 1e6), max_size=2),
    rejected=st.lists(_texts, max_size=3).map(tuple),
    failure=st.none() | _failures,
    load_failure=st.none() | _failures,
    announced=_maybe,
    extra=_extra,
)
_states = st.builds(
    DriverState, st.dictionaries(_texts, _kernels, max_size=2), activated=_maybe, extra=_extra
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)


@given(_states)
def test_what_is_remembered_comes_back(state: DriverState) -> None:
    assert parse_state(states.state_text(state).encode()) == state


def test_the_keys_of_files_on_hosts_stay() -> None:
    text = '{"schema": 1, "kernels": {"6.1": {"wish": "asked", "stamp": "files"}}}'
    state = parse_state(text.encode())
    kernel = state.kernels["6.1"]
    assert (kernel.wanted, kernel.fingerprint, state.problems) == ("asked", "files", ())
    written = json.loads(states.state_text(state))["kernels"]["6.1"]
    assert (written["wish"], written["stamp"]) == ("asked", "files")
    assert not {"wanted", "fingerprint"} & set(written)


@given(_states, _extra, _extra, _extra)
def test_unknown_keys_are_kept_wherever_they_are(
    state: DriverState, outer: dict[str, Any], inner: dict[str, Any], deep: dict[str, Any]
) -> None:
    """As a newer version of the same format writes them."""
    document = json.loads(states.state_text(state))
    document |= outer
    for kernel in document["kernels"].values():
        kernel.update(inner)
        if kernel["failure"] is not None:
            kernel["failure"].update(deep)
    read = parse_state(json.dumps(document).encode())
    assert read.problems == ()
    assert json.loads(states.state_text(read)) == document
    assert {name: kernel.rejected for name, kernel in read.kernels.items()} == {
        name: kernel.rejected for name, kernel in state.kernels.items()
    }


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
        ({"kernels": {KERNEL: {"rejected": ["bad"], "inputs": 5}}}, "inputs"),
        ({"kernels": {KERNEL: {"rejected": ["bad"], "failure": {"reason": "x"}}}}, "failure"),
        ({"kernels": {KERNEL: {"rejected": ["bad"]}, "other": []}}, "kernels.other"),
        ({"activated": 5}, "activated"),
        ({"schema": "one"}, "schema"),
    ],
)
def test_one_value_that_cannot_be_read_costs_only_itself(
    change: dict[str, Any], problem: str, layout: Layout
) -> None:
    text = json.dumps(_REJECTED | change)
    write(layout.state, text.encode())
    state = load_state(layout)
    assert state.of(KERNEL).rejected == ("bad",)
    assert problem in " ".join(state.problems)
    assert update_state(layout, lambda s: s.updated(KERNEL, KernelState(rejected=("bad", "b"))))
    # What could not be read is still there for people.
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
    with pytest.raises(NewerStateError, match=r"state\.json") as caught:
        store_state(layout, DriverState())
    assert "mv " in (caught.value.resolution or "")
    with pytest.raises(NewerStateError):
        update_state(layout, lambda s: s.updated(KERNEL, KernelState(inputs="x")))
    assert json.loads(layout.state.read_text()) == newer
    assert copies_of(layout.state) == ()


def test_what_does_not_change_is_not_written(layout: Layout) -> None:
    assert store_state(layout, DriverState({KERNEL: KernelState(inputs="i")}))
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
    assert state.of("6.1") == KernelState(version="1")
    assert [problem.split(":")[0] for problem in state.problems] == [f"kernels.6.1.{key}"]


def test_the_largest_number_that_is_exact_is_read() -> None:
    largest = 2**53 - 1
    state = parse_state(
        f'{{"schema": 1, "kernels": {{"6.1": {{"prepared": {largest}}}}}}}'.encode()
    )
    assert (state.of("6.1").prepared, state.problems) == (largest, ())


def test_a_schema_of_any_size_is_a_newer_one() -> None:
    assert parse_state(f'{{"schema": {10**400}}}'.encode()).is_newer


def test_a_pause_is_computed_in_no_time_whatever_the_file_says() -> None:
    failure = Failure("build", "m", None, None, "x", time=0, attempts=2**53 - 1)
    assert failure.holds(now=1)
    assert not failure.holds(now=24 * 3600)
