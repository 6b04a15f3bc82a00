"""The hook file for Sarus."""

from __future__ import annotations

import json

from kit.cache import REPOSITORY

_HOOKS = REPOSITORY / "hooks"
_FILE = _HOOKS / "sarus/20-oci-decorator-prestart.json"


def test_it_is_our_hook_with_settings_of_its_own_and_an_environment() -> None:
    """Sarus 1.6 takes these four keys, needs all, and refuses any other."""
    document = json.loads(_FILE.read_text())
    # runc hands its own environment to a hook that has none, and some stages the container's.
    (path,) = document["hook"].pop("env")
    assert path.startswith("PATH=/")
    assert document == {
        "version": "1.0.0",
        "hook": {
            "path": "/usr/bin/oci-decorator",
            "args": ["oci-decorator", "-config=/etc/oci-decorator/sarus.toml", "prestart"],
        },
        "when": {"always": True},
        "stages": ["prestart"],
    }


def test_podman_and_cri_o_do_not_read_it() -> None:
    """And what copies the files of their folder finds files only."""
    assert [path.name for path in sorted((_HOOKS / "hooks.d").iterdir())] == [
        "10-oci-decorator-precreate.json",
        "20-oci-decorator-prestart.json",
    ]
