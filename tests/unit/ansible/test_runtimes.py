"""Our runtime beside what others configured in Docker and containerd."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils.json_text import (
    JsonTextError,
    loads,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.runtimes import (
    RuntimeConfigError,
    containerd_with,
    containerd_without,
    docker_with,
    docker_without,
)

_NAME, _PROGRAM = "oci-decorator", "/usr/bin/oci-decorator-runtime"
_DOCKER = '{\n    "default-runtime": "kata",\n    "runtimes": {"kata": {"path": "/k"}} // ours\n}\n'


def _docker(text: str, *, is_default: bool = False, original: str | None = None) -> str:
    return docker_with(text, _NAME, _PROGRAM, is_default=is_default, original=original)


def test_docker_keeps_other_runtimes_and_its_default() -> None:
    new = _docker(_DOCKER, original=_DOCKER)
    assert "// ours" in new
    assert loads(new) == {
        "default-runtime": "kata",
        "runtimes": {"kata": {"path": "/k"}, _NAME: {"path": _PROGRAM}},
    }
    assert _docker(new, original=_DOCKER) == new


def test_dockers_own_default_comes_back() -> None:
    ours = _docker(_DOCKER, is_default=True, original=_DOCKER)
    assert loads(ours)["default-runtime"] == _NAME
    assert loads(_docker(ours, original=_DOCKER))["default-runtime"] == "kata"
    assert docker_without(ours, _NAME, original=_DOCKER) == _DOCKER
    fresh = _docker("", is_default=True)
    assert docker_without(fresh, _NAME, original=None) is None
    assert json.loads(_docker(fresh)) == {"runtimes": {_NAME: {"path": _PROGRAM}}}


def test_what_was_added_to_docker_since_stays() -> None:
    changed = _docker("").replace("{", '{"debug": true, ', 1)
    left = docker_without(changed, _NAME, original=None)
    assert left is not None
    assert loads(left) == {"debug": True}


def test_a_broken_daemon_json_is_refused() -> None:
    with pytest.raises(JsonTextError, match="line 1"):
        _docker('{"runtimes": ')


def _cri(text: str, plugin: str = "io.containerd.grpc.v1.cri") -> dict[str, Any]:
    tables: dict[str, Any] = tomllib.loads(text)["plugins"][plugin]["containerd"]["runtimes"]
    return tables


def test_containerd_gets_the_built_in_runtime_too() -> None:
    new = containerd_with("", _NAME, _PROGRAM)
    assert tomllib.loads(new)["version"] == 2
    assert _cri(new)["runc"] == {"runtime_type": "io.containerd.runc.v2"}
    assert _cri(new)[_NAME]["options"] == {"BinaryName": _PROGRAM}
    assert containerd_without(new) is None


def test_containerd_keeps_what_is_there() -> None:
    text = (
        "# by hand\nversion = 2\n"
        '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]\n'
        'runtime_type = "io.containerd.kata.v2"  # do not touch\n'
    )
    new = containerd_with(text, _NAME, _PROGRAM)
    assert new.startswith(text)
    assert set(_cri(new)) == {"kata", _NAME}
    assert containerd_with(new, _NAME, _PROGRAM) == new
    assert containerd_without(new) == text


def test_containerd_of_version_three_has_another_place() -> None:
    new = containerd_with("version = 3\n", _NAME, _PROGRAM)
    assert _NAME in _cri(new, "io.containerd.cri.v1.runtime")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("version = 1\n", "its version is 1"),
        ("[grpc]\n", "its version is 1"),
        ("version = \n", "it is no TOML"),
        (
            'version = 2\nplugins = {"io.containerd.grpc.v1.cri" = {}}\n',
            "can't be added to",
        ),
        (
            f'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{_NAME}]\n',
            "somebody else wrote",
        ),
    ],
)
def test_what_containerd_has_may_be_in_the_way(text: str, why: str) -> None:
    with pytest.raises(RuntimeConfigError, match=why):
        containerd_with(text, _NAME, _PROGRAM)
