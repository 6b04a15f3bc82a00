"""TOML that we write is read as what it was."""

from __future__ import annotations

import tomllib

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils.toml_text import dumps
from hypothesis import given
from hypothesis import strategies as st

_SCALARS = st.booleans() | st.integers(-(2**62), 2**62) | st.text(st.characters(codec="utf-8"))
_TABLES = st.recursive(
    st.dictionaries(
        st.text(st.characters(codec="utf-8")),
        _SCALARS
        | st.lists(_SCALARS)
        | st.lists(st.dictionaries(st.text(st.characters(codec="utf-8")), _SCALARS)),
    ),
    lambda inner: st.dictionaries(st.text(st.characters(codec="utf-8")), inner | _SCALARS),
    max_leaves=8,
)


@given(_TABLES)
def test_what_is_written_is_read(document: dict[str, object]) -> None:
    assert tomllib.loads(dumps(document)) == document


def test_a_driver_without_settings_is_named() -> None:
    text = dumps({"drivers": {"nvidia": {}, "onload": {"version": "9"}}, "policy": {"keep": 2}})
    assert text == ('[drivers.nvidia]\n\n[drivers.onload]\nversion = "9"\n\n[policy]\nkeep = 2\n')


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError, match=r"1\.5 can't be written"):
        dumps({"a": 1.5})
