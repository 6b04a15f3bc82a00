"""A host without Python, whose /opt is a link: how it gets one, a newer one, and none again.

The tests are steps of one scenario, in their order.
"""

from __future__ import annotations

import gzip
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from hosts.ssh_hosts import DEBIAN_12, SshHost
from kit.cache import REPOSITORY
from kit.host_python import host_python
from kit.playbooks import REMOVE, SITE, Ansible, Played
from kit.process import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.engine import Engine

# A Python for hosts is compiled. With each change, tests/unit/ansible/test_modules.py runs the
# scripts for hosts without one.
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
def machine(engine: Engine) -> Iterator[SshHost]:
    """A host as Fedora CoreOS lays it out; its Python is gone."""
    del engine  # for what it checks of this machine
    with SshHost(DEBIAN_12, name="coreos") as machine:
        machine.sh(
            "rm -rf /usr/bin/python3* /usr/lib/python3* /opt;"
            " mkdir -p /var/opt; ln -s var/opt /opt; touch /run/ostree-booted"
        )
        machine.write("/etc/os-release", _OS_RELEASE.read_text())
        yield machine


@pytest.fixture(scope="module")
def archive() -> Path:
    return host_python()


@pytest.fixture(scope="module")
def ansible(machine: SshHost, tmp_path_factory: pytest.TempPathFactory) -> Ansible:
    folder = tmp_path_factory.mktemp("coreos")
    (folder / "play.yml").write_text(_PLAY)
    return Ansible(folder, [machine], {})


def _play(
    ansible: Ansible,
    *words: str,
    archive: Path | str | None = None,
    sha256: str = "",
    check: bool = True,
) -> Played:
    playbook = ansible.folder / "play.yml"
    return ansible.play(playbook, *words, check=check, **_given(archive, sha256))


def _given(archive: Path | str | None, sha256: str = "") -> dict[str, Any]:
    given = {"provision_host_python_archive": str(archive)} if archive else {}
    return given | {"provision_host_python_archive_sha256": sha256}


def _draft(machine: SshHost) -> str:
    return machine.sh("ls -A /opt/provision /root/.ansible/tmp 2>/dev/null || true")


def test_without_an_archive_the_way_out_is_named(ansible: Ansible) -> None:
    played = _play(ansible, check=False)
    assert played.code != 0
    assert "provision_host_python_archive" in played.output
    assert "provision export host-python" in played.output


def test_an_archive_that_is_not_there_is_named(ansible: Ansible) -> None:
    played = _play(ansible, archive="/nowhere/python.tar.gz", check=False)
    assert played.code != 0
    assert "The archive '/nowhere/python.tar.gz' (provision_host_python_archive)" in played.output


def test_an_archive_with_another_checksum_is_refused(
    ansible: Ansible, machine: SshHost, archive: Path
) -> None:
    played = _play(ansible, archive=archive, sha256="0" * 64, check=False)
    assert played.code != 0
    assert "provision_host_python_archive_sha256" in played.output
    assert machine.sh("ls /opt") == ""


def test_a_check_of_the_bare_host_reports_and_changes_nothing(
    ansible: Ansible, machine: SshHost, archive: Path
) -> None:
    played = ansible.play(SITE, "--check", "--diff", **_given(archive))
    assert played.changed_tasks() == _CHANGES
    assert "coreos has no Python: the remaining changes can be shown" in played.output
    assert machine.sh("ls /opt") == ""


def test_it_gets_ours_and_modules_run_with_it(
    ansible: Ansible, machine: SshHost, archive: Path
) -> None:
    played = _play(ansible, archive=archive)
    assert played.changed_tasks() == _CHANGES
    assert f"python={_PYTHON}/bin/python3" in played.output
    # The link is still one.
    assert "link=var/opt" in played.output
    assert machine.sh(f"{_PYTHON}/bin/python3 -c 'print(1)'") == "1\n"
    assert _draft(machine).split() == ["/opt/provision:", "python", "/root/.ansible/tmp:"]
    modes = machine.sh(f"find {_PYTHON} ! -type l \\( -perm /022 -o ! -uid 0 -o ! -gid 0 \\)")
    assert modes == ""


def test_the_second_run_changes_nothing(ansible: Ansible, archive: Path) -> None:
    assert _play(ansible, archive=archive).recap["coreos"]["changed"] == 0
    assert _play(ansible, "--check", archive=archive).recap["coreos"]["changed"] == 0


def test_it_stays_in_use_without_a_named_archive(ansible: Ansible) -> None:
    played = _play(ansible)
    assert played.recap["coreos"]["changed"] == 0
    assert f"python={_PYTHON}/bin/python3" in played.output


def test_one_that_does_not_run_there_leaves_the_former(
    ansible: Ansible, machine: SshHost, archive: Path, tmp_path: Path
) -> None:
    """As an archive for another machine does."""
    broken = tmp_path / "broken.tar.gz"
    run(["tar", "-C", tmp_path, "-xzf", archive])
    program = tmp_path / "opt/provision/python/lib/libz.so.1"
    program.write_bytes(b"not a library")
    run(["tar", "-C", tmp_path, "-I", "gzip -1", "-cf", broken, "opt/provision/python"])
    played = _play(ansible, archive=broken, check=False)
    assert played.code != 0
    assert "it does not run on this x86_64" in played.output
    assert machine.sh(f"{_PYTHON}/bin/python3 -c 'import zlib; print(1)'") == "1\n"
    assert _draft(machine).split() == ["/opt/provision:", "python", "/root/.ansible/tmp:"]


def test_another_archive_takes_the_place_of_the_first(
    ansible: Ansible, machine: SshHost, archive: Path, tmp_path: Path
) -> None:
    newer = tmp_path / "newer.tar.gz"
    with gzip.open(archive) as source, gzip.open(newer, "wb", 1) as target:
        shutil.copyfileobj(source, target)
    machine.sh(f"touch {_PYTHON}/of-the-first")
    assert _play(ansible, "--check", archive=newer).changed_tasks() == _CHANGES
    assert _play(ansible, archive=newer).changed_tasks() == _CHANGES
    assert machine.sh(f"ls {_PYTHON}").split() == ["bin", "lib", "provision-python.json", "share"]
    assert _play(ansible, archive=newer).recap["coreos"]["changed"] == 0


def test_in_the_end_it_has_none_again(ansible: Ansible, machine: SshHost) -> None:
    checked = ansible.play(REMOVE, "--check")
    assert "Ensure provision's own Python is removed" in checked.changed_tasks()
    played = ansible.play(REMOVE)
    assert played.changed_tasks()[-1] == "Ensure provision's own Python is removed"
    assert machine.sh("ls -A /opt/") == ""
    again = ansible.play(REMOVE)
    assert again.recap["coreos"]["changed"] == 0
    assert "nothing that provision installed can be there" in again.output
