"""Adds an OCI runtime to the configuration of container engines."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: provision_runtime
short_description: Adds an OCI runtime to Docker, containerd and CRI-O
description:
  - Runs C(oci-decorator configure), which adds a runtime to the configuration files of engines.
    Everything else in them stays, including comments.
  - An engine that is not named loses the runtime, and nothing else. A default runtime that it
    replaced does not come back.
  - Restarts nothing. I(stale) lists the engines that have to read their configuration again. A
    running Docker reloads once if its default would otherwise stay a removed runtime.
version_added: 0.1.0
options:
  engines:
    description: The engines that should have the runtime. It is removed from all others.
    type: list
    elements: str
    choices: [docker, containerd, crio]
    default: []
  name:
    description: The runtime's name.
    type: str
    default: oci-decorator
  program:
    description: The runtime's path, which is not searched for.
    type: path
    default: /usr/bin/oci-decorator-runtime
  decorator:
    description: The program C(oci-decorator). If empty, the one beside I(program) is used.
    type: path
    default: ""
  docker_default:
    description: Whether the runtime is Docker's default.
    type: bool
    default: false
  reload:
    description: Whether a running Docker may be reloaded.
    type: bool
    default: true
  docker_path:
    description: Docker's configuration file.
    type: path
    default: /etc/docker/daemon.json
  containerd_path:
    description: Containerd's configuration file.
    type: path
    default: /etc/containerd/config.toml
  crio_path:
    description: The file of the runtime among CRI-O's.
    type: path
    default: /etc/crio/crio.conf.d/99-oci-decorator.toml
attributes:
  check_mode:
    description: Reports what would change.
    support: full
  diff_mode:
    description: Shows the differences.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ensure Docker knows the runtime
  oci_decorator.drivers.provision_runtime:
    engines: [docker]
  notify: Reload Docker
"""

RETURN = r"""
stale:
  description: Engines that have not read the written configuration yet.
  returned: always
  type: list
  elements: str
running:
  description: The running ones among them, which have to reload or restart.
  returned: always
  type: list
  elements: str
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.oci_decorator.drivers.plugins.module_utils.managed_files import write
from ansible_collections.oci_decorator.drivers.plugins.module_utils.runtimes import (
    diffs,
    leaves_default,
    with_default,
    words,
)

_ENGINES = ("docker", "containerd", "crio")
_MICROSECONDS = 1_000_000
# Docker's default runtime without a configuration, and how long a reload may take.
_BUILT_IN = "runc"
_RELOAD_S = 10


def _decorator(module: AnsibleModule) -> str:
    named: str = module.params["decorator"]
    return named or str(Path(module.params["program"]).with_name("oci-decorator"))


def _configure(module: AnsibleModule, engine: str, *, is_dry: bool) -> dict[str, Any]:
    """Edit an engine's file, or find the edit in check mode; return the program's answer."""
    command = [_decorator(module), *words(engine, module.params, is_dry=is_dry)]
    code, printed, complaint = module.run_command(command)
    if code != 0:
        module.fail_json(msg=complaint.strip() or f"{' '.join(command)} ended with {code}")
    answer: dict[str, Any] = json.loads(printed)
    return answer


def _is_stale(module: AnsibleModule, engine: str, path: str) -> bool:
    """Whether an engine runs without having read the runtime that is in its file."""
    file = Path(path)
    if not file.exists() or module.params["program"] not in file.read_text(encoding="utf-8"):
        return False
    since = _running_since(module, engine)
    return since is not None and file.stat().st_mtime > since


def _running_since(module: AnsibleModule, engine: str) -> float | None:
    """Return when an engine started or reloaded last, as a Unix time; None if it does not run."""
    command = ["systemctl", "show", engine, "--property=ActiveState,StateChangeTimestampMonotonic"]
    code, printed = module.run_command(command)[:2]
    shown = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    if code != 0 or shown.get("ActiveState") != "active":
        return None
    changed = int(shown.get("StateChangeTimestampMonotonic") or 0) / _MICROSECONDS
    return time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - changed)


def _leave_default(module: AnsibleModule, change: Mapping[str, Any]) -> None:
    """Give a running Docker its own default again.

    A reload takes over a default that is named, and keeps the one it has where none is: so the
    built-in one is named for a moment.
    Source: https://github.com/moby/moby/blob/v26.1.5/daemon/reload.go
    """
    name = module.params["name"]
    if not leaves_default(change, name):
        return
    if not module.params["reload"] or _running_since(module, "docker") is None:
        return
    text = with_default(change["before"], _BUILT_IN)
    write(change["path"], text, None, module.atomic_move)
    module.run_command(["systemctl", "reload", "docker"], check_rc=True)
    deadline = time.monotonic() + _RELOAD_S
    while _docker_default(module) == name and time.monotonic() < deadline:
        time.sleep(0.1)
    # The program edits the file as it was.
    write(change["path"], change["before"], None, module.atomic_move)


def _docker_default(module: AnsibleModule) -> str:
    command = ["docker", "info", "--format", "{{.DefaultRuntime}}"]
    printed: str = module.run_command(command)[1]
    return printed.strip()


def _answers(module: AnsibleModule) -> dict[str, dict[str, Any]]:
    """Return the change of each engine's file, and make it unless in check mode."""
    answers: dict[str, dict[str, Any]] = {}
    for engine in _ENGINES:
        is_named = engine in module.params["engines"]
        if not Path(_decorator(module)).exists() and (module.check_mode or not is_named):
            # In check mode the program may not be installed yet; without it there is no runtime.
            answers[engine] = {"changed": is_named, "files": []}
            continue
        answers[engine] = _configure(module, engine, is_dry=True)
    if module.check_mode:
        return answers
    for engine, answer in answers.items():
        if engine == "docker" and answer["changed"]:
            _leave_default(module, answer["files"][0])
        if answer["files"]:
            _configure(module, engine, is_dry=False)
    return answers


def _result(module: AnsibleModule) -> dict[str, Any]:
    answers = _answers(module)
    stale = [
        engine
        for engine, answer in answers.items()
        if answer["changed"]
        or any(_is_stale(module, engine, file["path"]) for file in answer["files"])
    ]
    return {
        "changed": bool(stale),
        "stale": stale,
        "running": [engine for engine in stale if _running_since(module, engine) is not None],
        "diff": [diff for answer in answers.values() for diff in diffs(answer)],
    }


def main() -> None:
    """Add or remove the runtime."""
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
            "decorator": {"type": "path", "default": ""},
            "docker_default": {"type": "bool", "default": False},
            "reload": {"type": "bool", "default": True},
            "docker_path": {"type": "path", "default": "/etc/docker/daemon.json"},
            "containerd_path": {"type": "path", "default": "/etc/containerd/config.toml"},
            "crio_path": {
                "type": "path",
                "default": "/etc/crio/crio.conf.d/99-oci-decorator.toml",
            },
        },
        supports_check_mode=True,
    )
    module.exit_json(**_result(module))


if __name__ == "__main__":
    main()
