"""Fetches the status of a fleet's hosts by Ansible, or reads it from a folder of files.

The installed ``ansible`` does it, with its own connections, inventories and secrets; hosts need no
Python for it: docs/decisions/23-matrix-and-fleets.md.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.errors import NotFoundError, ProvisionError
from provision.fleet.host_status import LARGEST_STATUS, Host, broken_host, host_of_status
from provision.run import find_program, run

_STATUS = "/run/provision/status.json"
_NO_FILE = 66
# One byte more than is read, so that a larger file is known by its size.
_COMMAND = f"test -e {_STATUS} || exit {_NO_FILE}; head -c {LARGEST_STATUS + 1} {_STATUS}"
_CALLBACKS = Path(__file__).parent / "callbacks"
_WHY = "ask the hosts of an inventory"
# The time of a run without its hosts: reading the inventory, starting processes.
_START_S = 60.0
# Seconds that a connected host may take to answer.
_ANSWER_S = 20
_PLAYED = frozenset({0, 2, 4})
_LISTED = re.compile(r"^ {4}(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class AnsibleOptions:
    """How Ansible asks the hosts of an inventory.

    Attributes:
        forks: How many at once.
        timeout: Seconds within which a host has to be connected.
        limit: A pattern of Ansible's for the hosts; None: all.
    """

    forks: int = 50
    timeout: int = 10
    limit: str | None = None


def hosts_of_inventory(inventory: Path, how: AnsibleOptions | None = None) -> list[Host]:
    """Return the hosts of an inventory; one that does not answer is a row of its own.

    Args:
        inventory: File, script or folder, as ``ansible -i`` takes it.
        how: AnsibleOptions they are asked.

    Raises:
        NotFoundError: Ansible is not installed, or finds no host there.
        ProvisionError: Ansible itself failed.
    """
    how = how or AnsibleOptions()
    names = _names(inventory, how)
    batches = math.ceil(len(names) / how.forks)
    limit = _START_S + batches * (how.timeout + _ANSWER_S)
    with tempfile.TemporaryDirectory(prefix="provision-") as folder:
        rows = Path(folder, "rows")
        rows.touch(mode=0o600)
        words = ("--forks", str(how.forks), "--timeout", str(how.timeout))
        module = ("--module-name", "ansible.builtin.raw", "--args", _COMMAND)
        late = f"it gave no answer within {limit:g} s of the whole run"
        try:
            done = run(
                [*_ansible(inventory, how), *words, "--task-timeout", str(_ANSWER_S), *module],
                why=_WHY,
                check=False,
                env={**_environment(), "PROVISION_ROWS": str(rows)},
                timeout=limit,
            )
        except NotFoundError:
            raise
        except ProvisionError:
            # Killed at the limit: the answers so far count.
            pass
        else:
            late = "Ansible did not say what became of it"
            if done.returncode not in _PLAYED:
                raise _failed(inventory, done.stderr or done.stdout)
        answered = dict(_answers(rows))
    return [answered.get(name) or _silent(name, late) for name in names]


def hosts_of_folder(folder: Path) -> list[Host]:
    """Return the hosts whose status files lie in a folder.

    Each is ``NAME.json``, or any ``status.json`` below a folder ``NAME``, as Ansible's ``fetch``
    leaves them.

    Raises:
        NotFoundError: There is no such file.
    """
    # A named pipe would keep its reader waiting.
    files = {path.stem: path for path in sorted(folder.glob("*.json")) if path.is_file()}
    for path in sorted(folder.glob("*/**/status.json")):
        if path.is_file():
            files.setdefault(path.relative_to(folder).parts[0], path)
    if not files:
        raise NotFoundError(
            f"The folder '{folder}' holds no status of a host.",
            resolution="It takes files NAME.json, or NAME/…/status.json as Ansible's fetch writes"
            f" them: ansible all -i INVENTORY -m fetch -a 'src={_STATUS} dest={folder}'.",
        )
    return [_of_file(name, path) for name, path in files.items()]


def _of_file(name: str, path: Path) -> Host:
    try:
        with path.open("rb") as stream:
            return host_of_status(name, stream.read(LARGEST_STATUS + 1))
    except OSError as error:
        why = f"'{path}' can't be read: {error.strerror or error}"
        return broken_host(name, "unreadable", why, None)


def _names(inventory: Path, how: AnsibleOptions) -> list[str]:
    """Return the hosts' names, in the order of the inventory."""
    argv = [*_ansible(inventory, how), "--list-hosts"]
    done = run(argv, why=_WHY, check=False, env=_environment(), timeout=_START_S)
    names = [name.strip() for name in _LISTED.findall(done.stdout)]
    if done.returncode != 0:
        raise _failed(inventory, done.stderr or done.stdout)
    if not names:
        raise NotFoundError(
            f"Ansible finds no host in '{inventory}'"
            + (f" that is meant by '{how.limit}'." if how.limit else "."),
            resolution=f"See what it reads there: ansible-inventory -i {inventory} --graph.",
            details=done.stderr.strip() or None,
        )
    return names


def _ansible(inventory: Path, how: AnsibleOptions) -> list[str]:
    # A virtual environment that is not activated has it beside its Python.
    beside = Path(sys.executable).with_name("ansible")
    program = find_program("ansible") or (str(beside) if beside.exists() else None)
    if program is None:
        raise NotFoundError(
            f"The program 'ansible' was not found, which is needed to {_WHY}.",
            resolution="Install it (apt install ansible-core), run the command where your playbooks"
            " run, or use --metrics or --status in place of --inventory.",
        )
    pattern = [f"--limit={how.limit}"] if how.limit else []
    return [program, "all", "--inventory", str(inventory.absolute()), *pattern]


def _environment() -> dict[str, str]:
    """Return the caller's variables that Ansible needs: its settings, and the SSH agent."""
    own = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("ANSIBLE_") or name == "SSH_AUTH_SOCK"
    }
    return {
        **own,
        "ANSIBLE_CALLBACK_PLUGINS": str(_CALLBACKS),
        "ANSIBLE_STDOUT_CALLBACK": "provision_rows",
        # Without it, 'ansible' uses only its own output; callbacks of others are not wanted.
        "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1",
        "ANSIBLE_CALLBACKS_ENABLED": "provision_rows",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_RETRY_FILES_ENABLED": "0",
    }


def _failed(inventory: Path, said: str) -> ProvisionError:
    return ProvisionError(
        f"Ansible could not ask the hosts of '{inventory}'.",
        resolution=f"Try it by hand: ansible all -i {inventory} -m ping. Passwords of a vault come"
        " from ANSIBLE_VAULT_PASSWORD_FILE; Ansible can't ask for any here.",
        details="\n".join(said.strip().splitlines()[-20:]) or None,
    )


def _answers(rows: Path) -> Iterator[tuple[str, Host]]:
    with rows.open(errors="replace") as stream:
        for line in stream:
            try:
                row = json.loads(line)
            except ValueError:
                # Ansible was killed while it wrote.
                continue
            yield str(row["host"]), _host(row)


def _host(row: Mapping[str, Any]) -> Host:
    name, message = str(row["host"]), str(row["message"] or row["stdout"]).strip()
    if row["kind"] == "unreachable":
        return _silent(name, message)
    if row["rc"] == _NO_FILE:
        return broken_host(
            name,
            "no-status",
            f"it has no {_STATUS}",
            "provision is not installed there, or did not run since the boot: install it by"
            " site.yml, or on the host: provision units && provision apply.",
        )
    if row["kind"] != "ok":
        return broken_host(
            name,
            "unreadable",
            f"its status can't be read: {message}",
            f"On the host: ls -l {_STATUS}",
        )
    return host_of_status(name, str(row["stdout"]).strip().encode(errors="replace"))


def _silent(name: str, why: str) -> Host:
    return broken_host(
        name, "unreachable", why, f"Try it by hand: ansible {name} -i INVENTORY -m ping"
    )
