"""Writes provision.toml."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: provision_config
short_description: Writes provision.toml
description:
  - Writes what a host should have. The keys are those of C(provision.toml), and C(provision)
    itself checks them before anything is written, where it is installed.
  - Only root may read a file with a password in it; it stands neither in results nor in
    differences nor in the host's journal.
  - Remembers what was there before. With I(state=absent) that is put back, unless the file was
    changed since; then it stays.
version_added: 0.1.0
options:
  config:
    description: The content; see docs/reference/provision-toml.md of the project. Required with
      I(state=present).
    type: dict
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
          build:
            description: Whether artifacts are built on this host.
            type: str
            choices: [never, fallback, always]
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
          mirrors:
            description: Addresses that are asked first; they have the same images.
            type: list
            elements: str
          folders:
            description: Folders on the host that are looked into before any address is asked, as
              bundles have them.
            type: list
            elements: str
          push:
            description: Whether what was built on this host is pushed there.
            type: bool
          sign_key:
            description: The private key that signs what is pushed, a file or a PKCS#11 URI.
            type: str
          sign_password_file:
            description: File on the host with that key's password or PIN.
            type: str
          ca:
            description: File with the authorities that the registry's certificate is from.
            type: str
          plain_http:
            description: Whether the registry is spoken to without TLS.
            type: bool
          token_hosts:
            description: Further hosts that the registry's credentials may be sent to, for tokens.
            type: list
            elements: str
          auth_file:
            description: File of credentials on the host, as Docker or podman write it.
            type: str
          notify:
            description: Address that is asked once, by C(POST), when no registry has what the host
              needs.
            type: str
          notify_token_file:
            description: File on the host with the token that is sent along.
            type: str
      trust:
        description: Whose signatures count for what registries serve.
        type: dict
        suboptions:
          keys:
            description: Folder of public keys on the host, or one file.
            type: str
          insecure:
            description: Whether unsigned images are installed.
            type: bool
          not_before:
            description: Signatures from before this day do not count, such as V(2026-11-01).
            type: str
          registries:
            description: Other rules for registries, by C(host[:port][/prefix]).
            type: dict
          drivers:
            description: Other rules for drivers, by name.
            type: dict
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
      cdi:
        description: CDI specifications.
        type: dict
        suboptions:
          generate:
            description: Whether the units write them, at boot and when drivers change.
            type: bool
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
          C(archive), C(repositories) and C(base_images).
        type: dict
      kernel_distro:
        description: The distro that the host's kernels come from, where that is another than
          its own, as V(debian:12).
        type: str
      catalogue:
        description: Further folders of driver folders.
        type: list
        elements: str
      trees:
        description: Kernel trees, for kernels whose headers no distro packages; keys are those of
          C([[trees]]) in provision.toml.
        type: list
        elements: dict
  path:
    description: Where the file is.
    type: path
    default: /etc/provision/provision.toml
  program:
    description: Where C(provision) is.
    type: path
    default: /opt/provision/bin/provision
  record:
    description: Where it is remembered what was there before.
    type: path
    default: /var/lib/oci-decorator/config.json
  state:
    description: Whether the file has to say I(config), or be as it was before.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Says whether the file would change.
    support: full
  diff_mode:
    description: Shows how.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ensure the host should have NVIDIA's driver
  oci_decorator.drivers.provision_config:
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
    """Let provision read the text, in a root where nothing else is."""
    program = module.params["program"]
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
    """Return how the file has to change, and its text then; None: it is to be as it was before us.

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
    """Check and write, or give the file back."""
    module = AnsibleModule(
        argument_spec={
            # Its members are checked below, all together.
            "config": {"type": "dict"},
            "path": {"type": "path", "default": PATH},
            "program": {"type": "path", "default": "/opt/provision/bin/provision"},
            "record": {"type": "path", "default": "/var/lib/oci-decorator/config.json"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ["config"])],
        supports_check_mode=True,
        # Else all arguments stand in the host's journal.
        no_log=True,
    )
    path = module.params["path"]
    # Ansible takes these out of everything that is returned: messages, differences, arguments.
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
