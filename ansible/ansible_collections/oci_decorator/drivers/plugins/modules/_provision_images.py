"""Removes artifact images from an engine."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: _provision_images
short_description: Removes artifact images from a container engine
description:
  - Removes every image with the label of a build of C(provision). An image that a container uses
    stays. If an engine does not answer, its images stay, with a warning.
version_added: 0.1.0
options:
  client:
    description: The engine's client.
    type: str
    choices: [docker, podman]
    default: docker
  host:
    description: The engine's address, if it is not the client's default.
    type: str
attributes:
  check_mode:
    description: Reports what would be removed.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ensure podman has no driver's image
  oci_decorator.drivers._provision_images:
    client: podman
"""

RETURN = r"""
removed:
  description: The images that were removed or would be removed.
  returned: always
  type: list
  elements: str
kept:
  description: Images that stay, each with the engine's reason.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

# The labels that builds set on artifacts and toolchains: src/provision/build/image.py.
_LABELS = ("provision.pin.digest", "provision.toolchain")
_FORMAT = "{{.Repository}}:{{.Tag}} {{.ID}}"
_UNNAMED = "<none>"


def listed(printed: str) -> list[str]:
    """Return the images of a listing: each by its name, or by its number where it has none."""
    rows = [line.split() for line in printed.splitlines() if line.strip()]
    return [number if _UNNAMED in name else name for name, number in rows]


def _argv(module: AnsibleModule) -> list[str]:
    client, host = module.params["client"], module.params["host"]
    flags = {"docker": ["--host"], "podman": ["--remote", "--url"]}[client]
    return [client, *([*flags, host] if host else [])]


def _remove(module: AnsibleModule) -> tuple[list[str], list[str]]:
    """Remove artifact images; the names of those that went, and of those that stay, with why."""
    client = _argv(module)
    names: list[str] = []
    for label in _LABELS:
        asked = ["image", "ls", "--filter", f"label={label}", "--format", _FORMAT]
        code, printed, said = module.run_command([*client, *asked])
        if code != 0:
            # This is no error, because the remaining removal does not depend on this engine.
            kept = f"{client[0]} could not be asked, so its images stay: {said.strip()}"
            module.warn(f"{kept} Start it, and run the playbook again.")
            return [], [kept]
        names += listed(printed)
    removed: list[str] = []
    stay: list[str] = []
    for name in names:
        done = (0, "", "")
        if not module.check_mode:
            done = module.run_command([*client, "image", "rm", name])
        if done[0] == 0:
            removed.append(name)
        else:
            stay.append(f"{name}: {done[2].strip()}")
    return removed, stay


def main() -> None:
    """Remove."""
    module = AnsibleModule(
        argument_spec={
            "client": {"type": "str", "choices": ["docker", "podman"], "default": "docker"},
            "host": {"type": "str"},
        },
        supports_check_mode=True,
    )
    removed, kept = _remove(module)
    module.exit_json(changed=bool(removed), removed=removed, kept=kept)


if __name__ == "__main__":
    main()
