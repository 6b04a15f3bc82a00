"""What goes wrong on the way: a wrong variable, a lost connection, a batch that fails."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts.conftest import ENGINE
from hosts.ssh_hosts import DEBIAN_12, SshHost
from kit.cache import REPOSITORY
from kit.engine import Engine
from kit.files import write_all
from kit.playbooks import SITE, Ansible
from kit.process import start, wait_for

pytestmark = pytest.mark.minutes(1.5)

_WAIT_S = 120
# A host that doesn't exist: no one gets so far as to ask it.
_NOWHERE = {"ansible_host": "127.0.0.1", "ansible_port": 1}
_PUBLIC = "-----BEGIN PUBLIC KEY-----\n"
# Files of a controller.
_FILES = {
    "fleet.pub": _PUBLIC,
    "more/fleet.pub": _PUBLIC,
    "fleet.txt": _PUBLIC,
    "fleet.key": "-----BEGIN ENCRYPTED PRIVATE KEY-----\n",
    "text.pub": "hello",
    "click-8.2-py3-none-any.whl": "",
    "pins.txt": "click==8.2 --hash=sha256:00\nrich==14.0 --hash=sha256:00\n",
    "drivers/nvidia/index.json": "{}",
}
Row = tuple[dict[str, Any], str]


def _driver(key: str, value: object) -> dict[str, Any]:
    return {f"provision_driver_{key}": value}


# What is wrong with variables, and what is named then; a row a host, a list a task that finds it.
_REFUSED: dict[str, list[Row]] = {
    "host": [({"provision_host_engine": ["docker"]}, "provision_host_engine")],
    "driver": [
        (_driver("require", "perfect"), "provision_driver_require"),
    ],
    "hook": [({"provision_hook_config": {"log-level": "loud"}}, "log-level")],
    "controller": [
        ({"provision_hook_program": "/nowhere/oci-decorator"}, "make build"),
        ({"provision_hook_program": "FILES/fleet.key"}, "is no program"),
        (_driver("source", "/nowhere/provision"), "neither a wheel nor a checkout"),
        (_driver("source", "FILES/fleet.key"), "is no wheel"),
        (_driver("wheelhouse", "/nowhere/wheels"), "has no wheel of"),
        (
            _driver("wheelhouse", "FILES") | _driver("constraints", "FILES/pins.txt"),
            "has no wheel of rich 14.0.",
        ),
        (_driver("constraints", "/nowhere/c.txt"), "provision_driver_constraints"),
        ({"provision_host_agent_image": "registry.example/agent:1"}, "provision_host_agent_image"),
        (_driver("config", {"colour": "red"}), "colour"),
        (_driver("config", {"policy": {"unload": "always"}}), "unload"),
        (_driver("config", {"drivers": {"nvidea": {}}}), "Did you mean 'nvidia'?"),
        (_driver("config", {"drivers": {"nvidia": {"verzion": "1"}}}), "drivers.nvidia: verzion"),
        (_driver("trust_keys", ["/nowhere/fleet.pub"]), "There is no key"),
        (_driver("trust_keys", ["FILES/fleet.key"]), "is a private key"),
        (_driver("trust_keys", ["FILES/text.pub"]), "no public key in PEM"),
        (_driver("trust_keys", ["FILES/fleet.txt"]), "would not be read"),
        (_driver("trust_keys", ["FILES/fleet.pub", "FILES/more/fleet.pub"]), "called 'fleet.pub'"),
        (_driver("catalogue", "/nowhere/recipes"), "has no driver"),
        (_driver("catalogue", "FILES"), "has no driver"),
        (_driver("folder", "/nowhere/drivers"), "is no folder"),
        (_driver("folder", "FILES/fleet.key"), "tar -xf"),
        (
            _driver("folder", "FILES/drivers")
            | _driver("config", {"drivers": {"nvidia": {}, "zfs": {}}, "catalogue": ["/srv"]}),
            "no images of zfs",
        ),
    ],
}


@pytest.mark.parametrize("found_by", _REFUSED)
def test_what_is_wrong_is_named_for_each_host_before_one_is_touched(
    tmp_path: Path, found_by: str
) -> None:
    files = tmp_path / "files"
    write_all(files, _FILES)
    rows = json.loads(json.dumps(_REFUSED[found_by]).replace("FILES", str(files)))
    hosts = {f"h{n:02}": {**_NOWHERE, **variables} for n, (variables, _) in enumerate(rows)}
    # Nothing is wrong with the first one, and it is not asked anything either.
    ansible = Ansible(tmp_path, [], {}, stand_ins={"fine": _NOWHERE, **hosts})
    played = ansible.play(SITE, "--extra-vars", "provision_serial=1", check=False)
    assert played.code != 0
    assert "UNREACHABLE" not in played.output
    for host, (_, said) in zip(hosts, rows, strict=True):
        failures = re.findall(rf"^(?:fatal|failed): \[{host}\].*$", played.output, re.MULTILINE)
        assert len(failures) == 1, played.output
        assert said in failures[0]


def test_everything_that_a_host_lacks_is_in_one_message(tmp_path: Path) -> None:
    lacking = {
        "provision_hook_program": "/nowhere/oci-decorator",
        "provision_driver_trust_keys": ["/nowhere/fleet.pub"],
        "provision_driver_config": {"drivers": {"nvidea": {}}},
    }
    played = Ansible(tmp_path, [], {}, stand_ins={"h": {**_NOWHERE, **lacking}}).play(
        SITE, check=False
    )
    assert played.recap["h"]["failed"] == 1
    for said in ("/nowhere/oci-decorator", "/nowhere/fleet.pub", "nvidea"):
        assert said in played.output


@pytest.fixture(scope="module")
def pair(engine: Engine) -> Iterator[tuple[SshHost, SshHost]]:
    """Two hosts that have nothing yet; the second stays so until the last test."""
    binds = {engine.folder: ENGINE}
    with SshHost(DEBIAN_12, "first", binds) as first, SshHost(DEBIAN_12, "second", binds) as second:
        yield first, second


def test_a_package_with_another_checksum_is_refused(
    pair: tuple[SshHost, SshHost], settings: dict[str, Any], tmp_path: Path
) -> None:
    first, _ = pair
    wrong = tmp_path / "wrong.txt"
    text = (REPOSITORY / "constraints.txt").read_text()
    entry = text[text.index("distro==") : text.index("\ndocker==")]
    wrong.write_text(text.replace(entry, f"distro==1.9.0 --hash=sha256:{'0' * 64}"))
    given = {**settings, "provision_driver_constraints": str(wrong)}
    played = Ansible(tmp_path, [first], given).play(SITE, check=False)
    assert played.recap["first"]["failed"] == 1
    assert "DO NOT MATCH THE HASHES" in played.output
    assert played.changed_tasks() == []


def test_a_batch_that_fails_is_the_last(
    pair: tuple[SshHost, SshHost],
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


@pytest.mark.nightly
def test_the_others_of_a_batch_that_fails_are_finished(
    pair: tuple[SshHost, SshHost], settings: dict[str, Any], tmp_path: Path
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


@pytest.mark.nightly
def test_a_host_that_lost_its_connection_is_finished_by_the_next_run(
    pair: tuple[SshHost, SshHost], settings: dict[str, Any], tmp_path: Path
) -> None:
    _, host = pair
    ansible = Ansible(tmp_path, [host], settings)
    log = tmp_path / "log"
    playing = start(ansible.words(SITE), log=log, env=ansible.environment())
    try:
        begun = ("sh", "-c", "ls -d /opt/provision/venv-*")
        wait_for(
            "the first task", lambda: host(*begun, check=False).returncode == 0, within_s=_WAIT_S
        )
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
