"""Brings a host to the state that provision.toml describes."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: provision_apply
short_description: Brings a host to the state that provision.toml describes
description:
  - Runs C(provision apply), which pulls or builds what is missing, installs it and loads it.
  - Fails only if C(provision) itself could not run. A driver that could not be built or loaded is
    in I(shortcomings), which M(oci_decorator.drivers.provision_status) judges.
version_added: 0.1.0
options:
  program:
    description: The path of C(provision). If it is not given, C(/opt/provision/bin/provision) is
      used, or C(/usr/bin/provision) of packages.
    type: path
  retry:
    description: Whether to try again what failed or was rolled back.
    type: bool
    default: false
attributes:
  check_mode:
    description: Reports what would be done.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ensure the drivers of this host are there
  oci_decorator.drivers.provision_apply:
"""

RETURN = r"""
actions:
  description: The actions that were done or would be done, each with its result.
  returned: always
  type: list
  elements: str
reboot_required:
  description: Whether the host needs a reboot to reach the configured state.
  returned: always
  type: bool
shortcomings:
  description: Drivers that do not work now, with the reason.
  returned: always
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.oci_decorator.drivers.plugins.module_utils.health import (
    is_reboot_required,
    shortcomings,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.managed_files import read
from ansible_collections.oci_decorator.drivers.plugins.module_utils.program import (
    ProgramError,
    call,
    is_there,
    located,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.provision_toml import (
    PATH,
    secrets_in,
)

_UNKNOWN: dict[str, Any] = {"reboot_required": False, "shortcomings": []}


def _would(module: AnsibleModule, words: list[str]) -> dict[str, Any]:
    program = located(module.params["program"])
    if not is_there(program):
        text = "everything, once provision is installed"
        return {"changed": True, "actions": [text], **_UNKNOWN}
    answer = call(module, program, ["plan", *words])
    if answer.error is not None:
        raise ProgramError(answer.error)
    actions = [action["what"] for action in answer.document["actions"]]
    return {"changed": bool(actions), "actions": actions, **_UNKNOWN}


def _did(module: AnsibleModule, words: list[str]) -> dict[str, Any]:
    answer = call(module, located(module.params["program"]), ["apply", *words])
    if "status" not in answer.document:
        raise ProgramError(answer.error or answer.notes)
    status = answer.document["status"]
    for problem in answer.document["problems"]:
        module.warn(problem)
    return {
        "changed": answer.document["changed"],
        "actions": [_told(action) for action in answer.document["actions"]],
        "reboot_required": is_reboot_required(status),
        "shortcomings": shortcomings(status, "ready"),
    }


def _told(action: dict[str, Any]) -> str:
    error = action["error"]
    result = error["message"] if error else action["result"]
    return f"{action['kind']} {action['driver']} for {action['kernel']}: {result}"


def main() -> None:
    """Apply."""
    module = AnsibleModule(
        argument_spec={
            "program": {"type": "path"},
            "retry": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    # Errors of downloads contain the address, which may contain a password.
    module.no_log_values.update(secrets_in(read(PATH)))
    words = ["--retry"] if module.params["retry"] else []
    try:
        result = _would(module, words) if module.check_mode else _did(module, words)
    except ProgramError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
