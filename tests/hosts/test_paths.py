"""Where the hook goes, on hosts whose /usr can be written to and on those where it can't."""

from __future__ import annotations

import json
import struct
import sys
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from kit.playbooks import COLLECTION, Ansible

if TYPE_CHECKING:
    from pathlib import Path

_PLAY = """\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        provision:
          has_read_only_usr: "{{ read_only }}"
          machine: x86_64
          has_kubelet: "{{ kubelet | default(false) }}"
          engines: [docker, containerd, podman]
        cacheable: true
    - ansible.builtin.include_role:
        name: oci_decorator.drivers.provision_hook
        tasks_from: check
        public: true
    - ansible.builtin.copy:
        content: "{{ found | to_json }}"
        dest: "{{ folder }}/{{ inventory_hostname }}.json"
        mode: "0644"
      vars:
        found:
          bin: "{{ __provision_hook_bin }}"
          files: "{{ __provision_hook_files }}"
          engines: "{{ __provision_hook_engines }}"
"""


# A host of another machine than the program is for.
_FOREIGN = """\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        provision: {machine: s390x, has_read_only_usr: false, has_kubelet: false, engines: []}
        cacheable: true
    - ansible.builtin.include_role:
        name: oci_decorator.drivers.provision_hook
"""


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the role decides for each kind of host."""
    folder: Path = tmp_path_factory.mktemp("paths")
    # Where Ansible looks for the templates of a play.
    templates = COLLECTION / "roles/provision_hook/templates"
    (folder / "templates").symlink_to(templates)
    (folder / "play.yml").write_text(_PLAY)
    everywhere = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "folder": str(folder),
        "provision_hook_config": {"log-level": "debug", "runtimes": ["crun"]},
    }
    kinds = {
        "usual": {"read_only": False},
        "immutable": {"read_only": True},
        "node": {"read_only": False, "kubelet": True},
        "named": {"read_only": False, "provision_hook_engines": ["containerd"]},
    }
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


@pytest.mark.parametrize(
    ("kind", "engines"),
    [
        # Docker's own containerd is Docker's business.
        ("usual", ["docker", "podman"]),
        ("node", ["docker", "containerd", "podman"]),
        ("named", ["containerd"]),
    ],
)
def test_the_containerd_of_a_docker_is_left_as_it_is(
    decided: dict[str, Any], kind: str, engines: list[str]
) -> None:
    assert decided[kind]["engines"] == engines


def test_a_program_for_another_machine_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    program = tmp_path / "oci-decorator"
    # The head of a program for x86_64: elf(5).
    program.write_bytes(struct.pack("<4s14xH", b"\x7fELF", 62))
    (tmp_path / "play.yml").write_text(_FOREIGN)
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "provision_hook_program": str(program),
    }
    ansible = Ansible(tmp_path, [], variables, stand_ins={"far": {}})
    played = ansible.play(tmp_path / "play.yml", "--check", check=False)
    assert played.code != 0
    assert (
        "far runs on s390x, and the controller has oci-decorator only for x86_64" in played.output
    )
    assert played.changed_tasks() == []
