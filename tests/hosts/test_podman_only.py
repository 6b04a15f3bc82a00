"""A host whose only engine is podman: its socket is listened to, now and after a reboot.

With Docker it is not: tests/hosts/test_one_host.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.ssh_hosts import DEBIAN_12, SshHost
from kit.playbooks import Ansible

_PLAY = """\
- hosts: all
  roles:
    - oci_decorator.drivers.provision_host
"""
_IS_ENABLED = "systemctl is-enabled podman.socket || :"


@pytest.mark.nightly
@pytest.mark.usefixtures("engine")
def test_podmans_socket_is_enabled_where_podman_builds(tmp_path: Path) -> None:
    playbook = tmp_path / "play.yml"
    playbook.write_text(_PLAY)
    with SshHost(DEBIAN_12) as machine:
        machine.sh("rm -f /usr/sbin/dockerd")
        # Nothing is built on a host that only pulls.
        ansible = Ansible(tmp_path, [machine], {"provision_host_engine": "none"})
        ansible.play(playbook)
        assert machine.sh(_IS_ENABLED).strip() == "disabled"
        ansible = Ansible(tmp_path, [machine], {})
        ansible.play(playbook)
        assert machine.sh(_IS_ENABLED).strip() == "enabled"
        assert machine.sh("systemctl is-active podman.socket").strip() == "active"
        assert ansible.play(playbook).changed_tasks() == []
