"""All of site.yml on hosts laid out as Fedora CoreOS and Flatcar, up to loading a module.

They have no Python, no package manager, and a /usr that is read-only: they get a Python of ours, a
newer one, and none again. The tests are steps of one scenario, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hosts.conftest import ENGINE, podman_files, pushed
from hosts.ssh_hosts import DEBIAN_12, KERNEL, SshHost
from kit.cache import REPOSITORY
from kit.engine import Engine
from kit.hosts import DISTRO, NEW_KERNEL, SMALL_DRIVER
from kit.playbooks import REMOVE, SITE, Ansible, Played

# The agent's image is made. With each change, tests/hosts/test_decisions.py has the paths.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(6)]

_PROGRAM = "/opt/provision/bin/provision"
_PYTHON = "/opt/provision/python"
_GETS_PYTHON = "Ensure provision's own Python is installed"
_LOADED = """
import ctypes, lzma, sqlite3, ssl, pydantic_core
print(*{line.split()[5] for line in open("/proc/self/maps") if ".so" in line})
"""
_GATE = "/oem/bin/oem-postinst"
_FOREIGN = (
    "/opt /usr/bin/python3* /usr/lib/python3* /usr/share/python3*"
    " /etc/apt /var/lib/apt /var/lib/dpkg /usr/bin/apt* /usr/bin/dpkg*"
)
_READ_ONLY = "mount --bind /usr /usr; mount -o remount,bind,ro /usr"
_LAYOUTS = {
    "fedora_41_coreos": "mkdir -p /var/opt; ln -s var/opt /opt; touch /run/ostree-booted",
    "flatcar_3227.2.4": "mkdir /opt",
}
_ON_FEDORA_COREOS, _ON_FLATCAR = (
    pytest.mark.parametrize("scenario", [distro], indirect=True) for distro in _LAYOUTS
)
# Not ours, and written by whatever runs.
_NOISE = ("/var/lib/systemd", "/etc/ld.so.cache", "/var/lib/containers")


@dataclass
class Scenario:
    """A host, the image that it gets its Python from, and how runs of the playbook ended."""

    distro: str
    agent: str
    machine: SshHost
    ansible: Ansible
    before: dict[str, str]
    converged: Played
    again: Played

    def links(self) -> set[str]:
        """The kernels that the driver has an artifact for."""
        return set(self.machine.sh(f"ls /var/lib/provision/{SMALL_DRIVER}/kernels").split())

    def play(self, image: str, *words: str, check: bool = True) -> Played:
        """Run the playbook with an image of the agent."""
        return self.ansible.play(SITE, *words, check=check, provision_host_agent_image=image)


def _files(machine: SshHost) -> dict[str, str]:
    found = machine.snapshot("/etc", "/opt/", "/var/lib", "/usr/bin", "/oem", "/run/systemd/system")
    return {path: what for path, what in found.items() if not path.startswith(_NOISE)}


@pytest.fixture(
    scope="module",
    params=list(_LAYOUTS),
)
def scenario(
    request: pytest.FixtureRequest,
    engine: Engine,
    config: dict[str, Any],
    settings: dict[str, Any],
    agent: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scenario]:
    """A host of each kind, up to where it has everything."""
    distro: str = request.param
    variables = {
        **settings,
        "provision_host_agent_image": agent,
        "provision_driver_config": {
            **config,
            "kernel_distro": DISTRO,
            "policy": {"hold_kernels": True},
            "drivers": {SMALL_DRIVER: {}},
        },
        # Its module can't be loaded in a container.
        "provision_driver_require": "prepared",
    }
    with SshHost(DEBIAN_12, binds={engine.folder: ENGINE}) as machine:
        os_release = REPOSITORY / "tests/data/os-release" / distro
        machine.write("/usr/lib/os-release", os_release.read_text())
        for path, text in podman_files(agent).items():
            machine.write(path, text)
        # 'configure --remove' leaves an empty document of a file that it made.
        machine.write("/etc/docker/daemon.json", "{}\n")
        machine.sh(f"rm -rf {_FOREIGN}; mkdir -p /oem; {_LAYOUTS[distro]}; {_READ_ONLY}")
        before = _files(machine)
        ansible = Ansible(tmp_path_factory.mktemp("site"), [machine], variables)
        converged = ansible.play(SITE)
        yield Scenario(distro, agent, machine, ansible, before, converged, ansible.play(SITE))


def test_the_driver_is_built_by_our_own_python(scenario: Scenario) -> None:
    assert _GETS_PYTHON in scenario.converged.changed_tasks()
    assert scenario.machine.sh("command -v python3 || true") == ""
    assert scenario.links() == {KERNEL}
    facts = json.loads(scenario.machine.sh(f"{_PROGRAM} facts --json"))
    assert facts["distro"]["id"] == scenario.distro.partition("_")[0]
    assert facts["immutable"]


def test_the_hook_lies_where_it_can_be_written(scenario: Scenario) -> None:
    checked = scenario.machine.sh(
        "/opt/provision/bin/oci-decorator check --env OCI_V4L2LOOPBACK=all"
    )
    assert "v4l2loopback" in checked
    hooks = scenario.machine.sh("ls /etc/containers/oci/hooks.d").split()
    assert "10-oci-decorator-precreate.json" in hooks


def test_the_second_run_changes_nothing(scenario: Scenario) -> None:
    assert scenario.again.changed_tasks() == []
    assert scenario.again.recap["host"]["changed"] == 0


def test_only_updates_of_flatcar_pass_a_gate(scenario: Scenario) -> None:
    is_flatcar = scenario.distro.startswith("flatcar")
    there = scenario.machine("test", "-x", _GATE, check=False).returncode == 0
    assert there == is_flatcar


@_ON_FLATCAR
def test_the_gate_lets_an_update_pass_whose_modules_were_built(scenario: Scenario) -> None:
    scenario.machine.sh(f"mkdir -p /run/new/lib/modules/{NEW_KERNEL}")
    done = scenario.machine(_GATE, "B", "/run/new", check=False)
    assert done.returncode == 0, done.output
    assert scenario.links() == {KERNEL, NEW_KERNEL}


@_ON_FLATCAR
def test_the_gate_holds_an_update_whose_modules_can_not_be_built(scenario: Scenario) -> None:
    scenario.machine.sh("mkdir -p /run/newer/lib/modules/6.1.999-flatcar")
    done = scenario.machine(_GATE, "A", "/run/newer", check=False)
    assert done.returncode == 3, done.output
    assert "6.1.999-flatcar" in done.output
    # And no one misses updates for a program that is gone.
    scenario.machine.sh(f"mv {_PROGRAM} {_PROGRAM}.gone")
    assert scenario.machine(_GATE, "A", "/run/newer", check=False).returncode == 0
    scenario.machine.sh(f"mv {_PROGRAM}.gone {_PROGRAM}")


@_ON_FEDORA_COREOS
def test_its_python_is_whole_and_roots_and_nothing_else_came_with_it(scenario: Scenario) -> None:
    machine = scenario.machine
    loaded = machine(f"{_PYTHON}/bin/python3", "-I", "-c", _LOADED).stdout.split()
    assert loaded
    assert [path for path in loaded if "/opt/provision/python/" not in path] == []
    modes = machine.sh(f"find {_PYTHON} ! -type l \\( -perm /022 -o ! -uid 0 -o ! -gid 0 \\)")
    assert modes == ""
    # Neither a container nor the image stays, and the link is still one.
    assert machine.sh("podman ps --all --quiet; podman images --quiet") == ""
    assert machine.sh("readlink /opt") == "var/opt\n"


@_ON_FEDORA_COREOS
def test_it_stays_in_use_without_a_named_image(scenario: Scenario) -> None:
    assert scenario.play("").changed_tasks() == []


def _another(engine: Engine, agent: str, change: str, folder: Path) -> str:
    """An image of the agent with a change, by its digest."""
    (folder / "Dockerfile").write_text(f"FROM {agent}\n{change}\n")
    image = engine.docker("build", "--quiet", folder).stdout.strip()
    return pushed(engine, image, f"{agent.partition('@')[0]}:{folder.name.replace('_', '-')}")


@_ON_FEDORA_COREOS
def test_one_that_does_not_run_there_leaves_the_former(
    scenario: Scenario, engine: Engine, tmp_path: Path
) -> None:
    """As an image for another machine does."""
    there = scenario.machine.sh("ls -A /opt/provision")
    change = f"RUN echo > {_PYTHON}/lib/libz.so.1"
    played = scenario.play(_another(engine, scenario.agent, change, tmp_path), check=False)
    assert played.code != 0
    assert "does not run on this x86_64" in played.output
    assert scenario.machine.sh(f"{_PYTHON}/bin/python3 -c 'import zlib; print(1)'") == "1\n"
    assert scenario.machine.sh("ls -A /opt/provision") == there


@_ON_FEDORA_COREOS
def test_another_image_takes_the_place_of_the_first(
    scenario: Scenario, engine: Engine, tmp_path: Path
) -> None:
    newer = _another(engine, scenario.agent, "LABEL newer=yes", tmp_path)
    scenario.machine.sh(f"touch {_PYTHON}/of-the-first")
    for words in (("--check",), ()):
        assert _GETS_PYTHON in scenario.play(newer, *words).changed_tasks()
    assert scenario.machine.sh(f"ls {_PYTHON}").split() == ["bin", "lib", "share"]
    assert scenario.play(newer).changed_tasks() == []


def test_everything_can_be_taken_back(scenario: Scenario) -> None:
    scenario.ansible.play(REMOVE)
    assert _files(scenario.machine) == scenario.before
    assert scenario.machine.sh("ls -A /opt/") == ""
    again = scenario.ansible.play(REMOVE)
    assert again.recap["host"]["changed"] == 0
    assert "nothing that provision installed can be there" in again.output


def test_a_check_of_the_bare_host_reports_and_changes_nothing(scenario: Scenario) -> None:
    played = scenario.play(scenario.agent, "--check", "--diff")
    assert _GETS_PYTHON in played.changed_tasks()
    assert "has no Python: the remaining changes can be shown" in played.output
    assert scenario.machine.sh("ls -A /opt/") == ""


def test_without_an_image_the_way_out_is_named(scenario: Scenario) -> None:
    played = scenario.play("", check=False)
    assert played.code != 0
    assert "provision_host_agent_image" in played.output
