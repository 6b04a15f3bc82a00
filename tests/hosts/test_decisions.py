"""What roles decide for a host, by its distro and its layout. Nothing is installed.

Distros are real os-release files; Ansible's own names for them are what it makes of these files.
"""

from __future__ import annotations

import json
import platform
import struct
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.facts.system.distribution import Distribution

from kit.cache import REPOSITORY
from kit.files import write
from kit.host_tree import HostTree
from kit.playbooks import COLLECTION, Ansible
from kit.product import Provision

_OS_RELEASES = REPOSITORY / "tests/data/os-release"
_WRITE = """\
    - ansible.builtin.copy:
        content: "{{ found | to_json }}"
        dest: "{{ folder }}/{{ inventory_hostname }}.json"
        mode: "0644"
      vars:
        found:
"""
_PACKAGES = f"""\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        distribution: "{{{{ given.distribution }}}}"
        distribution_version: "{{{{ given.version }}}}"
        distribution_major_version: "{{{{ given.version.split('.')[0] }}}}"
        os_family: "{{{{ given.family }}}}"
        kernel: "{{{{ given.kernel }}}}"
        cacheable: true
    - ansible.builtin.include_role:
        name: oci_decorator.drivers.provision_host
        tasks_from: set_vars
{_WRITE}
          python: "{{{{ __provision_host_python_packages }}}}"
          headers: "{{{{ __provision_host_header_packages }}}}"
          engines: "{{{{ __provision_host_engine_packages }}}}"
"""
_PATHS = f"""\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        provision:
          has_read_only_usr: "{{{{ read_only | default(false) }}}}"
          machine: x86_64
          has_kubelet: "{{{{ kubelet | default(false) }}}}"
          own_containerd: "{{{{ own | default(none) }}}}"
          engines: "{{{{ there | default(['docker', 'containerd', 'podman']) }}}}"
        cacheable: true
    - ansible.builtin.include_role:
        name: oci_decorator.drivers.provision_hook
        tasks_from: check
        public: true
{_WRITE}
          bin: "{{{{ __provision_hook_bin }}}}"
          files: "{{{{ __provision_hook_files }}}}"
          engines: "{{{{ __provision_hook_engines }}}}"
"""
# The roles' own batches, without what they install.
_BATCHES = """\
- hosts: all
  gather_facts: false
  serial: 1
  module_defaults:
    oci_decorator.drivers.provision_apply:
      program: "{{ program }}"
    oci_decorator.drivers.provision_status:
      program: "{{ program }}"
  tasks:
    - ansible.builtin.include_role:
        name: oci_decorator.drivers.provision_driver
        tasks_from: "{{ item }}"
      loop: [apply, settle]
"""
# What a cache says of the host is of another day: of another machine, kernel and engine.
_STALE = """\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        kernel: 4.19.0-1-old
        distribution: Debian
        pkg_mgr: apt
        python: {version_info: [3, 8]}
        provision: {machine: s390x, has_read_only_usr: false, has_kubelet: false, engines: [gone]}
        cacheable: true
    - ansible.builtin.include_role:
        name: oci_decorator.drivers.provision_host
        tasks_from: main
      vars: {provision_host_engine: none}
"""
_FOREIGN = f"""\
{_STALE}
    - ansible.builtin.assert:
        that:
          - ansible_facts.kernel == {platform.release()!r}
          - "'gone' not in ansible_facts.provision.engines"
    - ansible.builtin.set_fact:
        provision: {{machine: s390x, has_read_only_usr: false, has_kubelet: false, engines: []}}
        cacheable: true
    - ansible.builtin.include_role:
        name: oci_decorator.drivers.provision_hook
"""
# A host that lacks only a reboot.
_SETTLE = """\
- hosts: all
  gather_facts: false
  CONNECTION
  tasks:
    - ansible.builtin.include_role:
        name: oci_decorator.drivers.provision_driver
        tasks_from: settle
      vars:
        provision_driver_reboot_required: true
        provision_driver_reboot_ok: true
        provision_driver_require: nothing
        __provision_driver_status: {shortcomings: []}
    - ansible.builtin.debug: {msg: goes on}
"""
# This machine's own Python is the hosts'.
_LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
_EL = "kernel-devel-"
# The os-release file; Ansible's distribution and family; a kernel; packages of Python, headers and
# Docker.
_DISTROS = [
    ("debian_12", "Debian", "Debian", "6.1.0-47-amd64", "python3", "linux-headers-", "docker.io"),
    (
        "ubuntu_24.04",
        "Ubuntu",
        "Debian",
        "6.8.0-45-generic",
        "python3",
        "linux-headers-",
        "docker.io",
    ),
    ("rhel_9.4", "RedHat", "RedHat", "5.14.0-427.el9.x86_64", "python3.12", _EL, None),
    ("rocky_9.6", "Rocky", "RedHat", "5.14.0-570.el9.x86_64", "python3.12", _EL, None),
    (
        "fedora_44_workstation",
        "Fedora",
        "RedHat",
        "6.19.2-300.fc44.x86_64",
        "python3",
        _EL,
        "moby-engine",
    ),
    ("amzn_2023", "Amazon", "RedHat", "6.1.141-155.amzn2023.x86_64", "python3.11", _EL, "docker"),
    (
        "opensuse-leap_15.5",
        "openSUSE Leap",
        "Suse",
        "5.14.21-150500.55.88-default",
        "python311",
        "kernel-default-devel=",
        "docker",
    ),
    (
        "opensuse-tumbleweed_20240524",
        "openSUSE Tumbleweed",
        "Suse",
        "6.9.1-1-default",
        "python311",
        "kernel-default-devel=",
        "docker",
    ),
]


def _decided(folder: Path, play: str, hosts: dict[str, Any], **variables: object) -> dict[str, Any]:
    """What the role decides for each host, in one run on stand-ins."""
    (folder / "play.yml").write_text(play)
    everywhere = {**_LOCAL, "folder": str(folder), **variables}
    Ansible(folder, [], everywhere, stand_ins=hosts).play(folder / "play.yml")
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in hosts}


def _version(file: str) -> str:
    lines = (_OS_RELEASES / file).read_text().splitlines()
    return next(line.replace('"', "")[11:] for line in lines if line.startswith("VERSION_ID="))


def test_each_distro_gets_its_own_packages_and_an_unknown_one_none(tmp_path: Path) -> None:
    hosts = {
        file: {
            "given": {
                "distribution": name,
                "version": _version(file),
                "family": family,
                "kernel": kernel,
            }
        }
        for file, name, family, kernel, *_ in _DISTROS
    }
    hosts["another"] = {
        "given": {**hosts["debian_12"]["given"], "distribution": "X", "family": "X"}
    }
    decided = _decided(tmp_path, _PACKAGES, hosts)
    for file, name, family, kernel, python, header, docker in _DISTROS:
        assert Distribution.OS_FAMILY[name] == family
        packages = decided[file]
        assert packages["python"][0] == python, file
        release = kernel.removesuffix("-default") if family == "Suse" else kernel
        assert packages["headers"] == [f"{header}{release}"], file
        assert packages["engines"]["docker"] == ([docker] if docker else []), file
    assert (decided["another"]["python"], decided["another"]["headers"]) == ([], [])


def test_every_file_of_variables_has_the_same_names() -> None:
    # main.yml is the role's own, whatever the distro.
    folder = COLLECTION / "roles/provision_host/vars"
    files = [path for path in sorted(folder.glob("*.yml")) if path.name != "main.yml"]
    assert len({frozenset(yaml.safe_load(path.read_text())) for path in files}) == 1


_USR = ("/usr/bin", "/usr/share/containers/oci/hooks.d")
_OPT = ("/opt/provision/bin", "/etc/containers/oci/hooks.d")
# What a host is like, where the program and podman's hooks go, and which engines are configured:
# Docker's own containerd is Docker's business.
_KINDS: list[tuple[dict[str, Any], tuple[str, str], list[str]]] = [
    ({}, _USR, ["docker", "podman"]),
    ({"read_only": True}, _OPT, ["docker", "podman"]),
    ({"kubelet": True}, _USR, ["docker", "containerd", "podman"]),
    ({"provision_hook_engines": ["containerd", "podman"]}, _USR, ["containerd", "podman"]),
]


def test_everything_lies_where_it_can_be_written(tmp_path: Path) -> None:
    # Where Ansible looks for the templates of a play.
    (tmp_path / "templates").symlink_to(COLLECTION / "roles/provision_hook/templates")
    config = {"log-level": "debug", "runtimes": ["crun"]}
    hosts = {str(number): kind for number, (kind, *_) in enumerate(_KINDS)}
    decided = _decided(tmp_path, _PATHS, hosts, provision_hook_config=config)
    for found, (_, (program, hooks), engines) in zip(decided.values(), _KINDS, strict=True):
        assert (found["bin"], found["engines"]) == (program, engines)
        files = found["files"]
        hook = json.loads(files[f"{hooks}/10-oci-decorator-precreate.json"]["content"])
        assert hook["hook"]["path"] == f"{program}/oci-decorator"
        drop_in = files["/etc/containers/containers.conf.d/50-oci-decorator.conf"]["content"]
        engine = tomllib.loads(drop_in)["engine"]
        assert engine["runtimes"] == {"oci-decorator": [f"{program}/oci-decorator-runtime"]}
        # podman looks into the usual folder by itself.
        assert hooks in engine.get("hooks_dir", [_USR[1]])
        settings = tomllib.loads(files["/etc/oci-decorator/config.toml"]["content"])
        assert settings == config


_WAYS = """\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        provision:
          has_read_only_usr: false
          machine: x86_64
          has_kubelet: false
          engines: "{{ there }}"
          own_containerd: "{{ own }}"
        cacheable: true
    - ansible.builtin.include_role:
        name: oci_decorator.drivers.provision_hook
        tasks_from: ways
"""


def test_a_run_that_configures_nothing_is_a_failure_unless_that_was_asked_for(
    tmp_path: Path,
) -> None:
    links = {"provision_hook_links": "/usr/bin"}
    nothing: dict[str, Any] = {"provision_hook_engines": []}
    kinds: dict[str, tuple[dict[str, Any], bool]] = {
        "bare": ({"there": [], "own": None}, False),
        "k3s": ({"there": [], "own": "k3s"}, False),
        "rke2-links": ({"there": [], "own": "rke2", **links}, True),
        "crio": ({"there": ["crio"], "own": None}, True),
        "none": ({"there": [], "own": None, **nothing}, True),
    }
    hosts = {name: given for name, (given, _) in kinds.items()}
    (tmp_path / "play.yml").write_text(_WAYS)
    ansible = Ansible(tmp_path, [], _LOCAL, stand_ins=hosts)
    recap = ansible.play(tmp_path / "play.yml", check=False).recap
    assert {name: found["failed"] == 0 for name, found in recap.items()} == {
        name: works for name, (_, works) in kinds.items()
    }


def test_a_program_for_another_machine_is_refused_whatever_a_cache_says(tmp_path: Path) -> None:
    program = tmp_path / "oci-decorator"
    # The head of a program for s390x: elf(5).
    program.write_bytes(struct.pack("<4s14xH", b"\x7fELF", 22))
    (tmp_path / "play.yml").write_text(_FOREIGN)
    variables = {**_LOCAL, "provision_hook_program": str(program)}
    ansible = Ansible(tmp_path, [], variables, stand_ins={"far": {}})
    played = ansible.play(tmp_path / "play.yml", "--check", check=False)
    assert played.code != 0
    assert f"far runs on {platform.machine()}" in played.output
    assert played.changed_tasks() == []


@pytest.mark.parametrize(
    ("keyword", "variables"),
    [("", {"ansible_connection": "local"}), ("connection: local", {})],
)
def test_a_host_that_runs_the_playbook_is_not_rebooted_by_it(
    tmp_path: Path, keyword: str, variables: dict[str, str]
) -> None:
    (tmp_path / "play.yml").write_text(_SETTLE.replace("CONNECTION", keyword))
    python = {"ansible_python_interpreter": sys.executable, **variables}
    played = Ansible(tmp_path, [], python, stand_ins={"here": {}}).play(tmp_path / "play.yml")
    assert "here needs a reboot" in played.output
    assert "goes on" in played.output


@pytest.mark.minutes(2)
def test_a_host_whose_check_fails_keeps_the_version_from_the_rest(tmp_path: Path) -> None:
    hosts = {name: HostTree.make(tmp_path / name) for name in ("h1", "h2", "h3", "h4", "h5")}
    provision = {name: Provision(environment=host.environment) for name, host in hosts.items()}
    for name, host in hosts.items():
        host.offer("1.2")
        host.want()
        provision[name]("apply", "--root", host.root)
        host.offer("2.0", check="exit 1" if name == "h3" else "exit 0")
        host.want(version="2.0")
        given = "".join(f"export {key}='{value}'\n" for key, value in host.environment.items())
        words = f'exec {provision[name].program} "$@" --root {host.root}\n'
        write(tmp_path / name / "provision", f"#!/bin/sh\n{given}{words}", 0o755)
    (tmp_path / "play.yml").write_text(_BATCHES)
    programs = {name: {"program": str(tmp_path / name / "provision")} for name in hosts}
    ansible = Ansible(tmp_path, [], _LOCAL, stand_ins=programs)
    played = ansible.play(tmp_path / "play.yml", check=False)
    assert played.code != 0
    assert set(played.recap) == {"h1", "h2", "h3"}, played.output
    assert {name for name, found in played.recap.items() if found["failed"]} == {"h3"}
    versions = {}
    for name, host in hosts.items():
        status = provision[name].json("status", "--root", host.root)
        ((slot,),) = (driver["kernels"] for driver in status["drivers"])
        assert slot["is_ready"], slot
        versions[name] = slot["version"]
    assert versions == {"h1": "2.0", "h2": "2.0", "h3": "1.2", "h4": "1.2", "h5": "1.2"}
