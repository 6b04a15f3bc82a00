"""Status files by Ansible and of folders; Ansible itself is made up."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from provision.errors import NotFoundError, ProvisionError
from provision.fleet import gather
from provision.fleet.gather import AnsibleOptions, hosts_of_folder, hosts_of_inventory
from provision.fleet.host_status import LARGEST_STATUS
from provision.run import Completed
from unit.fleet.documents import document

_ROW = {"kind": "ok", "rc": 0, "stdout": "", "message": ""}


class Ansible:
    """In place of the program.

    Attributes:
        names: What it finds in the inventory.
        rows: What it writes, by host.
        returncode: What it ends with.
        too_slow: Whether it is killed at its limit, after it has written.
        argv: What it was called with.
    """

    def __init__(self) -> None:
        self.names = ["a", "b"]
        self.rows: list[str] = []
        self.returncode = 0
        self.too_slow = False
        self.argv: list[Sequence[str | Path]] = []
        self.timeouts: list[float] = []

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        why: str,
        check: bool,
        env: dict[str, str],
        timeout: float,
    ) -> Completed:
        assert why
        assert not check
        self.argv.append(argv)
        self.timeouts.append(timeout)
        if "--list-hosts" in argv:
            listed = "".join(f"    {name}\n" for name in self.names)
            return Completed((), 0, f"  hosts ({len(self.names)}):\n{listed}", "[WARNING]: none")
        Path(env["PROVISION_ROWS"]).write_text("".join(f"{row}\n" for row in self.rows))
        if self.too_slow:
            raise ProvisionError("did not finish")
        return Completed((), self.returncode, "", "ERROR! of Ansible's")

    def answers(self, host: str, **changes: object) -> None:
        self.rows.append(json.dumps({**_ROW, "host": host, **changes}))


@pytest.fixture
def ansible(monkeypatch: pytest.MonkeyPatch) -> Ansible:
    found = Ansible()
    monkeypatch.setattr(gather, "run", found.run)
    monkeypatch.setattr(gather, "find_program", lambda _name: "/usr/bin/ansible")
    return found


def test_each_host_of_an_inventory_is_a_row(ansible: Ansible) -> None:
    ansible.names = ["a", "b", "c", "d"]
    ansible.answers("a", stdout=json.dumps(document()) + "\r\n")
    ansible.answers("b", kind="unreachable", rc=None, message="no route to host")
    ansible.answers("c", kind="failed", rc=66, message="non-zero return code")
    ansible.answers("d", kind="failed", rc=1, stdout="head: cannot open", message="")
    ansible.returncode = 4
    hosts = hosts_of_inventory(Path("hosts.yml"), AnsibleOptions(forks=3, timeout=7, limit="web*"))
    assert [host.state for host in hosts] == ["ready", "unreachable", "no-status", "unreadable"]
    assert hosts[1].reason == "no route to host"
    assert "head: cannot open" in (hosts[3].reason or "")
    words = ansible.argv[1]
    assert words[words.index("--forks") + 1] == "3"
    assert words[words.index("--timeout") + 1] == "7"
    assert "--limit=web*" in words
    # Two batches of three hosts at most.
    assert ansible.timeouts[1] == 60 + 2 * (7 + 20)


def test_a_host_that_keeps_ansible_waiting_is_unreachable_and_the_others_count(
    ansible: Ansible,
) -> None:
    ansible.answers("a", stdout=json.dumps(document()))
    ansible.rows.append('{"host": "b", "ki')
    ansible.too_slow = True
    ready, gone = hosts_of_inventory(Path("hosts.yml"))
    assert (ready.state, gone.state) == ("ready", "unreachable")
    assert "within" in (gone.reason or "")


def test_ansibles_own_failure_is_reported(ansible: Ansible) -> None:
    ansible.returncode = 250
    with pytest.raises(ProvisionError, match="could not query") as caught:
        hosts_of_inventory(Path("hosts.yml"))
    assert "of Ansible's" in (caught.value.details or "")


def test_an_inventory_without_hosts_is_named(ansible: Ansible) -> None:
    ansible.names = []
    with pytest.raises(NotFoundError, match=r"finds no host in 'hosts.yml'\.") as caught:
        hosts_of_inventory(Path("hosts.yml"))
    assert "WARNING" in (caught.value.details or "")
    with pytest.raises(NotFoundError, match="matches 'web'"):
        hosts_of_inventory(Path("hosts.yml"), AnsibleOptions(limit="web"))


def test_without_ansible_there_are_other_ways(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gather, "find_program", lambda _name: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(NotFoundError, match="'ansible' was not found") as caught:
        hosts_of_inventory(Path("hosts.yml"))
    assert "--metrics" in (caught.value.resolution or "")


def test_ansible_gets_its_settings_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_REMOTE_USER", "admin")
    monkeypatch.setenv("ANSIBLE_STDOUT_CALLBACK", "yaml")
    monkeypatch.setenv("SECRET_OF_OTHERS", "x")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    found = gather._environment()  # noqa: SLF001 - what is passed on is a promise
    assert found["ANSIBLE_REMOTE_USER"] == "admin"
    assert found["SSH_AUTH_SOCK"] == "/run/agent"
    assert found["ANSIBLE_STDOUT_CALLBACK"] == "provision_rows"
    assert "SECRET_OF_OTHERS" not in found


def test_a_folder_has_a_file_a_host(tmp_path: Path) -> None:
    (tmp_path / "web1.json").write_text(json.dumps(document()))
    fetched = tmp_path / "web2/run/provision/status.json"
    fetched.parent.mkdir(parents=True)
    fetched.write_text("{")
    (tmp_path / "web3.json").write_bytes(b" " * (LARGEST_STATUS + 9))
    os.mkfifo(tmp_path / "web4.json")
    assert "larger than" in (hosts_of_folder(tmp_path)[1].reason or "")
    assert [(host.name, host.state) for host in hosts_of_folder(tmp_path)] == [
        ("web1", "ready"),
        ("web3", "unreadable"),
        ("web2", "unreadable"),
    ]


def test_an_empty_folder_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no status of a host") as caught:
        hosts_of_folder(tmp_path)
    assert "-m fetch" in (caught.value.resolution or "")
