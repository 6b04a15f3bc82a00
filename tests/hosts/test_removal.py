"""After a removal nothing of ours is left in /run, /etc and systemd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hosts.ssh_hosts import DEBIAN_12, SshHost
from kit.playbooks import REMOVE, SITE, Ansible
from kit.probe import need_programs

pytestmark = pytest.mark.minutes(3)

_VENDOR = {
    "version": "1",
    "activation_flag": "OCI_MINE",
    "driver_feature": ["tool"],
    "inventory": {"tool": {"devices": ["null"]}},
}
# A driver by hand, whose CDI specification the units have written; and a unit that has failed.
_RUN = """
mkdir -p /etc/kubernetes/node-feature-discovery/features.d
systemctl restart provision-cdi.service
test -e /run/cdi/oci-decorator-mine.json
cd /etc/kubernetes/node-feature-discovery/features.d
echo x > provision
systemd-run --unit=provision-mine --wait false || :
"""
_LEFT = """
ls -A /run/cdi /run/provision /run/oci-decorator /var/lib/provision 2>/dev/null | grep -v ':$' || :
find /etc -name '*provision*'
systemctl list-units --all --plain --no-legend 'provision-*' || :
"""


def test_nothing_of_ours_is_left_and_a_second_removal_has_nothing_to_do(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    need_programs("podman", "ssh")
    variables = {
        **settings,
        "provision_host_engine": "none",
        "provision_driver_config": {"policy": {"build": "never"}},
        "provision_driver_require": "nothing",
        "provision_hook_links": "/usr/local/bin",
        "provision_hook_vendors": {"mine": _VENDOR},
    }
    with SshHost(DEBIAN_12) as machine:
        ansible = Ansible(tmp_path, [machine], variables)
        ansible.play(SITE)
        machine.sh(_RUN)
        checked = ansible.play(REMOVE, "--check")
        assert "/run/cdi/oci-decorator-mine.json" in machine.sh("ls /run/cdi/*")
        played = ansible.play(REMOVE)
        assert set(checked.changed_tasks()) & set(played.changed_tasks())
        assert machine.sh(_LEFT).split() == []
        assert machine.sh("ls /usr/local/bin /opt") == "/opt:\n\n/usr/local/bin:\n"
        assert ansible.play(REMOVE).changed_tasks() == []
