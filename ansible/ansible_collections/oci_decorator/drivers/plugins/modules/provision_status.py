"""Reports the state of a host's drivers."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: provision_status
short_description: Reports the state of a host's drivers, and what an apply would do
description:
  - Runs C(provision plan) and C(provision status). Changes nothing, and fails if a host does not
    have the state that I(require) names.
version_added: 0.1.0
options:
  program:
    description: The path of C(provision). If it is not given, C(/opt/provision/bin/provision) is
      used, or C(/usr/bin/provision) of packages.
    type: path
  retry:
    description: Whether what failed or was rolled back counts as planned work.
    type: bool
    default: false
  require:
    description:
      - The required state. C(ready) means that every driver works with the running kernel, and that
        no new version has failed its own check.
      - C(prepared) means that each kernel's artifact is in the store, loaded or not.
      - C(nothing) only reports the state.
    type: str
    choices: [ready, prepared, nothing]
    default: nothing
attributes:
  check_mode:
    description: Changes nothing.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Check that the drivers of this host work
  oci_decorator.drivers.provision_status:
    require: ready
"""

RETURN = r"""
is_installed:
  description: Whether C(provision) is installed. If not, all other values are empty.
  returned: always
  type: bool
planned:
  description: What an apply would do.
  returned: always
  type: list
  elements: str
reboot_required:
  description: Whether the host needs a reboot to reach the configured state.
  returned: always
  type: bool
shortcomings:
  description: What is missing for C(ready), whatever I(require) is.
  returned: always
  type: list
  elements: str
status:
  description: The document of C(provision status --json).
  returned: always
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.oci_decorator.drivers.plugins.module_utils.health import (
    REQUIREMENTS,
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

_NOTHING: dict[str, Any] = {
    "is_installed": False,
    "planned": [],
    "reboot_required": False,
    "shortcomings": [],
    "status": {},
}


def _asked(module: AnsibleModule, *words: str) -> dict[str, Any]:
    answer = call(module, located(module.params["program"]), words)
    # The exit code says how the host is, and is not 0 where nothing is configured.
    if answer.error is not None:
        raise ProgramError(answer.error)
    return answer.document


def _result(module: AnsibleModule) -> dict[str, Any]:
    if not is_there(located(module.params["program"])):
        return _NOTHING
    status = _asked(module, "status")
    planned = list(status["planned"])
    if module.params["retry"]:
        planned = [action["what"] for action in _asked(module, "plan", "--retry")["actions"]]
    return {
        "is_installed": True,
        "planned": planned,
        "reboot_required": is_reboot_required(status),
        "shortcomings": shortcomings(status, "ready"),
        "status": status,
    }


def main() -> None:
    """Report the state."""
    module = AnsibleModule(
        argument_spec={
            "program": {"type": "path"},
            "retry": {"type": "bool", "default": False},
            "require": {"type": "str", "choices": list(REQUIREMENTS), "default": "nothing"},
        },
        supports_check_mode=True,
    )
    # Errors of downloads contain the address, which may contain a password.
    module.no_log_values.update(secrets_in(read(PATH)))
    require = module.params["require"]
    try:
        result = _result(module)
    except ProgramError as error:
        module.fail_json(msg=str(error))
    if not result["is_installed"]:
        wrong = [] if require == "nothing" else ["provision is not installed"]
    else:
        wrong = shortcomings(result["status"], require)
    if wrong:
        module.fail_json(msg="\n".join(wrong), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
