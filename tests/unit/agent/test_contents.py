"""What a manifest must look like to be believed at a boot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.agent.contents import MANIFEST, damages, read_contents
from unit.kmod.artifact import KERNEL, MODULE, make_artifact, write


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


@pytest.mark.parametrize("gone", ["modules.dep", "demo.ko"])
def test_what_hosts_are_led_past_a_module_for_kmm_by_is_looked_at(
    tmp_path: Path, gone: str
) -> None:
    """What KMM copies may be whole, and modprobe is shown this folder."""
    entry = tmp_path / "entry"
    make_artifact(entry)
    shown = entry / f"host/lib/modules/{KERNEL}"
    write(shown / "modules.dep", b"demo.ko:\n")
    (shown / "demo.ko").symlink_to(f"../../../../{MODULE}")
    document = json.loads((entry / MANIFEST).read_text())
    (entry / MANIFEST).write_text(json.dumps({**document, "kmm": {"name": "demo_needs"}}))
    contents = read_contents(entry)
    assert contents is not None
    assert list(damages(entry, contents, all_checksums=True)) == []
    (shown / gone).unlink()
    said = [f"host/lib/modules/{KERNEL}/{gone} is missing"]
    assert list(damages(entry, contents, all_checksums=True)) == said
