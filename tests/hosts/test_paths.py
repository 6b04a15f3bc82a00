"""Where the hook goes, on hosts whose /usr can be written to and on those where it can't."""

from __future__ import annotations

import json
import sys
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from kit.cache import REPOSITORY
from kit.playbooks import Ansible

if TYPE_CHECKING:
    from pathlib import Path

_PLAY = """\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        provision:
          has_read_only_usr: "{{ read_only }}"
          engines: [docker, podman]
        cacheable: true
    - ansible.builtin.include_role:
        name: oci_decorator.drivers.provision_hook
        tasks_from: check
        public: true
    - ansible.builtin.copy:
        content: "{{ {'bin': __provision_hook_bin, 'files': __provision_hook_files} | to_json }}"
        dest: "{{ folder }}/{{ inventory_hostname }}.json"
        mode: "0644"
"""


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the role decides for each kind of host."""
    folder: Path = tmp_path_factory.mktemp("paths")
    # Where Ansible looks for the templates of a play.
    templates = REPOSITORY / "ansible/roles/provision_hook/templates"
    (folder / "templates").symlink_to(templates)
    (folder / "play.yml").write_text(_PLAY)
    everywhere = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "folder": str(folder),
        "provision_hook_config": {"log-level": "debug", "runtimes": ["crun"]},
    }
    kinds = {"usual": {"read_only": False}, "immutable": {"read_only": True}}
    Ansible(folder, [], everywhere, stand_ins=kinds).play(folder / "play.yml")
    return {kind: json.loads((folder / f"{kind}.json").read_text()) for kind in kinds}


@pytest.mark.parametrize(
    ("kind", "program", "hooks"),
    [
        ("usual", "/usr/bin", "/usr/share/containers/oci/hooks.d"),
        ("immutable", "/opt/provision/bin", "/etc/containers/oci/hooks.d"),
    ],
)
def test_everything_lies_where_it_can_be_written(
    decided: dict[str, Any], kind: str, program: str, hooks: str
) -> None:
    files = decided[kind]["files"]
    assert decided[kind]["bin"] == program
    hook = json.loads(files[f"{hooks}/10-oci-decorator-precreate.json"]["content"])
    assert hook["hook"]["path"] == f"{program}/oci-decorator"
    drop_in = files["/etc/containers/containers.conf.d/50-oci-decorator.conf"]["content"]
    engine = tomllib.loads(drop_in)["engine"]
    assert engine["runtimes"] == {"oci-decorator": [f"{program}/oci-decorator-runtime"]}
    # podman looks into the usual folder by itself.
    assert hooks in engine.get("hooks_dir", ["/usr/share/containers/oci/hooks.d"])
    settings = tomllib.loads(files["/etc/oci-decorator/config.toml"]["content"])
    assert settings == {"log-level": "debug", "runtimes": ["crun"]}
