"""The hook file for Sarus, held to Sarus's own rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_HOOKS = Path(__file__).parents[2] / "hooks"
_FILE = _HOOKS / "sarus/20-oci-decorator-prestart.json"
# What Sarus 1.6 has in its schema of hook files: four keys, all needed, and no others.
_KEYS = {"version", "hook", "when", "stages"}
_CONDITIONS = {"always": bool, "annotations": dict, "commands": list, "hasBindMounts": bool}
_STAGES = {
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
}


def _strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def mistakes(document: dict[str, Any]) -> list[str]:
    """What Sarus would refuse of a hook file, by its schema."""
    found = [f"{key}: needed, and no other" for key in sorted(_KEYS ^ document.keys())]
    hook = document.get("hook", {})
    if not str(hook.get("path", "")).startswith("/"):
        found.append("hook.path: not absolute")
    found += [f"hook.{key}: not strings" for key in ("args", "env") if not _strings(hook.get(key))]
    if "timeout" in hook and not (isinstance(hook["timeout"], int) and hook["timeout"] >= 1):
        found.append("hook.timeout: not a number above 0")
    when = document.get("when", {})
    if not when:
        found.append("when: empty")
    for key, value in when.items():
        if key in _CONDITIONS and not isinstance(value, _CONDITIONS[key]):
            found.append(f"when.{key}: of a wrong type")
    if not set(document.get("stages", [])) <= _STAGES:
        found.append("stages: unknown")
    return found


def test_sarus_takes_the_file() -> None:
    document = json.loads(_FILE.read_text())
    assert mistakes(document) == []
    assert document["version"] == "1.0.0"


def test_it_is_our_hook_with_settings_of_its_own_and_an_environment() -> None:
    document = json.loads(_FILE.read_text())
    hook = document["hook"]
    assert hook["path"] == "/usr/bin/oci-decorator"
    assert hook["args"] == [
        "oci-decorator",
        "-config=/etc/oci-decorator/sarus.toml",
        "prestart",
    ]
    # runc hands its own environment to a hook that has none, and some stages the container's.
    assert [entry.partition("=")[0] for entry in hook["env"]] == ["PATH"]
    assert document["when"] == {"always": True}
    assert document["stages"] == ["prestart"]


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"comment": "x"}, "comment: needed, and no other"),
        ({"hook": {"path": "oci", "args": [], "env": []}}, "hook.path: not absolute"),
        ({"hook": {"path": "/x", "args": []}}, "hook.env: not strings"),
        ({"hook": {"path": "/x", "args": [], "env": [], "timeout": 0}}, "hook.timeout"),
        ({"when": {}}, "when: empty"),
        ({"when": {"always": "yes"}}, "when.always: of a wrong type"),
        ({"stages": ["precreate"]}, "stages: unknown"),
    ],
)
def test_what_sarus_refuses(change: dict[str, Any], mistake: str) -> None:
    document = json.loads(_FILE.read_text()) | change
    (found,) = mistakes(document)
    assert found.startswith(mistake)


def test_podman_and_cri_o_do_not_read_it() -> None:
    """And what copies the files of their folder finds files only."""
    assert [path.name for path in sorted((_HOOKS / "hooks.d").iterdir())] == [
        "10-oci-decorator-precreate.json",
        "20-oci-decorator-prestart.json",
    ]
