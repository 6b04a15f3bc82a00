"""Loads artifact images from archives into an engine."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: images
short_description: Has artifact images in a container engine
description:
  - Loads archives that C(docker save) or C(podman save) wrote. The name of an artifact image tells
    what it was made from, so that an image of that name is the same.
options:
  archives:
    description: The archives on the host.
    type: list
    elements: path
    required: true
  client:
    description: The engine's client.
    type: str
    choices: [docker, podman]
    default: docker
attributes:
  check_mode:
    description: Says what would be loaded. An archive that is not on the host yet would be.
    support: full
author:
  - The authors of provision and oci-decorator
"""

EXAMPLES = r"""
- name: Ensure the engine has the driver for this kernel
  oci_decorator.drivers.images:
    archives: [/opt/provision/images/nvidia.tar]
"""

RETURN = r"""
loaded:
  description: The archives that were loaded, or would be.
  returned: always
  type: list
  elements: str
"""

import json
import tarfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule


def names_in(archive: Path) -> list[str]:
    """Return the names of the images in an archive.

    Source: https://github.com/moby/docker-image-spec/blob/v1.3.1/spec.md, combined image JSON.
    """
    with tarfile.open(archive) as opened:
        member = opened.extractfile("manifest.json")
        images = json.load(member) if member else []
    return [name for image in images for name in image.get("RepoTags") or []]


def main() -> None:
    """Load."""
    module = AnsibleModule(
        argument_spec={
            "archives": {"type": "list", "elements": "path", "required": True},
            "client": {"type": "str", "choices": ["docker", "podman"], "default": "docker"},
        },
        supports_check_mode=True,
    )
    client = module.params["client"]

    def is_loaded(archive: str) -> bool:
        if not Path(archive).exists():
            return False
        names = names_in(Path(archive))
        return bool(names) and module.run_command([client, "image", "inspect", *names])[0] == 0

    loaded = [archive for archive in module.params["archives"] if not is_loaded(archive)]
    if not module.check_mode:
        for archive in loaded:
            module.run_command([client, "load", "--quiet", "--input", archive], check_rc=True)
    module.exit_json(changed=bool(loaded), loaded=loaded)


if __name__ == "__main__":
    main()
