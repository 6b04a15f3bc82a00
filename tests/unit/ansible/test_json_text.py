"""JSON texts of others keep every byte that is not ours."""

from __future__ import annotations

import json

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils.json_text import (
    JsonTextError,
    loads,
    remove_member,
    set_member,
)
from hypothesis import given
from hypothesis import strategies as st

_OURS = ("runtimes", "ours")
_RUNTIME = {"path": "/usr/bin/ours"}
_HAND_WRITTEN = """\
{
  // how we log, and why
  "log-driver": "journald", # ask ops
  "runtimes": {
    "kata": {"path": "/opt/kata/bin/kata-runtime"}   // keep
  },
  /* storage */ "storage-driver": "overlay2"
}
"""


def test_a_member_is_added_beside_others_comments_kept() -> None:
    assert (
        set_member(_HAND_WRITTEN, _OURS, _RUNTIME)
        == """\
{
  // how we log, and why
  "log-driver": "journald", # ask ops
  "runtimes": {
    "kata": {"path": "/opt/kata/bin/kata-runtime"},   // keep
    "ours": {
      "path": "/usr/bin/ours"
    }
  },
  /* storage */ "storage-driver": "overlay2"
}
"""
    )


@pytest.mark.parametrize(
    "text",
    [
        _HAND_WRITTEN,
        '{"a": 1}\n',
        '{\n\t"a": [1, {"b": null}]\n}',
        '{"runtimes": {"kata": {"path": "x"}}, "z": true}',
        '{"a": "quoted \\" // no comment"}',
        '{"runtimes": {"a": 1, "b": 2}}',
    ],
)
def test_what_was_added_can_be_taken_away_again(text: str) -> None:
    added = set_member(text, _OURS, _RUNTIME)
    assert loads(added)["runtimes"]["ours"] == _RUNTIME
    taken = remove_member(added, _OURS)
    if "runtimes" not in loads(text):
        taken = remove_member(taken, ("runtimes",))
    assert taken == text
    assert set_member(added, _OURS, _RUNTIME) == added


def test_the_first_and_middle_members_go_without_a_trace() -> None:
    text = '{\n    "a": 1,\n    "b": 2, // two\n    "c": 3\n}\n'
    assert remove_member(text, ("a",)) == '{\n    "b": 2, // two\n    "c": 3\n}\n'
    assert remove_member(text, ("c",)) == '{\n    "a": 1,\n    "b": 2 // two\n}\n'
    assert loads(remove_member(text, ("b",))) == {"a": 1, "c": 3}


def test_an_empty_file_becomes_an_object() -> None:
    made = set_member("", _OURS, _RUNTIME)
    assert json.loads(made) == {"runtimes": {"ours": _RUNTIME}}
    assert loads("") == {}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{\n "a": 1\n "b": 2}', "line 3, column 2: ',' or '}' expected"),
        ("[1]", "line 1, column 1: an object expected"),
        ('{"a": }', "line 1, column 7: a value expected"),
        ('{"a": 1} x', "line 1, column 10: the end of the file expected"),
        ("{a: 1}", "line 1, column 2: a name in quotes, or '}' expected"),
        ('{"a" 1}', "line 1, column 6: ':' expected"),
    ],
)
def test_a_mistake_says_where(text: str, where: str) -> None:
    with pytest.raises(JsonTextError, match="expected") as caught:
        loads(text)
    assert str(caught.value) == where


def test_a_value_in_the_way_is_refused() -> None:
    with pytest.raises(JsonTextError, match="'runtimes' is not an object"):
        set_member('{"runtimes": []}', _OURS, _RUNTIME)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(), _VALUES),
    st.text(min_size=1),
    _VALUES,
    st.sampled_from([None, 1, 2, 4, "\t"]),
)
def test_only_the_member_changes(
    document: dict[str, object], name: str, value: object, indent: int | str | None
) -> None:
    text = json.dumps(document, indent=indent)
    changed = set_member(text, (name,), value)
    assert json.loads(changed) == {**document, name: value}
    left = {key: kept for key, kept in document.items() if key != name}
    assert json.loads(remove_member(changed, (name,))) == left
