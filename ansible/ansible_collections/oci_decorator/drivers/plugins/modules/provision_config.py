"""Writes provision.toml."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: provision_config
short_description: Writes provision.toml
description:
  - Writes C(provision.toml) from a dictionary with the same keys. If C(provision) is installed, it
    checks the content before anything is written.
  - Only root may read a file that contains a password. No result, difference or journal entry
    contains the password.
  - Remembers the earlier file. I(state=absent) restores it, unless the file has changed since.
version_added: 0.1.0
options:
  config:
    description: The content; see docs/reference/provision-toml.md of the project. Required with
      I(state=present).
    type: dict
  path:
    description: The path of the file.
    type: path
    default: /etc/provision/provision.toml
  program:
    description: The path of C(provision). If it is not given, C(/opt/provision/bin/provision) is
      used, or C(/usr/bin/provision) of packages.
    type: path
  record:
    description: The file that remembers the earlier file.
    type: path
    default: /var/lib/oci-decorator/config.json
  state:
    description: Whether the file should have the content of I(config), or be restored.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Reports whether the file would change.
    support: full
  diff_mode:
    description: Shows the differences.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ensure the host should have NVIDIA's driver
  oci_decorator.drivers.provision_config:
    config:
      drivers:
        nvidia: {version: production}
"""

RETURN = r"""
path:
  description: The file.
  returned: always
  type: str
"""

import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.oci_decorator.drivers.plugins.module_utils.managed_files import (
    Change,
    ManagedFiles,
    read,
    write,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.program import (
    USAGE,
    ProgramError,
    call,
    is_there,
    located,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.provision_toml import (
    PATH,
    parsed,
    secrets_in,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.toml_text import dumps

_HEAD = "# Written by Ansible (provision_driver_config); changes made here are overwritten.\n"
_MODE = 0o644
# Everyone may read what a host should have, but no password.
_SECRET_MODE = 0o600


def _checked_by_provision(module: AnsibleModule, text: str) -> None:
    """Have provision check the text, in an otherwise empty root."""
    program = located(module.params["program"])
    if not is_there(program):
        return
    with tempfile.TemporaryDirectory() as root:
        write(f"{root}/etc/provision/provision.toml", text, _SECRET_MODE, module.atomic_move)
        answer = call(module, program, ["drivers", "--root", root])
    error = answer.document.get("error", {})
    if answer.code == USAGE and error.get("file", "").endswith("provision.toml"):
        places = [f"config.{m['path']}: {m['message']}" for m in error["mistakes"]]
        module.fail_json(
            msg=f"provision does not accept this: {'; '.join(places)}", mistakes=places
        )


def planned(
    managed: ManagedFiles, path: str, config: dict[str, Any] | None
) -> tuple[Change | None, str]:
    """Return the file's change and its text, which is None to restore what was there before.

    Args:
        managed: The record of what we wrote.
        path: The file.
        config: Its content, checked; None: the file is given back.
    """
    if config is None:
        return managed.restore(path), ""
    text = _HEAD + dumps(config)
    mode = _SECRET_MODE if secrets_in(config) else _MODE
    return managed.wish(path, text, mode), text


def _configuration(module: AnsibleModule) -> dict[str, Any] | None:
    if module.params["state"] == "absent":
        return None
    config, mistakes = parsed(module.params["config"])
    if mistakes:
        module.fail_json(msg="; ".join(mistakes), mistakes=mistakes)
    return config


def main() -> None:
    """Check and write the file, or restore the earlier one."""
    module = AnsibleModule(
        argument_spec={
            # The members are checked below, all together.
            "config": {"type": "dict"},
            "path": {"type": "path", "default": PATH},
            "program": {"type": "path"},
            "record": {"type": "path", "default": "/var/lib/oci-decorator/config.json"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ["config"])],
        supports_check_mode=True,
        # Otherwise the host's journal would contain all arguments.
        no_log=True,
    )
    path = module.params["path"]
    # Ansible removes these values from messages, differences and arguments.
    module.no_log_values.update(secrets_in(module.params["config"]), secrets_in(read(path)))
    config = _configuration(module)
    managed = ManagedFiles(module.params["record"])
    change, text = planned(managed, path, config)
    module.no_log_values.update(secrets_in(text))
    try:
        if config is not None:
            _checked_by_provision(module, text)
    except ProgramError as error:
        module.fail_json(msg=str(error))
    if change is not None and not module.check_mode:
        managed.make([change], module.atomic_move)
    if config is None and not module.check_mode and path in managed.records:
        managed.forget([path], module.atomic_move)
    module.exit_json(
        changed=change is not None,
        path=str(Path(path)),
        diff=change.diff() if change is not None else {},
    )


if __name__ == "__main__":
    main()
