"""What a manifest must look like to be believed at a boot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.agent.contents import MANIFEST, read_contents
from unit.kmod.artifact import make_artifact


def _set(*path: str | int, value: object) -> Callable[[Any], None]:
    def change(document: Any) -> None:  # noqa: ANN401 - a JSON document
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("pin", "kernel", "release", value=["x"]),
        _set("pin", "kernel", "release", value=5),
        _set("pin", "kernel", "release", value="a\0b"),
        _set("pin", "driver", "name", value=None),
        _set("pin", "driver", "version", value={}),
        _set("pin", "driver", "version", value="\ud800"),
        _set("modules", 0, "path", value="a\0b"),
        _set("modules", 0, "path", value=5),
        _set("modules", 0, "name", value={}),
        _set("files", 0, "path", value=5),
    ],
)
def test_what_is_no_manifest_is_a_damaged_entry(
    change: Callable[[Any], None], tmp_path: Path
) -> None:
    make_artifact(tmp_path / "entry")
    path = tmp_path / "entry" / MANIFEST
    assert read_contents(tmp_path / "entry") is not None
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    assert read_contents(tmp_path / "entry") is None


def test_brackets_without_end_are_one_too(tmp_path: Path) -> None:
    make_artifact(tmp_path / "entry")
    (tmp_path / "entry" / MANIFEST).write_text("[" * 100_000)
    assert read_contents(tmp_path / "entry") is None
