"""A host whose only engine is podman: its socket is listened to, now and after a reboot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hosts.machines import DEBIAN_12, Machine
from kit.playbooks import Ansible

if TYPE_CHECKING:
    from pathlib import Path

_PLAY = """\
- hosts: all
  roles:
    - oci_decorator.drivers.provision_host
"""
_IS_ON = "systemctl is-enabled podman.socket || :; systemctl is-active podman.socket || :"


@pytest.mark.parametrize(
    ("gone", "engine", "on"),
    [
        ("/usr/sbin/dockerd", "any", True),
        ("", "podman", True),
        ("", "any", False),
        ("/usr/sbin/dockerd", "none", False),
    ],
    ids=["podman only", "podman named", "with Docker", "only pulls"],
)
def test_podmans_socket_is_enabled_where_podman_builds(
    tmp_path: Path, gone: str, engine: str, *, on: bool
) -> None:
    playbook = tmp_path / "play.yml"
    playbook.write_text(_PLAY)
    with Machine(DEBIAN_12) as machine:
        machine.sh(f"rm -f {gone}")
        ansible = Ansible(tmp_path, [machine], {"provision_host_engine": engine})
        ansible.play(playbook)
        enabled, active = machine.sh(_IS_ON).split()
        # Debian's podman.service has it listen at this boot even where it is not enabled.
        assert enabled == ("enabled" if on else "disabled")
        if on:
            assert active == "active"
            assert ansible.play(playbook).changed_tasks() == []
