"""Installs provision's units and kernel hooks."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: _provision_units
short_description: Installs or removes the systemd units and kernel hooks of provision
description:
  - Runs C(provision units install) or C(provision units remove).
version_added: 0.1.0
options:
  program:
    description: The path of C(provision), which the units start.
    type: path
    default: /opt/provision/bin/provision
  replace:
    description: Whether units that others wrote or changed are replaced. A copy is kept.
    type: bool
    default: false
  state:
    description: Whether the units should be installed.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Reports what would change. If C(provision) is not installed yet, it reports a
      change.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ensure drivers are kept across kernel upgrades
  oci_decorator.drivers._provision_units:
"""

RETURN = r"""
changes:
  description: What was done or would be done.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.oci_decorator.drivers.plugins.module_utils.program import (
    DONE,
    ProgramError,
    call,
    is_there,
)


def _words(module: AnsibleModule) -> list[str]:
    flags = {"--replace": module.params["replace"], "--dry-run": module.check_mode}
    given = [flag for flag, is_set in flags.items() if is_set]
    if module.params["state"] == "absent":
        return ["units", "remove", *given]
    return ["units", "install", "--program", module.params["program"], *given]


def main() -> None:
    """Install or remove."""
    module = AnsibleModule(
        argument_spec={
            "program": {"type": "path", "default": "/opt/provision/bin/provision"},
            "replace": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    program = module.params["program"]
    if not is_there(program):
        if module.params["state"] == "absent":
            module.exit_json(changed=False, changes=[])
        if module.check_mode:
            module.exit_json(changed=True, changes=["all of them, once provision is installed"])
        module.fail_json(msg=f"'{program}' is missing: install provision first.")
    try:
        answer = call(module, program, _words(module))
    except ProgramError as error:
        module.fail_json(msg=str(error))
    if answer.code != DONE:
        module.fail_json(msg=answer.error or answer.notes)
    changes = [change["what"] for change in answer.document["changes"]]
    module.exit_json(changed=bool(changes), changes=changes)


if __name__ == "__main__":
    main()
