"""Which packages and paths each distro gets, from real os-release files. Nothing is installed.

Ansible's own names for distros are what it makes of these files on such a host.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible.module_utils.facts.system.distribution import Distribution

from kit.cache import REPOSITORY
from kit.playbooks import COLLECTION, Ansible

if TYPE_CHECKING:
    from pathlib import Path

_OS_RELEASES = REPOSITORY / "tests/data/os-release"
_PLAY = """\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        distribution: "{{ given.distribution }}"
        distribution_version: "{{ given.version }}"
        distribution_major_version: "{{ given.version.split('.')[0] }}"
        os_family: "{{ given.family }}"
        kernel: "{{ given.kernel }}"
        cacheable: true
    - ansible.builtin.include_role:
        name: oci_decorator.drivers.provision_host
        tasks_from: set_vars
    - ansible.builtin.copy:
        content: "{{ found | to_json }}"
        dest: "{{ folder }}/{{ inventory_hostname }}.json"
        mode: "0644"
      vars:
        found:
          python: "{{ __provision_host_python_packages }}"
          headers: "{{ __provision_host_header_packages }}"
          engines: "{{ __provision_host_engine_packages }}"
"""


@dataclass(frozen=True, slots=True)
class Distro:
    """A distro as Ansible names it, and what the role makes of it."""

    file: str
    distribution: str
    family: str
    kernel: str
    python: str
    header: str
    docker: str | None


_DISTROS = [
    Distro(
        "debian_12",
        "Debian",
        "Debian",
        "6.1.0-47-amd64",
        "python3",
        "linux-headers-6.1.0-47-amd64",
        "docker.io",
    ),
    Distro(
        "ubuntu_24.04",
        "Ubuntu",
        "Debian",
        "6.8.0-45-generic",
        "python3",
        "linux-headers-6.8.0-45-generic",
        "docker.io",
    ),
    Distro(
        "rhel_9.4",
        "RedHat",
        "RedHat",
        "5.14.0-427.el9.x86_64",
        "python3.12",
        "kernel-devel-5.14.0-427.el9.x86_64",
        None,
    ),
    Distro(
        "rocky_9.6",
        "Rocky",
        "RedHat",
        "5.14.0-570.el9.x86_64",
        "python3.12",
        "kernel-devel-5.14.0-570.el9.x86_64",
        None,
    ),
    Distro(
        "fedora_44_workstation",
        "Fedora",
        "RedHat",
        "6.19.2-300.fc44.x86_64",
        "python3",
        "kernel-devel-6.19.2-300.fc44.x86_64",
        "moby-engine",
    ),
    Distro(
        "amzn_2023",
        "Amazon",
        "RedHat",
        "6.1.141-155.amzn2023.x86_64",
        "python3.11",
        "kernel-devel-6.1.141-155.amzn2023.x86_64",
        "docker",
    ),
    Distro(
        "opensuse-leap_15.5",
        "openSUSE Leap",
        "Suse",
        "5.14.21-150500.55.88-default",
        "python311",
        "kernel-default-devel=5.14.21-150500.55.88",
        "docker",
    ),
    Distro(
        "opensuse-tumbleweed_20240524",
        "openSUSE Tumbleweed",
        "Suse",
        "6.9.1-1-default",
        "python311",
        "kernel-default-devel=6.9.1-1",
        "docker",
    ),
]


def _os_release(distro: Distro) -> dict[str, str]:
    lines = (_OS_RELEASES / distro.file).read_text().splitlines()
    return dict(line.replace('"', "").split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize("distro", _DISTROS, ids=lambda distro: distro.file)
def test_ansible_has_these_names(distro: Distro) -> None:
    assert Distribution.OS_FAMILY[distro.distribution] == distro.family


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the role decides for each of them, in one run on stand-ins."""
    folder = tmp_path_factory.mktemp("distros")
    hosts = {distro.file: {"given": _given(distro)} for distro in _DISTROS}
    hosts["another"] = {"given": {**_given(_DISTROS[0]), "distribution": "X", "family": "X"}}
    return _decided(folder, hosts)


def _given(distro: Distro) -> dict[str, str]:
    return {
        "distribution": distro.distribution,
        "version": _os_release(distro)["VERSION_ID"],
        "family": distro.family,
        "kernel": distro.kernel,
    }


def _decided(folder: Path, hosts: dict[str, Any]) -> dict[str, Any]:
    everywhere = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "folder": str(folder),
    }
    ansible = Ansible(folder, [], everywhere, stand_ins=hosts)
    playbook = folder / "play.yml"
    playbook.write_text(_PLAY)
    ansible.play(playbook)
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in hosts}


@pytest.mark.parametrize("distro", _DISTROS, ids=lambda distro: distro.file)
def test_a_distro_gets_its_own_packages(distro: Distro, found: dict[str, Any]) -> None:
    decided = found[distro.file]
    assert decided["python"][0] == distro.python
    assert decided["headers"] == [distro.header]
    assert decided["engines"]["docker"] == ([distro.docker] if distro.docker else [])


def test_an_unknown_distro_gets_nothing_installed(found: dict[str, Any]) -> None:
    assert found["another"]["python"] == []
    assert found["another"]["headers"] == []


def test_every_file_of_variables_has_the_same_names() -> None:
    # main.yml is the role's own, whatever the distro.
    folder = COLLECTION / "roles/provision_host/vars"
    files = [path for path in sorted(folder.glob("*.yml")) if path.name != "main.yml"]
    names = {frozenset(yaml.safe_load(path.read_text())) for path in files}
    assert len(names) == 1
