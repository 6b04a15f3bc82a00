"""The collection as Galaxy has it, without any program, on a host with a repository of packages.

The tests are steps of one scenario, in their order.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.ssh_hosts import DEBIAN_12, SshHost
from kit.engine import Engine
from kit.playbooks import COLLECTION, Ansible, Played
from kit.probe import need_programs
from kit.process import run
from kit.released import shipping

# Minutes: a release is made.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(3)]

_GALAXY = Path(sys.executable).parent / "ansible-galaxy"
_REPOSITORY = "/srv/repository"
_PACKAGE = {"provision_driver_install": "package"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the collection was installed into, as `ansible-galaxy` builds it."""
    folder = tmp_path_factory.mktemp("galaxy")
    copy = folder / "drivers"
    shutil.copytree(COLLECTION, copy, ignore=shutil.ignore_patterns("__pycache__", ".ansible"))
    env = {"ANSIBLE_HOME": str(folder / "home")}
    run([_GALAXY, "collection", "build", "--output-path", folder, copy], cwd=folder, env=env)
    (packed,) = folder.glob("oci_decorator-drivers-*.tar.gz")
    there = folder / "there"
    words: list[str | Path] = ["collection", "install", "--offline", "-p", there, packed]
    run([_GALAXY, *words], cwd=folder, env=env)
    return there


@pytest.fixture(scope="module")
def machine(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHost]:
    """A host that knows a repository with the packages of a release."""
    del engine  # for what it checks of this machine
    need_programs("dpkg-deb", "dpkg-scanpackages", "rpmbuild", "git")
    folder = tmp_path_factory.mktemp("repository")
    shipping("--output", folder / "dist")
    listed = run(["dpkg-scanpackages", "--multiversion", "."], cwd=folder / "dist").stdout
    (folder / "dist/Packages").write_text(listed)
    with SshHost(DEBIAN_12, binds={folder / "dist": _REPOSITORY}) as machine:
        line = f"deb [trusted=yes] file:{_REPOSITORY} ./\n"
        machine.write("/etc/apt/sources.list.d/repository.list", line)
        machine.sh("apt-get --quiet update")
        yield machine


@pytest.fixture(scope="module")
def ansible(machine: SshHost, installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Ansible:
    return Ansible(
        tmp_path_factory.mktemp("controller"), [machine], _PACKAGE, collections=installed
    )


def _play(ansible: Ansible, name: str, *, check: bool = True, **variables: object) -> Played:
    playbooks = ansible.collections / "ansible_collections/oci_decorator/drivers/playbooks"
    return ansible.play(playbooks / f"{name}.yml", check=check, **variables)


def test_what_is_bundled_elsewhere_is_missed_before_a_host_is_touched(ansible: Ansible) -> None:
    played = _play(ansible, "site", check=False, provision_driver_install="bundled")
    assert played.code != 0
    for what in ("no provision to install", "no program oci-decorator"):
        assert f"There is {what}" in played.output
    assert "provision_driver_install: package" in played.output
    assert played.changed_tasks() == []


def test_packages_of_the_hosts_repository_are_installed(ansible: Ansible, machine: SshHost) -> None:
    _play(ansible, "site")
    owners = machine.sh("dpkg --search /usr/bin/provision /usr/bin/oci-decorator")
    assert owners.split() == [
        *("provision:", "/usr/bin/provision", "oci-decorator:", "/usr/bin/oci-decorator")
    ]
    assert machine.sh("provision --version").startswith("provision ")
    assert machine.sh("systemctl is-enabled provision-boot.service").strip() == "enabled"
    # The package's units are the only ones, and the role brought no environment.
    assert machine.sh("ls -A /opt").strip() == ""
    assert machine.sh("find /etc/systemd/system -name 'provision-*' -type f") == ""
    assert machine.read("/etc/provision/provision.toml").startswith("# Written by Ansible")
    assert _play(ansible, "site").changed_tasks() == []


def test_remove_takes_the_packages_too(ansible: Ansible, machine: SshHost) -> None:
    _play(ansible, "remove")
    gone = machine.sh(
        "command -v provision oci-decorator || true; ls -A /etc/provision 2>&1 || true"
    )
    assert "/usr/bin" not in gone
    assert "provision.toml" not in gone
    assert _play(ansible, "remove").recap["host"]["changed"] == 0
