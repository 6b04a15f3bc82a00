"""Packages on a host whose list of packages is empty, as in images of clouds."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.ssh_hosts import DEBIAN_12, SshHost
from kit.playbooks import Ansible

_PLAY = """\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: oci_decorator.drivers.provision_host
        tasks_from: packages
      vars:
        __provision_host_packages: [hello]
        __provision_host_packages_state: "{{ state | default('present') }}"
"""
_EMPTY = "rm -rf /var/lib/apt/lists; mkdir -p /var/lib/apt/lists/partial"


@pytest.mark.nightly
@pytest.mark.usefixtures("engine")
def test_packages_come_with_a_fresh_list_and_need_none_where_they_are_there(
    tmp_path: Path,
) -> None:
    playbook = tmp_path / "play.yml"
    playbook.write_text(_PLAY)
    with SshHost(DEBIAN_12) as machine:
        machine.sh(f"{_EMPTY}; dpkg --purge python3-apt 2>/dev/null || :")
        ansible = Ansible(tmp_path, [machine], {})
        checked = ansible.play(playbook, "--check")
        assert "cannot say without changes whether it has hello" in checked.output
        ansible.play(playbook)
        assert "hello" in machine.sh("dpkg-query -W hello")
        machine.sh(_EMPTY)
        again = ansible.play(playbook)
        assert (again.recap["host"]["rescued"], again.changed_tasks()) == (0, [])
        assert machine.sh("ls /var/lib/apt/lists").split() == ["partial"]
        machine.sh("dpkg --purge python3-apt")
        gone = ansible.play(playbook, "--check", "-e", "state=absent")
        assert "cannot say without changes whether it has hello" in gone.output
        ansible.play(playbook, "-e", "state=absent")
        assert "hello" not in machine.sh("dpkg-query -W")
