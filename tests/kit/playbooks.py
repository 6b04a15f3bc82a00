"""Runs playbooks of the collection as a user does, from the clone, and reads how they ended."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from kit.cache import REPOSITORY, cache_dir, cached
from kit.process import run

COLLECTION = REPOSITORY / "ansible/ansible_collections/oci_decorator/drivers"
SITE = REPOSITORY / "site.yml"
REMOVE = COLLECTION / "playbooks/remove.yml"
# The collection's releases of ansible-core that run with Python 3.11; the newest is in .venv.
OLDER_CORES = ("2.17", "2.18")
# For hosts that come and go at the same addresses.
SSH_OPTIONS = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
_PROGRAMS = Path(sys.executable).parent
# A task may have been done elsewhere: `changed: [host -> localhost]`.
_CHANGED = re.compile(r"changed: \[([^] ]+)")
_RECAP = re.compile(r"^(\S+)\s+: (ok=.*)$", re.MULTILINE)


def older_core(version: str) -> Path:
    """The environment of an older ansible-core; its scripts name the folder that it was made in."""

    def make(draft: Path) -> None:
        run([sys.executable, "-m", "venv", draft])
        run([draft / "bin/pip", "install", "--quiet", f"ansible-core=={version}.*"])

    return cached(f"ansible-core-{version}", make)


@dataclass(frozen=True, slots=True)
class Played:
    """How a run of a playbook ended."""

    # Exit status of ansible-playbook.
    code: int
    output: str
    # By host, how many tasks were ok, changed, failed, ….
    recap: Mapping[str, Mapping[str, int]]

    def changed_tasks(self, host: str | None = None) -> list[str]:
        """The names of the tasks that changed something, on any host or on that one."""
        found: list[str] = []
        name = ""
        for line in self.output.splitlines():
            if line.startswith(("TASK [", "RUNNING HANDLER [")):
                name = line.partition("[")[2].rpartition("]")[0].rpartition(" : ")[2]
            elif (changed := _CHANGED.match(line)) and host in {None, changed[1]}:
                found.append(name)
        return found


def ssh_variables(
    folder: Path, key: Path, port: int, options: Sequence[str] = SSH_OPTIONS
) -> dict[str, object]:
    """What an inventory says of a host behind a port of this machine."""
    return {
        "ansible_host": "127.0.0.1",
        "ansible_port": port,
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(key),
        "ansible_ssh_common_args": " ".join(options),
        # Without it ten seconds, in which a busy machine, or an emulated one, may not answer.
        "ansible_ssh_timeout": 120,
        # Hosts come and go at the same ports: no connection is kept for the next one.
        "ansible_control_path_dir": str(folder / "cp"),
    }


class Reachable(Protocol):
    """A host that an inventory can name."""

    @property
    def name(self) -> str:
        """Its name there."""

    def variables(self) -> dict[str, object]:
        """What the inventory says of it."""


@dataclass(frozen=True, slots=True)
class Ansible:
    """A controller with an inventory."""

    folder: Path
    machines: Sequence[Reachable]
    # What the inventory says of all of them.
    variables: Mapping[str, Any]
    # Further hosts, and what the inventory says of each.
    stand_ins: Mapping[str, Any] = field(default_factory=dict)
    # The folder in which Ansible looks for the collection.
    collections: Path = REPOSITORY / "ansible"

    def play(self, playbook: Path, *words: str, check: bool = True, **variables: object) -> Played:
        """Run a playbook."""
        done = run(self.words(playbook, *words, **variables), env=self.environment(), check=check)
        recap = {
            host: {name: int(n) for name, n in (part.split("=") for part in counts.split())}
            for host, counts in _RECAP.findall(done.stdout)
        }
        return Played(done.returncode, done.output, recap)

    def words(self, playbook: Path, *words: str, **variables: object) -> list[str | Path]:
        """The command line of a run."""
        inventory = self.folder / "inventory.yml"
        machines = {machine.name: machine.variables() for machine in self.machines}
        hosts = {**machines, **self.stand_ins}
        everywhere = {**self.variables, **variables}
        inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": everywhere}}))
        return [_PROGRAMS / "ansible-playbook", "-i", inventory, playbook, *words]

    def environment(self) -> dict[str, str]:
        """Variables that keep the caller's own Ansible configuration out of it."""
        settings = self.folder / "ansible.cfg"
        settings.touch()
        return {
            "ANSIBLE_CONFIG": str(settings),
            "ANSIBLE_HOME": str(self.folder / "home"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_LOCALHOST_WARNING": "0",
            # For playbooks that lie elsewhere.
            "ANSIBLE_COLLECTIONS_PATH": str(self.collections),
            # Archives for hosts are kept between runs of the tests too.
            "XDG_CACHE_HOME": str(cache_dir()),
            "ANSIBLE_PYTHON_INTERPRETER": "auto_silent",
        }
