"""What goes wrong on the way: a wrong variable, a lost connection, a batch that fails."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from hosts.conftest import ENGINE
from hosts.machines import DEBIAN_12, Machine
from kit.playbooks import SITE, Ansible
from kit.process import start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.engine import Engine

pytestmark = pytest.mark.minutes(2)

_WAIT_S = 120


@pytest.fixture(scope="module")
def pair(engine: Engine) -> Iterator[tuple[Machine, Machine]]:
    """Two hosts that have nothing yet; the second stays so until the last test."""
    binds = {engine.folder: ENGINE}
    with Machine(DEBIAN_12, "first", binds) as first, Machine(DEBIAN_12, "second", binds) as second:
        yield first, second


# What is wrong with a host's variables, and what the message names; what is found by one task.
_REFUSED: list[dict[str, tuple[dict[str, Any], str]]] = [
    {"engine": ({"provision_host_engine": ["docker"]}, "provision_host_engine")},
    {
        "require": ({"provision_driver_require": "perfect"}, "provision_driver_require"),
        "config": ({"provision_driver_config": {"colour": "red"}}, "colour"),
        "policy": ({"provision_driver_config": {"policy": {"unload": "always"}}}, "unload"),
    },
    {
        "hook": ({"provision_hook_config": {"log-level": "loud"}}, "log-level"),
    },
    {
        "program": ({"provision_hook_program": "/nowhere/oci-decorator"}, "make build"),
        "source": (
            {"provision_driver_source": "/nowhere/provision"},
            "neither a wheel nor a checkout",
        ),
        "wheels": ({"provision_driver_wheelhouse": "/nowhere/wheels"}, "has no wheel of"),
        "pins": (
            {"provision_driver_constraints": "/nowhere/c.txt"},
            "provision_driver_constraints",
        ),
        "images": ({"provision_driver_images": ["/nowhere/nvidia.tar"]}, "docker save"),
        "python": ({"provision_host_python_archive": "/nowhere/p.tar.gz"}, "provision host-python"),
        "driver": (
            {"provision_driver_config": {"drivers": {"nvidea": {}}}},
            "Did you mean 'nvidia'?",
        ),
    },
]
# A host that doesn't exist: no one gets so far as to ask it.
_NOWHERE = {"ansible_host": "127.0.0.1", "ansible_port": 1}


@pytest.mark.parametrize("wrong", _REFUSED, ids=lambda wrong: next(iter(wrong)))
def test_a_wrong_variable_is_named_before_anything_is_done(
    tmp_path: Path, wrong: dict[str, tuple[dict[str, Any], str]]
) -> None:
    """Each host has something wrong of its own."""
    hosts = {name: {**_NOWHERE, **variables} for name, (variables, _) in wrong.items()}
    played = Ansible(tmp_path, [], {}, stand_ins=hosts).play(SITE, check=False)
    assert played.code != 0
    assert "UNREACHABLE" not in played.output
    for host, (_, said) in wrong.items():
        failures = re.findall(rf"^(?:fatal|failed): \[{host}\].*$", played.output, re.MULTILINE)
        assert len(failures) == 1, played.output
        assert said in failures[0]
        assert played.recap[host]["failed"] == 1


def test_everything_that_is_missing_is_named_for_all_hosts_before_one_is_touched(
    tmp_path: Path,
) -> None:
    lacking = {
        "provision_hook_program": "/nowhere/oci-decorator",
        "provision_driver_images": ["/nowhere/nvidia.tar"],
        "provision_driver_config": {"drivers": {"nvidea": {}}},
    }
    hosts = {"first": _NOWHERE, "second": {**_NOWHERE, **lacking}}
    ansible = Ansible(tmp_path, [], {}, stand_ins=hosts)
    played = ansible.play(SITE, "--extra-vars", "provision_serial=1", check=False)
    assert played.code != 0
    # Nothing is wrong with the first one, and it was not asked anything either.
    assert "UNREACHABLE" not in played.output
    assert [played.recap[host]["unreachable"] for host in ("first", "second")] == [0, 0]
    for said in (
        "/nowhere/oci-decorator",
        "/nowhere/nvidia.tar",
        "nvidea",
        "The controller is not ready.",
    ):
        assert said in played.output


def test_a_mistake_in_a_driver_is_named_before_anything_is_done(
    pair: tuple[Machine, Machine], settings: dict[str, Any], tmp_path: Path
) -> None:
    first, _ = pair
    variables = {
        **settings,
        "provision_driver_config": {"drivers": {"nvidia": {"verzion": "535"}}},
    }
    played = Ansible(tmp_path, [first], variables).play(SITE, check=False)
    assert played.code != 0
    assert "config.drivers.nvidia: verzion" in played.output
    assert played.changed_tasks() == []


def test_a_batch_that_fails_is_the_last(
    pair: tuple[Machine, Machine],
    settings: dict[str, Any],
    config: dict[str, Any],
    tmp_path: Path,
) -> None:
    wanted = {"v4l2loopback": {"version": "99"}}
    variables = {
        **settings,
        "provision_driver_config": {**config, "drivers": wanted},
    }
    first, second = pair
    ansible = Ansible(tmp_path, [first, second], variables)
    played = ansible.play(SITE, "--extra-vars", "provision_serial=1", check=False)
    assert played.code != 0
    assert "v4l2loopback for" in played.output
    assert "99" in played.output
    assert played.recap["first"]["failed"] == 1
    assert played.recap["second"]["changed"] == 0
    assert second("test", "-e", "/opt/provision", check=False).returncode != 0


def test_the_others_of_a_batch_that_fails_are_finished(
    pair: tuple[Machine, Machine], settings: dict[str, Any], tmp_path: Path
) -> None:
    first, second = pair
    # Ansible takes them by name: this one is in the first batch of two.
    lost = {"lost": _NOWHERE}
    ansible = Ansible(tmp_path, [first, second], settings, stand_ins=lost)
    played = ansible.play(SITE, "--extra-vars", "provision_serial=2", check=False)
    assert played.code != 0
    assert played.recap["lost"]["unreachable"] == 1
    assert played.recap["first"]["failed"] == 0
    assert first.sh("oci-decorator --version").startswith("oci-decorator ")
    assert played.recap["second"]["changed"] == 0
    assert second("test", "-e", "/opt/provision", check=False).returncode != 0


def test_a_host_that_lost_its_connection_is_finished_by_the_next_run(
    pair: tuple[Machine, Machine], settings: dict[str, Any], tmp_path: Path
) -> None:
    _, host = pair
    ansible = Ansible(tmp_path, [host], settings)
    log = tmp_path / "log"
    playing = start(ansible.words(SITE), log=log, env=ansible.environment())
    try:
        _wait_for(host, "ls -d /opt/provision/venv-*")
        host.cut()
        assert playing.wait(_WAIT_S) != 0
    finally:
        playing.kill()
    assert "UNREACHABLE" in log.read_text()
    # What was half made is not in use; only a whole environment gets the name.
    if host("test", "-e", "/opt/provision/venv", check=False).returncode == 0:
        assert host.sh("/opt/provision/venv/bin/provision --version").startswith("provision ")
    host.start_ssh()
    assert ansible.play(SITE).recap["second"]["failed"] == 0
    assert host.sh("/opt/provision/bin/provision --version").startswith("provision ")
    assert ansible.play(SITE).recap["second"]["changed"] == 0


def _wait_for(machine: Machine, script: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        if machine("sh", "-c", script, check=False).returncode == 0:
            return
        time.sleep(0.05)
    raise AssertionError(f"never came true: {script}")
