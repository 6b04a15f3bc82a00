"""YAML that every reader takes as it is meant, and folders that hold nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import UsageError
from provision.export.kubernetes import check_output, to_yaml, write_files

# What YAML 1.1 reads as another type where it has no quotes.
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["on", "~", "1e3", "2026-01-01", "- a", "a: b", "# a"]
)
_LEAF = st.none() | st.booleans() | st.integers() | _TEXT
_VALUE = st.recursive(
    _LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4)
)


@given(st.lists(st.dictionaries(_TEXT, _VALUE, max_size=4), min_size=1, max_size=3))
def test_what_is_written_is_what_is_read(documents: list[dict[str, Any]]) -> None:
    assert list(yaml.safe_load_all(to_yaml(*documents))) == documents


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    check_output(tmp_path)
    check_output(tmp_path / "new")
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(UsageError):
            check_output(path)


def test_only_its_owner_reads_a_secret(tmp_path: Path) -> None:
    write_files(tmp_path / "out", {"open.yaml": [{"kind": "Module"}], "x": [{"kind": "Secret"}]})
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "out").iterdir()}
    assert modes == {"open.yaml": 0o644, "x": 0o600}
