"""The configuration of engines."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from jinja2 import Environment

from provision.errors import ConfigError, NotFoundError
from provision.export.ignition.served_folder import (
    PROGRAM,
    RUNTIME,
    docker_with_runtime,
    hook_texts,
)

_ROLE = (
    Path(__file__).parents[4]
    / "ansible/ansible_collections/oci_decorator/drivers/roles/provision_hook/templates"
)
_HOOK = "/etc/containers/oci/hooks.d/10-oci-decorator-precreate.json"


def test_podman_gets_runtime_and_hooks_and_docker_its_runtime() -> None:
    texts = hook_texts(("docker", "podman"), docker_with_runtime(None, is_default=False))
    podman = tomllib.loads(texts["/etc/containers/containers.conf.d/50-oci-decorator.conf"])
    assert podman["engine"]["runtimes"] == {"oci-decorator": [RUNTIME]}
    assert podman["engine"]["hooks_dir"][1] == str(Path(_HOOK).parent)
    assert json.loads(texts[_HOOK])["hook"]["path"] == PROGRAM
    assert json.loads(texts["/etc/docker/daemon.json"]) == {
        "runtimes": {"oci-decorator": {"path": RUNTIME}}
    }
    assert tomllib.loads(texts["/etc/oci-decorator/config.toml"]) == {}


def test_hooks_are_those_of_the_role() -> None:
    template = Environment(autoescape=True, keep_trailing_newline=True).from_string(
        (_ROLE / "hook.json.j2").read_text()
    )
    theirs = template.render(__provision_hook_bin="/opt/provision/bin", stage="precreate")
    assert hook_texts(("podman",), {})[_HOOK] == theirs


def test_an_engine_that_is_not_named_is_not_configured() -> None:
    assert list(hook_texts((), {})) == ["/etc/oci-decorator/config.toml"]


def test_dockers_other_settings_stay(tmp_path: Path) -> None:
    given = tmp_path / "daemon.json"
    given.write_text('{"log-driver": "journald", "runtimes": {"kata": {"path": "/kata"}}}')
    assert docker_with_runtime(given, is_default=True) == {
        "log-driver": "journald",
        "runtimes": {"kata": {"path": "/kata"}, "oci-decorator": {"path": RUNTIME}},
        "default-runtime": "oci-decorator",
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("{", "not valid JSON"), ("[]", "must be an object"), ('{"runtimes": 1}', "runtimes: must")],
)
def test_what_docker_would_not_read_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    given = tmp_path / "daemon.json"
    given.write_text(text)
    with pytest.raises(ConfigError) as caught:
        docker_with_runtime(given, is_default=False)
    assert complaint in str(caught.value.details)
    with pytest.raises(NotFoundError):
        docker_with_runtime(tmp_path / "none.json", is_default=False)
