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
    suboptions:
      drivers:
        description: The drivers of this host, by name. Each may have C(version),
          C(flavour) and C(options).
        type: dict
      policy:
        description: What the agent may do without asking.
        type: dict
        suboptions:
          unload:
            description: Whether a module that is not in use may be replaced by a newer one.
            type: str
            choices: [idle, never]
          prebuild:
            description: Whether modules are built for kernels that may boot next.
            type: bool
          keep:
            description: How many further artifacts to keep for each kernel.
            type: int
          update:
            description: Whether the timer may update versions.
            type: str
            choices: [never, timer]
          build:
            description: Whether artifacts are built on this host.
            type: str
            choices: [never, fallback, always]
          untried:
            description: Whether versions that nobody has tried on a kernel are built.
            type: str
            choices: [build, refuse]
          trial:
            description: Whether modules are tried in a virtual machine before their kernel boots.
            type: bool
          hold_updates:
            description: Whether a Flatcar update is held if a driver cannot be had for its kernel.
            type: bool
      registry:
        description: The registry from which artifact images are pulled before they are built.
        type: dict
        suboptions:
          address:
            description: "The address, as C(host:port/prefix)."
            type: str
          mirrors:
            description: Registries with the same images, which are asked first.
            type: list
            elements: str
          folders:
            description: Folders of images on the host, which are searched before any address is
              asked.
            type: list
            elements: str
          push:
            description: Whether artifact images that this host builds are pushed there.
            type: bool
          sign_key:
            description: The private key that signs pushed images (a file or a PKCS#11 URI).
            type: str
          sign_password_file:
            description: A file on the host with that key's password or PIN.
            type: str
          ca:
            description: A file with the certificate authorities of the registry.
            type: str
          plain_http:
            description: Whether the registry is reached by HTTP without TLS.
            type: bool
          auth_file:
            description: A file of credentials on the host, in the format of Docker and podman.
            type: str
      trust:
        description: Whose signatures count for images from registries.
        type: dict
        suboptions:
          keys:
            description: A folder of public keys on the host, or one file.
            type: str
          insecure:
            description: Whether unsigned images are installed.
            type: bool
          not_before:
            description: The first day whose signatures count, such as V(2026-11-01).
            type: str
          registries:
            description: Different rules for registries, by C(host[:port][/prefix]).
            type: dict
          drivers:
            description: Different rules for drivers, by name.
            type: dict
      signing:
        description: The key that signs kernel modules.
        type: dict
        suboptions:
          key:
            description: The private key (a file or a PKCS#11 URI).
            type: str
          certificate:
            description: The file of its certificate.
            type: str
          hash:
            description: The digest algorithm of the signature.
            type: str
            choices: [sha256, sha384, sha512]
          pin_file:
            description: A file with the passphrase or PIN.
            type: str
      cdi:
        description: CDI specifications, which engines use for C(--device).
        type: dict
        suboptions:
          generate:
            description: Whether the units write them at boot and when drivers change.
            type: bool
      kubernetes:
        description: What a node of a cluster says of itself, by Node Feature Discovery.
        type: dict
        suboptions:
          labels:
            description: What its labels begin with.
            type: str
          gates:
            description:
              - Labels that are V(false) while a driver does not work, by their names. The values
                are drivers, such as V(nvidia) for C(nvidia.com/gpu.deploy.operands).
            type: dict
      metrics:
        description: Where the agent writes metrics.
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
            description: The network of the containers that download.
            type: str
          jobs:
            description: How many compilers run at once.
            type: int
      network:
        description: How the host reaches servers.
        type: dict
        suboptions:
          proxy:
            description: The address of the proxy, for units, shells and the containers of builds.
            type: str
          no_proxy:
            description: Hosts and domains that are reached directly.
            type: list
            elements: str
      distros:
        description: Where the packages of distros come from, by the distro's id. Each may have
          C(archive), C(repositories) and C(base_images).
        type: dict
      kernel_distro:
        description: The distro whose kernels the host runs, if it differs from the host's own,
          such as V(debian:12).
        type: str
      catalogue:
        description: Further folders of recipes on the host.
        type: list
        elements: str
      trees:
        description: Kernel trees, for kernels without packaged headers. The keys are those of
          C([[trees]]) in provision.toml.
        type: list
        elements: dict
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
