"""The life of a host: bare, checked, converged, the same again, looked at, and back to bare.

The tests are one scenario, in the order of this file; the last one takes everything back.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import testinfra

from hosts.conftest import ENGINE
from hosts.machines import DEBIAN_12, DEBIAN_13, KERNEL, Machine
from kit.playbooks import REMOVE, SITE, Ansible, Played
from kit.product import DECORATOR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testinfra.host import Host

    from kit.engine import Engine
    from kit.engine_tree import EngineTree

pytestmark = pytest.mark.minutes(4)

_DRIVER = "v4l2loopback"
_RELEASES = (DEBIAN_12, DEBIAN_13)
_PROGRAM = "/opt/provision/bin/provision"
_KEY = "/etc/provision/mok.key"
# As people write it, for a Docker that runs and could do no harm to this machine's network.
_LIVE_DAEMON_JSON = """\
{
  "bridge": "none", "iptables": false, "ip6tables": false,
  "storage-driver": "vfs",
  "data-root": "/run/docker-data",
  "exec-opts": ["native.cgroupdriver=cgroupfs"],
  "runtimes": {"kata": {"path": "/opt/kata/bin/kata-runtime"}}
}
"""
# As people write it: comments, an odd indentation, another runtime. Docker takes no comments; it
# doesn't run on these hosts.
_DAEMON_JSON = """\
{
  // journald, because ops read that
  "log-driver": "journald",
  "runtimes": {
    "kata": {"path": "/opt/kata/bin/kata-runtime"}  // not ours
  }
}
"""
_CONTAINERD = """\
version = 2
# by hand
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]
runtime_type = "io.containerd.kata.v2"
"""
_UNITS = {
    "provision-boot.service": "multi-user.target.wants",
    "provision-cdi.service": "multi-user.target.wants",
    "provision-cdi.path": "paths.target.wants",
    "provision-devices.path": "paths.target.wants",
    "provision-devices.service": "multi-user.target.wants",
    "provision-kernel.path": "paths.target.wants",
    "provision-apply.timer": "timers.target.wants",
    "provision-repeat.timer": "timers.target.wants",
}
# With containerd, which is left as it is where it is Docker's, unless it is named.
_NAMED = ["docker", "containerd", "podman"]
# All that a playbook may touch, but for /opt and /var/lib/provision, which are ours.
_FOLDERS = ("/etc", "/opt", "/usr/bin", "/usr/share/containers", "/var/lib", "/run/systemd/system")
_ITS_OWN = (
    "/var/lib/systemd",
    "/etc/systemd/system/multi-user.target.wants/ssh",
    "/etc/ld.so.cache",
    "/var/lib/private",
    "/var/lib/containerd",
    # podman writes down who locked its storage last, whenever it is asked anything.
    "/var/lib/containers/storage",
    "/etc/docker/key.json",
)


@dataclass(frozen=True, slots=True)
class Runs:
    """What the playbooks came to on the hosts of an inventory, a host of each release.

    Attributes:
        machines: The hosts.
        ansible: Their controller.
        before: What was on each before anything ran.
        checked: A check of the bare hosts.
        untouched: What was on each after that.
        converged: The run that sets them up.
        again: The same once more.
        checked_again: A check of what needs nothing.
    """

    machines: tuple[Machine, ...]
    ansible: Ansible
    before: dict[str, dict[str, str]]
    checked: Played
    untouched: dict[str, dict[str, str]]
    converged: Played
    again: Played
    checked_again: Played


@dataclass(frozen=True, slots=True)
class Scenario:
    """One host of them, as its tests look at it."""

    runs: Runs
    machine: Machine
    host: Host

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return self.machine.name


def _files(machine: Machine) -> dict[str, str]:
    found = machine.snapshot(*_FOLDERS)
    return {path: what for path, what in found.items() if not path.startswith(_ITS_OWN)}


@pytest.fixture(scope="module")
def runs(
    engine: Engine,
    config: dict[str, Any],
    settings: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Runs]:
    """A host of each release, up to where it has everything."""
    binds = {engine.folder: ENGINE}
    with ExitStack() as stack:
        machines = []
        for release in _RELEASES:
            machine = Machine(
                release, release.suite, binds=binds, settings=_settings(release, config)
            )
            machines.append(stack.enter_context(machine))
            is_live = release is DEBIAN_13
            machine.write("/etc/docker/daemon.json", _LIVE_DAEMON_JSON if is_live else _DAEMON_JSON)
            machine.write("/etc/containerd/config.toml", _CONTAINERD)
            machine.write(_KEY, "the admin's key")
            if is_live:
                machine("systemctl", "start", "docker")
        ansible = Ansible(tmp_path_factory.mktemp("debian"), machines, settings)
        yield _played(tuple(machines), ansible)


def _settings(release: EngineTree, config: dict[str, Any]) -> dict[str, Any]:
    # The kernel that these hosts believe to run is one of Debian 12's.
    drivers: dict[str, Any] = {_DRIVER: {}} if release is DEBIAN_12 else {}
    return {
        "provision_driver_config": {**config, "drivers": drivers},
        # Its module can't be loaded in a container.
        "provision_driver_require": "prepared",
        "provision_hook_docker_default": True,
        **({} if release is DEBIAN_13 else {"provision_hook_engines": _NAMED}),
    }


def _played(machines: tuple[Machine, ...], ansible: Ansible) -> Runs:
    before = {machine.name: _files(machine) for machine in machines}
    checked = ansible.play(SITE, "--check", "--diff")
    untouched = {machine.name: _files(machine) for machine in machines}
    return Runs(
        machines,
        ansible,
        before,
        checked,
        untouched,
        converged=ansible.play(SITE),
        again=ansible.play(SITE),
        checked_again=ansible.play(SITE, "--check", "--diff"),
    )


@pytest.fixture(params=_RELEASES, ids=lambda release: release.suite)
def scenario(request: pytest.FixtureRequest, runs: Runs) -> Scenario:
    """Each host in turn."""
    (machine,) = (one for one in runs.machines if one.release is request.param)
    host = testinfra.get_host(
        f"ssh://root@127.0.0.1:{machine.port}",
        ssh_identity_file=str(machine.key),
        ssh_extra_args="-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
    )
    return Scenario(runs, machine, host)


@pytest.fixture(scope="module")
def removal_checked(runs: Runs) -> tuple[Played, dict[str, dict[str, str]]]:
    """A check of a removal, and what was on each host before it."""
    there = {machine.name: _files(machine) for machine in runs.machines}
    return runs.ansible.play(REMOVE, "--check", "--diff"), there


@pytest.fixture(scope="module")
def removed(runs: Runs) -> tuple[Played, Played]:
    """The removal, and a second one."""
    return runs.ansible.play(REMOVE), runs.ansible.play(REMOVE)


def test_a_check_of_a_bare_host_reports_everything_and_does_nothing(scenario: Scenario) -> None:
    runs, name = scenario.runs, scenario.name
    assert runs.untouched[name] == runs.before[name]
    done = runs.converged.changed_tasks(name)
    announced = runs.checked.changed_tasks(name)
    # What provision brings along it does not know of yet, such as the folder of vendor files.
    assert set(done) <= set(announced)
    added = [line for line in runs.checked.output.splitlines() if line.startswith("+")]
    assert [line for line in added if "/usr/bin/oci-decorator-runtime" in line]
    assert "+# Written by Ansible (provision_driver_config)" in runs.checked.output


def test_the_second_run_changes_nothing(scenario: Scenario) -> None:
    runs, name = scenario.runs, scenario.name
    assert runs.again.changed_tasks(name) == []
    assert runs.again.recap[name]["changed"] == 0
    # A module that could not be loaded is tried again; what comes of that, a check can't know.
    tried = {"Ensure the drivers are built, installed and loaded"}
    changed = runs.checked_again.changed_tasks(name)
    assert set(changed) <= (tried if scenario.machine.release is DEBIAN_12 else set())


def test_provision_is_installed_apart_from_the_hosts_python(scenario: Scenario) -> None:
    program = scenario.host.file(_PROGRAM)
    assert program.is_symlink
    assert scenario.host.run(f"{_PROGRAM} --version").stdout.startswith("provision ")
    archive = scenario.host.file("/opt/provision/provision.tar")
    assert (archive.user, archive.group, archive.mode) == ("root", "root", 0o644)
    venvs = scenario.machine.sh("ls -d /opt/provision/venv-*").split()
    assert len(venvs) == 1


def test_provision_toml_is_what_the_inventory_says(scenario: Scenario) -> None:
    file = scenario.host.file("/etc/provision/provision.toml")
    assert (file.user, file.group, file.mode) == ("root", "root", 0o644)
    assert "Written by Ansible" in file.content_string
    assert ("[drivers.v4l2loopback]" in file.content_string) == (
        scenario.machine.release is DEBIAN_12
    )
    done = scenario.host.run(f"{_PROGRAM} plan --json")
    # The other host's inventory names no driver.
    assert done.rc == (0 if scenario.machine.release is DEBIAN_12 else 3), done.stderr


@pytest.mark.parametrize("unit", sorted(_UNITS))
def test_units_are_enabled_and_watch(scenario: Scenario, unit: str) -> None:
    file = scenario.host.file(f"/etc/systemd/system/{unit}")
    assert (file.user, file.group, file.mode) == ("root", "root", 0o644)
    link = scenario.host.file(f"/etc/systemd/system/{_UNITS[unit]}/{unit}")
    assert link.linked_to == f"/etc/systemd/system/{unit}"
    assert scenario.host.service(unit).is_enabled
    if not unit.endswith(".service"):
        assert scenario.host.service(unit).is_running


@pytest.mark.parametrize("folder", ["postinst.d", "postrm.d", "header_postinst.d"])
def test_kernel_packages_tell_provision(scenario: Scenario, folder: str) -> None:
    hook = scenario.host.file(f"/etc/kernel/{folder}/provision")
    assert (hook.user, hook.mode) == ("root", 0o755)
    assert scenario.host.run(f"/etc/kernel/{folder}/provision {KERNEL}").rc == 0


def test_the_driver_is_in_the_store_and_it_is_said_why_it_is_not_loaded(scenario: Scenario) -> None:
    status = json.loads(scenario.host.run(f"{_PROGRAM} status --json").stdout)
    if scenario.machine.release is not DEBIAN_12:
        assert (status["state"], status["drivers"]) == ("not-configured", [])
        return
    (driver,) = status["drivers"]
    (slot,) = driver["kernels"]
    assert (slot["release"], slot["state"]) == (KERNEL, "failed")
    assert slot["digest"]
    assert _DRIVER in scenario.runs.converged.output
    assert slot["reason"] in scenario.runs.converged.output
    vendor = scenario.host.file(f"/etc/oci-decorator/oci-decorator.d/{_DRIVER}.json")
    assert (vendor.user, vendor.mode) == ("root", 0o644)
    assert scenario.host.file(f"/var/lib/provision/{_DRIVER}/current").is_symlink


def test_the_hook_is_installed(scenario: Scenario) -> None:
    program = scenario.host.file("/usr/bin/oci-decorator")
    assert (program.user, program.group, program.mode) == ("root", "root", 0o755)
    assert program.size == DECORATOR.stat().st_size
    assert scenario.host.file("/usr/bin/oci-decorator-runtime").is_symlink
    assert scenario.host.file("/etc/oci-decorator/config.toml").mode == 0o644
    assert scenario.host.run("oci-decorator check").rc == 0


def test_docker_has_the_runtime_and_keeps_what_was_there(scenario: Scenario) -> None:
    text = scenario.machine.read("/etc/docker/daemon.json")
    assert '"path": "/usr/bin/oci-decorator-runtime"' in text
    assert '"default-runtime": "oci-decorator"' in text
    if scenario.machine.release is DEBIAN_12:
        assert "// journald, because ops read that" in text
        assert '"kata": {"path": "/opt/kata/bin/kata-runtime"},  // not ours' in text
    else:
        assert _docker(scenario) == ("oci-decorator", {"io.containerd.runc.v2", "kata", "runc"})


def _docker(scenario: Scenario) -> tuple[str, set[str]]:
    """The default of a Docker that runs, and all other runtimes that it knows."""
    info = json.loads(scenario.machine("docker", "info", "--format", "{{json .}}").stdout)
    return info["DefaultRuntime"], set(info["Runtimes"]) - {info["DefaultRuntime"]}


def test_containerd_has_the_runtime_where_it_is_named_and_keeps_what_was_there(
    scenario: Scenario,
) -> None:
    text = scenario.machine.read("/etc/containerd/config.toml")
    if scenario.machine.release is DEBIAN_13:
        assert text == _CONTAINERD
        return
    assert text.startswith(_CONTAINERD)
    dumped = scenario.host.run("containerd --config /etc/containerd/config.toml config dump").stdout
    assert "io.containerd.kata.v2" in dumped
    assert "/usr/bin/oci-decorator-runtime" in dumped


def test_podman_has_runtime_and_hooks(scenario: Scenario) -> None:
    # With a storage of its own, which does not ask for overlays on overlays.
    podman = "podman --root /run/kit/a --runroot /run/kit/b --tmpdir /run/kit/c"
    asked = "--storage-driver vfs --runtime oci-decorator info --format '{{.Host.OCIRuntime.Path}}'"
    done = scenario.host.run(f"{podman} {asked}")
    assert done.stdout.strip() == "/usr/bin/oci-decorator-runtime", done.stderr
    for name in ("10-oci-decorator-precreate.json", "20-oci-decorator-prestart.json"):
        hook = scenario.host.file(f"/usr/share/containers/oci/hooks.d/{name}")
        assert json.loads(hook.content_string)["hook"]["path"] == "/usr/bin/oci-decorator"


def test_a_check_of_a_removal_changes_nothing(
    scenario: Scenario, removal_checked: tuple[Played, dict[str, dict[str, str]]]
) -> None:
    checked, there = removal_checked
    assert checked.recap[scenario.name]["changed"] > 0
    assert _files(scenario.machine) == there[scenario.name]


def test_a_removal_leaves_the_host_as_it_was(
    scenario: Scenario, removed: tuple[Played, Played]
) -> None:
    played, again = removed
    before = scenario.runs.before[scenario.name]
    # With the key that the admin put beside provision.toml, which is listed.
    assert _files(scenario.machine) == before
    assert _KEY in before
    assert _KEY in played.output
    if scenario.machine.release is DEBIAN_13:
        assert _docker(scenario) == ("runc", {"io.containerd.runc.v2", "kata"})
    assert again.recap[scenario.name]["changed"] == 0
    left = scenario.machine.sh("systemctl list-unit-files 'provision-*' --no-legend || true")
    assert left == ""
