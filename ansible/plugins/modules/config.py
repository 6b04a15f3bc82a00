"""Writes provision.toml."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: config
short_description: Writes provision.toml
description:
  - Writes what a host should have. The keys are those of C(provision.toml), and C(provision)
    itself checks them
    before anything is written, where it is installed.
options:
  config:
    description: The content; see docs/reference/provision-toml.md of the project.
    type: dict
    required: true
    suboptions:
      drivers:
        description: The drivers of this host, by name; each may have C(version),
          C(flavour) and C(options).
        type: dict
      policy:
        description: What may be done without asking.
        type: dict
        suboptions:
          unload:
            description: Whether a module that is not in use may be unloaded for a newer one.
            type: str
            choices: [idle, never]
          prebuild:
            description: Whether modules are built for kernels that may boot next.
            type: bool
          keep:
            description: How many artifacts are kept beyond those that are needed.
            type: int
          update:
            description: Whether the timer may move versions forward.
            type: str
            choices: [never, timer]
          hold_updates:
            description: Whether an update of Flatcar is held that drivers don't build for.
            type: bool
      registry:
        description: Where artifact images are pulled from before they are built.
        type: dict
        suboptions:
          address:
            description: "As C(host:port/prefix)."
            type: str
          push:
            description: Whether what was built is pushed there.
            type: bool
      signing:
        description: The key that modules are signed with.
        type: dict
        suboptions:
          key:
            description: File of the key or PKCS#11 URI.
            type: str
          certificate:
            description: File of the certificate.
            type: str
          hash:
            description: Digest of the signature.
            type: str
            choices: [sha256, sha384, sha512]
          pin_file:
            description: File with passphrase or PIN.
            type: str
      metrics:
        description: Where metrics are written.
        type: dict
        suboptions:
          textfile:
            description: A file that the Prometheus node exporter collects.
            type: str
      engine:
        description: The container engine that builds.
        type: dict
        suboptions:
          host:
            description: Its address.
            type: str
          network:
            description: Network of build containers.
            type: str
          jobs:
            description: How many compilers run at once.
            type: int
      distros:
        description: Where distros' packages come from, by their id; each may have
          C(archive) and C(base_images).
        type: dict
      kernel_distro:
        description: The distro that the host's kernels come from, where that is another than
          its own, as V(debian:12).
        type: str
      catalogue:
        description: Further folders of driver folders.
        type: list
        elements: str
  path:
    description: Where the file is.
    type: path
    default: /etc/provision/provision.toml
  program:
    description: Where C(provision) is.
    type: path
    default: /opt/provision/bin/provision
attributes:
  check_mode:
    description: Says whether the file would change.
    support: full
  diff_mode:
    description: Shows how.
    support: full
author:
  - The authors of provision and oci-decorator
"""

EXAMPLES = r"""
- name: Ensure the host shall have NVIDIA's driver
  oci_decorator.drivers.config:
    config:
      drivers:
        nvidia: {version: "535"}
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
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.oci_decorator.drivers.plugins.module_utils.ledger import (
    mode_of,
    read,
    write,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.program import (
    USAGE,
    ProgramError,
    call,
    is_there,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.toml_text import dumps

_HEAD = "# Written by Ansible (provision_driver_config); changes made here are overwritten.\n"
_MODE = 0o644
Spec = dict[str, Any]


def _words(*choices: str) -> Spec:
    return {"type": "str", "choices": list(choices)}


_TEXT: Spec = {"type": "str"}
SECTIONS: Spec = {
    "policy": {
        "unload": _words("idle", "never"),
        "prebuild": {"type": "bool"},
        "hold_updates": {"type": "bool"},
        "keep": {"type": "int"},
        "update": _words("never", "timer"),
    },
    "registry": {"address": _TEXT, "push": {"type": "bool"}},
    "signing": {
        "key": _TEXT,
        "certificate": _TEXT,
        "hash": _words("sha256", "sha384", "sha512"),
        "pin_file": _TEXT,
    },
    "metrics": {"textfile": _TEXT},
    "engine": {"host": _TEXT, "network": _TEXT, "jobs": {"type": "int"}},
}
CONFIG: Spec = {
    "drivers": {"type": "dict"},
    **{name: {"type": "dict", "options": options} for name, options in SECTIONS.items()},
    "distros": {"type": "dict"},
    "kernel_distro": _TEXT,
    "catalogue": {"type": "list", "elements": "str"},
}
_DRIVER: Spec = {"version": _TEXT, "flavour": _TEXT, "options": {"type": "dict"}}
_DISTRO: Spec = {
    "archive": {
        "type": "dict",
        "options": {"mirror": _TEXT, "security_mirror": _TEXT, "keyring": _TEXT},
    },
    "base_images": {"type": "dict"},
}


def parsed(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a configuration with values of proper types, and its mistakes with their places."""
    mistakes: list[str] = []

    def checked(spec: Spec, value: object, place: str) -> dict[str, Any]:
        # A driver without settings is written as 'nvidia:' by many.
        given = {} if value is None else value
        if not isinstance(given, dict):
            mistakes.append(f"{place}: must be a dictionary, not {given!r}")
            return {}
        result = ArgumentSpecValidator(spec).validate(given)
        mistakes.extend(f"{place}: {message}" for message in result.error_messages)
        return {k: v for k, v in result.validated_parameters.items() if v is not None}

    good = checked(CONFIG, config, "config")
    for section in SECTIONS.keys() & good.keys():
        good[section] = {k: v for k, v in good[section].items() if v is not None}
    for section, spec in (("drivers", _DRIVER), ("distros", _DISTRO)):
        if section in good:
            entries = good[section].items()
            good[section] = {k: checked(spec, v, f"config.{section}.{k}") for k, v in entries}
    return good, mistakes


def _checked_by_provision(module: AnsibleModule, text: str) -> None:
    """Let provision read the text, in a root where nothing else is."""
    program = module.params["program"]
    if not is_there(program):
        return
    with tempfile.TemporaryDirectory() as root:
        write(f"{root}/etc/provision/provision.toml", text, _MODE, module.atomic_move)
        answer = call(module, program, ["drivers", "--root", root])
    error = answer.document.get("error", {})
    if answer.code == USAGE and error.get("file", "").endswith("provision.toml"):
        places = [f"config.{m['path']}: {m['message']}" for m in error["mistakes"]]
        module.fail_json(
            msg=f"provision does not accept this: {'; '.join(places)}", mistakes=places
        )


def main() -> None:
    """Check and write."""
    module = AnsibleModule(
        argument_spec={
            # Its members are checked below, all together.
            "config": {"type": "dict", "required": True},
            "path": {"type": "path", "default": "/etc/provision/provision.toml"},
            "program": {"type": "path", "default": "/opt/provision/bin/provision"},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]
    config, mistakes = parsed(module.params["config"])
    if mistakes:
        module.fail_json(msg="; ".join(mistakes), mistakes=mistakes)
    text = _HEAD + dumps(config)
    try:
        _checked_by_provision(module, text)
    except ProgramError as error:
        module.fail_json(msg=str(error))
    before = read(path)
    changed = before != text or mode_of(path) != _MODE
    if changed and not module.check_mode:
        write(path, text, _MODE, module.atomic_move)
    diff = {"before_header": path, "after_header": path, "before": before or "", "after": text}
    module.exit_json(changed=changed, path=str(Path(path)), diff=diff if changed else {})


if __name__ == "__main__":
    main()
