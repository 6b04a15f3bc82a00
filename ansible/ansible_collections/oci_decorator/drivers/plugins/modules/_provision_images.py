"""Loads artifact images from archives into an engine, or removes them from it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: _provision_images
short_description: Loads artifact images into a container engine, or removes them
description:
  - Loads archives that C(docker save) or C(podman save) wrote. An image whose name is in the engine
    is not loaded again, because the name contains a digest of its inputs.
  - I(state=absent) removes every image with the label of a build of C(provision). An image that a
    container uses stays. If an engine does not answer, its images stay, with a warning.
version_added: 0.1.0
options:
  archives:
    description: The archives on the host. Required with I(state=present).
    type: list
    elements: path
  client:
    description: The engine's client.
    type: str
    choices: [docker, podman]
    default: docker
  host:
    description: The engine's address, if it is not the client's default.
    type: str
  state:
    description: Whether the engine should have the images of the archives, or no artifact image.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Reports what would be loaded or removed. An archive that is not on the host yet
      counts as one to load.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ensure the engine has the driver for this kernel
  oci_decorator.drivers._provision_images:
    archives: [/opt/provision/images/nvidia.tar]

- name: Ensure podman has no driver's image
  oci_decorator.drivers._provision_images:
    client: podman
    state: absent
"""

RETURN = r"""
loaded:
  description: The archives that were loaded or would be loaded.
  returned: always
  type: list
  elements: str
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

import json
import tarfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

# The label that a build sets on its image: src/provision/build/image.py.
_LABEL = "provision.pin.digest"
_FORMAT = "{{.Repository}}:{{.Tag}} {{.ID}}"
_UNNAMED = "<none>"


def names_in(archive: Path) -> list[str]:
    """Return the names of the images in an archive.

    Source: https://github.com/moby/docker-image-spec/blob/v1.3.1/spec.md, combined image JSON.
    """
    with tarfile.open(archive) as opened:
        member = opened.extractfile("manifest.json")
        images = json.load(member) if member else []
    return [name for image in images for name in image.get("RepoTags") or []]


def listed(printed: str) -> list[str]:
    """Return the images of a listing: each by its name, or by its number where it has none."""
    rows = [line.split() for line in printed.splitlines() if line.strip()]
    return [number if _UNNAMED in name else name for name, number in rows]


def _argv(module: AnsibleModule) -> list[str]:
    client, host = module.params["client"], module.params["host"]
    flags = {"docker": ["--host"], "podman": ["--remote", "--url"]}[client]
    return [client, *([*flags, host] if host else [])]


def _load(module: AnsibleModule) -> list[str]:
    client = _argv(module)

    def is_loaded(archive: str) -> bool:
        if not Path(archive).exists():
            return False
        names = names_in(Path(archive))
        return bool(names) and module.run_command([*client, "image", "inspect", *names])[0] == 0

    missing = [archive for archive in module.params["archives"] if not is_loaded(archive)]
    if not module.check_mode:
        for archive in missing:
            module.run_command([*client, "load", "--quiet", "--input", archive], check_rc=True)
    return missing


def _remove(module: AnsibleModule) -> tuple[list[str], list[str]]:
    """Remove artifact images; the names of those that went, and of those that stay, with why."""
    client = _argv(module)
    asked = ["image", "ls", "--filter", f"label={_LABEL}", "--format", _FORMAT]
    code, printed, said = module.run_command([*client, *asked])
    if code != 0:
        # This is no error, because the remaining removal does not depend on this engine.
        kept = f"{client[0]} could not be asked, so its images stay: {said.strip()}"
        module.warn(f"{kept} Start it, and run the playbook again.")
        return [], [kept]
    removed: list[str] = []
    stay: list[str] = []
    for name in listed(printed):
        done = (0, "", "")
        if not module.check_mode:
            done = module.run_command([*client, "image", "rm", name])
        if done[0] == 0:
            removed.append(name)
        else:
            stay.append(f"{name}: {done[2].strip()}")
    return removed, stay


def main() -> None:
    """Load or remove."""
    module = AnsibleModule(
        argument_spec={
            "archives": {"type": "list", "elements": "path"},
            "client": {"type": "str", "choices": ["docker", "podman"], "default": "docker"},
            "host": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ["archives"])],
        supports_check_mode=True,
    )
    loaded: list[str] = []
    removed: list[str] = []
    kept: list[str] = []
    if module.params["state"] == "present":
        loaded = _load(module)
    else:
        removed, kept = _remove(module)
    module.exit_json(changed=bool(loaded or removed), loaded=loaded, removed=removed, kept=kept)


if __name__ == "__main__":
    main()
