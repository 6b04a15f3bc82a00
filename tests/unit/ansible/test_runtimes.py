"""What the module asks of the program, and what it makes of the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils.runtimes import (
    leaves_default,
    recorded,
    with_default,
)

_PARAMS: dict[str, Any] = {
    "engines": ["docker"],
    "name": "oci-decorator",
    "program": "/usr/bin/oci-decorator-runtime",
    "docker_default": True,
    "docker_path": "/etc/docker/daemon.json",
    "containerd_path": "/etc/containerd/config.toml",
    "record": "/r.json",
}


@pytest.mark.parametrize(
    ("paths", "docker", "containerd"),
    [
        ([], False, False),
        (["/etc/docker/daemon.json"], True, False),
        (["/etc/containerd/conf.d/99-oci-decorator.toml"], False, True),
        (["/etc/docker/daemon.json", "/etc/containerd/config.toml"], True, True),
    ],
)
def test_files_of_others_are_not_looked_at(
    paths: list[str], *, docker: bool, containerd: bool
) -> None:
    record: dict[str, Any] = {path: {"written": []} for path in paths}
    assert recorded("docker", _PARAMS, record) is docker
    assert recorded("containerd", _PARAMS, record) is containerd


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('{"default-runtime": "oci-decorator"}', "{}", True),
        ('{"default-runtime": "oci-decorator"}', None, True),
        ('{"default-runtime": "oci-decorator"}', '{"default-runtime": "kata"}', False),
        ('{"default-runtime": "kata"}', "{}", False),
        (None, None, False),
        ('{"default-runtime": "oci-decorator"} // x', "{}", False),
        ("[]", "{}", False),
    ],
)
def test_a_removed_default_is_noticed(
    before: str | None, after: str | None, *, expected: bool
) -> None:
    assert leaves_default({"before": before, "after": after}, "oci-decorator") is expected


def test_another_default_changes_nothing_else() -> None:
    text = '{"debug": true, "default-runtime": "oci-decorator"}'
    assert json.loads(with_default(text, "runc")) == {"debug": True, "default-runtime": "runc"}
