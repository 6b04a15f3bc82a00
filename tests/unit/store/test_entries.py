"""The mark of artifacts that came from a registry unsigned."""

from __future__ import annotations

from pathlib import Path

from provision.manifest import UNSIGNED
from provision.store.entries import MARK, mark_unsigned, unsigned_reference


def test_verification_and_status_know_one_mark(tmp_path: Path) -> None:
    assert UNSIGNED.name == MARK
    assert unsigned_reference(tmp_path) is None
    mark_unsigned(tmp_path, "registry.example/nvidia:1")
    assert (tmp_path / UNSIGNED).is_file()
    assert unsigned_reference(tmp_path) == "registry.example/nvidia:1"
