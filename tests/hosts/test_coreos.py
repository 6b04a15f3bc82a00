"""A host without Python, whose /opt is a link: how it gets one, a newer one, and none again.

The tests are steps of one scenario, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.conftest import podman_files, pushed
from hosts.ssh_hosts import DEBIAN_12, SshHost
from kit.cache import REPOSITORY
from kit.engine import Engine
from kit.playbooks import REMOVE, SITE, Ansible, Played

# The agent's image is made.
pytestmark = pytest.mark.nightly

_PYTHON = "/opt/provision/python"
_OS_RELEASE = REPOSITORY / "tests/data/os-release/fedora_41_coreos"
_PLAY = """\
- hosts: all
  gather_facts: false
  become: true
  roles:
    - role: oci_decorator.drivers.provision_host
      vars:
        provision_host_engine: none
  tasks:
    - ansible.builtin.stat:
        path: /opt
      register: opt
    - ansible.builtin.debug:
        msg: "python={{ ansible_facts['python']['executable'] }} link={{ opt.stat.lnk_target }}"
"""
_CHANGES = ["Ensure provision's own Python is installed"]


@pytest.fixture(scope="module")
def machine(agent: str) -> Iterator[SshHost]:
    """A host as Fedora CoreOS lays it out; its Python is gone."""
    with SshHost(DEBIAN_12, name="coreos") as machine:
        machine.sh(
            "rm -rf /usr/bin/python3* /usr/lib/python3* /opt;"
            " mkdir -p /var/opt; ln -s var/opt /opt; touch /run/ostree-booted"
        )
        machine.write("/etc/os-release", _OS_RELEASE.read_text())
        for path, text in podman_files(agent).items():
            machine.write(path, text)
        yield machine


@pytest.fixture(scope="module")
def ansible(machine: SshHost, tmp_path_factory: pytest.TempPathFactory) -> Ansible:
    folder = tmp_path_factory.mktemp("coreos")
    (folder / "play.yml").write_text(_PLAY)
    return Ansible(folder, [machine], {})


def _play(ansible: Ansible, *words: str, image: str = "", check: bool = True) -> Played:
    playbook = ansible.folder / "play.yml"
    return ansible.play(playbook, *words, check=check, provision_host_agent_image=image)


def _another(engine: Engine, agent: str, change: str, folder: Path) -> str:
    """An image of the agent with a change, by its digest."""
    (folder / "Dockerfile").write_text(f"FROM {agent}\n{change}\n")
    image = engine.docker("build", "--quiet", folder).stdout.strip()
    return pushed(engine, image, f"{agent.partition('@')[0]}:{folder.name.replace('_', '-')}")


def _there(machine: SshHost) -> list[str]:
    return machine.sh("ls -A /opt/provision").split()


def test_without_an_image_the_way_out_is_named(ansible: Ansible) -> None:
    played = _play(ansible, check=False)
    assert played.code != 0
    assert "provision_host_agent_image" in played.output


def test_a_check_of_the_bare_host_reports_and_changes_nothing(
    ansible: Ansible, machine: SshHost, agent: str
) -> None:
    played = ansible.play(SITE, "--check", "--diff", provision_host_agent_image=agent)
    assert played.changed_tasks() == _CHANGES
    assert "coreos has no Python: the remaining changes can be shown" in played.output
    assert machine.sh("ls /opt") == ""


def test_it_gets_ours_and_modules_run_with_it(
    ansible: Ansible, machine: SshHost, agent: str
) -> None:
    played = _play(ansible, image=agent)
    assert played.changed_tasks() == _CHANGES
    assert f"python={_PYTHON}/bin/python3" in played.output
    # The link is still one.
    assert "link=var/opt" in played.output
    assert machine.sh(f"{_PYTHON}/bin/python3 -c 'print(1)'") == "1\n"
    assert machine.sh("/opt/provision/bin/provision --version").startswith("provision ")
    assert _there(machine) == ["bin", "python"]
    modes = machine.sh(f"find {_PYTHON} ! -type l \\( -perm /022 -o ! -uid 0 -o ! -gid 0 \\)")
    assert modes == ""
    # Neither a container nor the image stays.
    assert machine.sh("podman ps --all --quiet; podman images --quiet") == ""


def test_it_runs_only_from_its_own_files(machine: SshHost) -> None:
    loaded = machine.sh(
        f"{_PYTHON}/bin/python3 -I -c 'import ctypes, lzma, sqlite3, ssl, pydantic_core;"
        ' print(*{l.split()[5] for l in open("/proc/self/maps") if ".so" in l}, sep="\\n")\''
    ).split()
    assert loaded
    assert [path for path in loaded if "/opt/provision/python/" not in path] == []


def test_the_second_run_changes_nothing(ansible: Ansible, agent: str) -> None:
    assert _play(ansible, image=agent).recap["coreos"]["changed"] == 0
    assert _play(ansible, "--check", image=agent).recap["coreos"]["changed"] == 0


def test_it_stays_in_use_without_a_named_image(ansible: Ansible) -> None:
    played = _play(ansible)
    assert played.recap["coreos"]["changed"] == 0
    assert f"python={_PYTHON}/bin/python3" in played.output


def test_one_that_does_not_run_there_leaves_the_former(
    ansible: Ansible, machine: SshHost, engine: Engine, agent: str, tmp_path: Path
) -> None:
    """As an image for another machine does."""
    broken = _another(engine, agent, f"RUN echo > {_PYTHON}/lib/libz.so.1", tmp_path)
    played = _play(ansible, image=broken, check=False)
    assert played.code != 0
    assert "does not run on this x86_64" in played.output
    assert machine.sh(f"{_PYTHON}/bin/python3 -c 'import zlib; print(1)'") == "1\n"
    assert _there(machine) == ["bin", "python"]


def test_another_image_takes_the_place_of_the_first(
    ansible: Ansible, machine: SshHost, engine: Engine, agent: str, tmp_path: Path
) -> None:
    newer = _another(engine, agent, "LABEL newer=yes", tmp_path)
    machine.sh(f"touch {_PYTHON}/of-the-first")
    assert _play(ansible, "--check", image=newer).changed_tasks() == _CHANGES
    assert _play(ansible, image=newer).changed_tasks() == _CHANGES
    assert machine.sh(f"ls {_PYTHON}").split() == ["bin", "lib", "share"]
    assert _play(ansible, image=newer).recap["coreos"]["changed"] == 0


def test_in_the_end_it_has_none_again(ansible: Ansible, machine: SshHost) -> None:
    checked = ansible.play(REMOVE, "--check")
    assert "Ensure provision's own Python is removed" in checked.changed_tasks()
    played = ansible.play(REMOVE)
    assert played.changed_tasks()[-1] == "Ensure provision's own Python is removed"
    assert machine.sh("ls -A /opt/") == ""
    again = ansible.play(REMOVE)
    assert again.recap["coreos"]["changed"] == 0
    assert "nothing that provision installed can be there" in again.output
