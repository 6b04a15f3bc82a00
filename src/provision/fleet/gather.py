"""Gathers the status of a fleet's hosts: by Ansible, from a folder of files, or from a Prometheus.

The installed ``ansible`` asks the hosts, with its own connections, inventories and secrets; hosts
need no Python for it: docs/decisions/23-matrix-and-fleets.md. A Prometheus gets instant queries:
https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError, get_small
from provision.fleet.host_status import LARGEST_STATUS, Host, broken_host, host_of_status, shown
from provision.fleet.metrics import OBSERVED, Sample, by_host, hosts_of_samples, unix_time
from provision.run import find_program, run

_STATUS = "/run/provision/status.json"
_NO_FILE = 66
# One byte more than is read, so that a larger file is known by its size.
_COMMAND = f"test -e {_STATUS} || exit {_NO_FILE}; head -c {LARGEST_STATUS + 1} {_STATUS}"
_CALLBACKS = Path(__file__).parent / "callbacks"
_WHY = "ask the hosts of an inventory"
# The part of a run that does not depend on hosts: reading the inventory, starting processes.
_START_S = 60.0
# Seconds that a connected host may take to answer.
_ANSWER_S = 20
_PLAYED = frozenset({0, 2, 4})
_LISTED = re.compile(r"^ {4}(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class AnsibleOptions:
    """The options for querying the hosts of an inventory with Ansible.

    Attributes:
        forks: Number of hosts that are queried in parallel.
        timeout: Time limit in seconds for the connection to a host.
        limit: A host pattern of Ansible; None: all hosts.
    """

    forks: int = 50
    timeout: int = 10
    limit: str | None = None


def hosts_of_inventory(inventory: Path, how: AnsibleOptions | None = None) -> list[Host]:
    """Return the hosts of an inventory, including those that do not answer.

    Args:
        inventory: File, script or folder, as ``ansible -i`` takes it.
        how: The options for Ansible.

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
        late = f"it did not answer within the {limit:g} s of the whole run"
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
            # Ansible was killed at the time limit: the answers so far count.
            pass
        else:
            late = "Ansible returned no result for it"
            if done.returncode not in _PLAYED:
                raise _failed(inventory, done.stderr or done.stdout)
        answered = dict(_answers(rows))
    return [answered.get(name) or _silent(name, late) for name in names]


def hosts_of_folder(folder: Path) -> list[Host]:
    """Return the hosts whose status files lie in a folder.

    Each is ``NAME.json``, or any ``status.json`` below a folder ``NAME``, as Ansible's ``fetch``
    leaves them.

    Raises:
        NotFoundError: The folder has no such file.
    """
    # Reading a named pipe would block.
    files = {path.stem: path for path in sorted(folder.glob("*.json")) if path.is_file()}
    for path in sorted(folder.glob("*/**/status.json")):
        if path.is_file():
            files.setdefault(path.relative_to(folder).parts[0], path)
    if not files:
        raise NotFoundError(
            f"The folder '{folder}' holds no status of a host.",
            resolution="Put files NAME.json there, or NAME/…/status.json, as Ansible's fetch writes"
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
            + (f" that matches '{how.limit}'." if how.limit else "."),
            resolution=f"Check the inventory: ansible-inventory -i {inventory} --graph",
            details=done.stderr.strip() or None,
        )
    return names


def _ansible(inventory: Path, how: AnsibleOptions) -> list[str]:
    # In a virtual environment that is not activated, it is beside the Python.
    beside = Path(sys.executable).with_name("ansible")
    program = find_program("ansible") or (str(beside) if beside.exists() else None)
    if program is None:
        raise NotFoundError(
            f"The program 'ansible' was not found, which is needed to {_WHY}.",
            resolution="Install it (apt install ansible-core), run the command on the machine that"
            " runs your playbooks, or use --metrics or --status in place of --inventory.",
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
        # Without this, 'ansible' uses only its own output. Other callbacks stay disabled.
        "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1",
        "ANSIBLE_CALLBACKS_ENABLED": "provision_rows",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_RETRY_FILES_ENABLED": "0",
    }


def _failed(inventory: Path, said: str) -> ProvisionError:
    return ProvisionError(
        f"Ansible could not query the hosts of '{inventory}'.",
        resolution=f"Try it by hand: ansible all -i {inventory} -m ping. For the password of a"
        " vault, set ANSIBLE_VAULT_PASSWORD_FILE: Ansible can't ask for it here.",
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
            "provision is not installed there, or has not run since the boot. Install it with"
            " site.yml, or run on the host: provision units && provision apply",
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


_NAMES = (
    "provision_driver_ready",
    "provision_driver_info",
    "provision_failures",
    "provision_reboot_required",
    "provision_ready",
    "provision_exit_code",
    "provision_observed_timestamp_seconds",
)
QUERY = f'{{__name__=~"{"|".join(_NAMES)}"}}'
# Hosts that were scraped within a week but are not scraped now.
GONE = f"last_over_time({OBSERVED}[7d]) unless on (instance) {OBSERVED}"
# Some 12 series a host and driver, of 400 bytes each: 25,000 hosts.
_LARGEST_ANSWER = 128 << 20
_LONGEST_DETAILS = 400


def hosts_of_prometheus(url: str) -> list[Host]:
    """Return the hosts of a Prometheus; those that it lost within a week are unreachable.

    Args:
        url: Its address, without ``/api/v1``; a name and a password in it are used for the login.

    Raises:
        UnreachableError: It does not answer.
        ProvisionError: The server is not a Prometheus, or refuses the query.
    """
    hosts = hosts_of_samples(_asked(url, QUERY))
    gone = [
        replace(
            broken_host(
                name,
                "unreachable",
                "Prometheus scraped it within the last week, and gets no metrics from it now",
                "Check whether the host is up and its node exporter runs. A host that was taken"
                " out of service disappears from this list after a week.",
            ),
            time=unix_time(sample.value),
        )
        for name, samples in by_host(_asked(url, GONE), "?").items()
        for sample in samples[:1]
    ]
    if not hosts and not gone:
        raise NotFoundError(
            f"The Prometheus at '{url}' has no metric of provision.",
            resolution="Configure the node exporter's textfile collector on each host to read"
            " /var/lib/prometheus/node-exporter/provision.prom; Debian's package does.",
        )
    known = {host.name for host in hosts}
    return hosts + [host for host in gone if host.name not in known]


def _asked(url: str, query: str) -> list[Sample]:
    """Return the samples that a query matches.

    Source: https://prometheus.io/docs/prometheus/latest/querying/api/#instant-vectors
    """
    address = f"{url.rstrip('/')}/api/v1/query?{urlencode({'query': query})}"
    try:
        data = get_small(address, limit=_LARGEST_ANSWER)
    except UnreachableError as error:
        raise UnreachableError(
            f"The Prometheus at '{url}' does not answer.",
            resolution=f"Check whether it runs: curl {url.rstrip('/')}/-/ready",
            details=shown(error.details or error.message, _LONGEST_DETAILS),
        ) from error
    except ProvisionError as error:
        raise _no_prometheus(url, error) from error
    try:
        document = json.loads(data)
        # A refusal has another HTTP status than 200 and never gets here.
        return [_sample(one) for one in document["data"]["result"]]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise _no_prometheus(url, error) from error


def _no_prometheus(url: str, error: Exception) -> ProvisionError:
    return ProvisionError(
        f"The server at '{url}' is not a Prometheus, or refuses the query.",
        resolution="Name the address of its web page, such as http://prometheus.example:9090.",
        details=shown(f"{type(error).__name__}: {error}", _LONGEST_DETAILS),
    )


def _sample(one: Any) -> Sample:  # noqa: ANN401 - whatever JSON has
    labels = {str(name): str(value) for name, value in one["metric"].items()}
    return Sample(labels.pop("__name__", OBSERVED), labels, float(one["value"][1]))
