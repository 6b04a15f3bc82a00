"""Enters an OCI runtime into container engines."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: runtime
short_description: Enters an OCI runtime into Docker and containerd
description:
  - Adds a runtime to the configuration files of engines. Everything else in them stays as it
    is, comments too.
  - Remembers what was there before. With I(state=absent), a file that nobody changed since is
    put back as it was, byte
    by byte; from another one, our entries alone are taken.
  - Restarts nothing; I(stale) says who has to read its configuration again. A Docker that runs is
    told once, where its default would otherwise stay a runtime that is going.
options:
  engines:
    description: Which engines shall have it. It is taken out of those that are not named.
    type: list
    elements: str
    choices: [docker, containerd]
    default: []
  name:
    description: The runtime's name.
    type: str
    default: oci-decorator
  program:
    description: The runtime's path; it is not looked for.
    type: path
    default: /usr/bin/oci-decorator-runtime
  docker_default:
    description: Whether it is Docker's default runtime.
    type: bool
    default: false
  reload:
    description: Whether a Docker that runs may be told to read its configuration again.
    type: bool
    default: true
  docker_path:
    description: Docker's configuration.
    type: path
    default: /etc/docker/daemon.json
  containerd_path:
    description: Containerd's configuration.
    type: path
    default: /etc/containerd/config.toml
  ledger:
    description: Where it is remembered what was there before.
    type: path
    default: /var/lib/oci-decorator/runtimes.json
attributes:
  check_mode:
    description: Says what would change.
    support: full
  diff_mode:
    description: Shows it.
    support: full
author:
  - The authors of provision and oci-decorator
"""

EXAMPLES = r"""
- name: Ensure Docker knows the runtime
  oci_decorator.drivers.runtime:
    engines: [docker]
  notify: Reload Docker
"""

RETURN = r"""
stale:
  description: Engines that run with another configuration than the one that we wrote.
  returned: always
  type: list
  elements: str
running:
  description: Those of them that run, and so have to be told.
  returned: always
  type: list
  elements: str
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.oci_decorator.drivers.plugins.module_utils import runtimes
from ansible_collections.oci_decorator.drivers.plugins.module_utils.json_text import (
    JsonTextError,
    loads,
    set_member,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.ledger import (
    Change,
    Ledger,
    read,
    write,
)

_ENGINES = ("docker", "containerd")
_MICROSECONDS = 1_000_000
# What Docker takes where nothing is configured, and how long it may take to reload.
_BUILT_IN = "runc"
_RELOAD_S = 10


def _wish(module: AnsibleModule, ledger: Ledger, engine: str, path: str) -> Change | None:
    """Return how an engine's file gets the runtime; None if it has it."""
    text = read(path) or ""
    name, program = module.params["name"], module.params["program"]
    if engine == "docker":
        new = runtimes.docker_with(
            text,
            name,
            program,
            is_default=module.params["docker_default"],
            original=ledger.original(path),
        )
    else:
        new = runtimes.containerd_with(text, name, program)
    return ledger.wish(path, new)


def _farewell(module: AnsibleModule, ledger: Ledger, engine: str, path: str) -> Change | None:
    """Return how an engine's file loses the runtime; None if it is not there through us."""
    text = read(path)
    if path not in ledger.records or text is None:
        return None
    if ledger.is_as_written(path, text):
        return ledger.restore(path)
    original = ledger.original(path)
    if engine == "docker":
        new = runtimes.docker_without(text, module.params["name"], original=original)
    else:
        new = runtimes.containerd_without(text)
    return None if new == text else Change(path, text, new)


def _is_stale(module: AnsibleModule, ledger: Ledger, engine: str, path: str) -> bool:
    """Whether an engine runs that has not read what we wrote, be it in a run that broke off."""
    if not ledger.is_as_written(path, read(path)):
        return False
    since = _running_since(module, engine)
    return since is not None and Path(path).stat().st_mtime > since


def _running_since(module: AnsibleModule, engine: str) -> float | None:
    """Return when an engine started or reloaded last, as a Unix time; None if it does not run."""
    words = ["systemctl", "show", engine, "--property=ActiveState,StateChangeTimestampMonotonic"]
    code, printed, _ = module.run_command(words)
    shown = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    if code != 0 or shown.get("ActiveState") != "active":
        return None
    changed = int(shown.get("StateChangeTimestampMonotonic") or 0) / _MICROSECONDS
    return time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - changed)


def _leave_default(module: AnsibleModule, change: Change) -> None:
    """Let a Docker that runs have its own default again.

    A reload takes over a default that is named, and keeps the one it has where none is: so the
    built-in one is named for a moment.
    Source: https://github.com/moby/moby/blob/v26.1.5/daemon/reload.go
    """
    name = module.params["name"]
    before, after = loads(change.before or ""), loads(change.after or "")
    if before.get("default-runtime") != name or "default-runtime" in after:
        return
    if not module.params["reload"] or _running_since(module, "docker") is None:
        return
    text = set_member(change.before or "", ("default-runtime",), _BUILT_IN)
    write(change.path, text, None, module.atomic_move)
    module.run_command(["systemctl", "reload", "docker"], check_rc=True)
    deadline = time.monotonic() + _RELOAD_S
    while _docker_default(module) == name and time.monotonic() < deadline:
        time.sleep(0.1)
    # What is there is still ours: the ledger is to know it so.
    write(change.path, change.before or "", None, module.atomic_move)


def _docker_default(module: AnsibleModule) -> str:
    words = ["docker", "info", "--format", "{{.DefaultRuntime}}"]
    printed: str = module.run_command(words)[1]
    return printed.strip()


def _changes(module: AnsibleModule, ledger: Ledger, paths: dict[str, str]) -> dict[str, Change]:
    changes: dict[str, Change] = {}
    for engine, path in paths.items():
        decide = _wish if engine in module.params["engines"] else _farewell
        try:
            change = decide(module, ledger, engine, path)
        except (JsonTextError, runtimes.RuntimeConfigError) as error:
            module.fail_json(msg=f"'{path}' can't be changed: {error}. It was left as it is.")
        if change is not None:
            changes[engine] = change
    return changes


def _result(module: AnsibleModule) -> dict[str, Any]:
    paths = {engine: module.params[f"{engine}_path"] for engine in _ENGINES}
    ledger = Ledger(module.params["ledger"])
    changes = _changes(module, ledger, paths)
    if not module.check_mode:
        if "docker" in changes:
            _leave_default(module, changes["docker"])
        ledger.make(changes.values(), module.atomic_move)
    stale = [e for e, p in paths.items() if e in changes or _is_stale(module, ledger, e, p)]
    gone = [p for e, p in paths.items() if e not in module.params["engines"]]
    if not module.check_mode and any(path in ledger.records for path in gone):
        ledger.forget(gone, module.atomic_move)
    return {
        "changed": bool(stale),
        "stale": stale,
        "running": [engine for engine in stale if _running_since(module, engine) is not None],
        "diff": [change.diff() for change in changes.values()],
    }


def main() -> None:
    """Enter or take out."""
    module = AnsibleModule(
        argument_spec={
            "engines": {
                "type": "list",
                "elements": "str",
                "choices": list(_ENGINES),
                "default": [],
            },
            "name": {"type": "str", "default": "oci-decorator"},
            "program": {"type": "path", "default": "/usr/bin/oci-decorator-runtime"},
            "docker_default": {"type": "bool", "default": False},
            "reload": {"type": "bool", "default": True},
            "docker_path": {"type": "path", "default": "/etc/docker/daemon.json"},
            "containerd_path": {"type": "path", "default": "/etc/containerd/config.toml"},
            "ledger": {"type": "path", "default": "/var/lib/oci-decorator/runtimes.json"},
        },
        supports_check_mode=True,
    )
    if not runtimes.HAS_TOML:
        module.fail_json(msg="This needs Python 3.11 or newer: set ansible_python_interpreter.")
    module.exit_json(**_result(module))


if __name__ == "__main__":
    main()
