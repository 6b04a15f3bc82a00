"""Gathers the facts that the roles use."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: provision_facts
short_description: Gathers facts that provision's roles need
description:
  - Finds a Python for C(provision), the container engines, PCI devices, and read-only parts of
    the system.
  - Returns them as C(ansible_facts['provision']).
  - Runs with Python 3.8 or newer, unlike the other modules of this collection.
version_added: 0.1.0
options:
  python:
    description: The only Python to consider, instead of those in the usual places.
    type: path
  program:
    description: The path of C(provision). If it is not given, C(/opt/provision/bin/provision) is
      used, or C(/usr/bin/provision) of packages.
    type: path
attributes:
  check_mode:
    description: Changes nothing.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Gather what the roles decide from
  oci_decorator.drivers.provision_facts:
"""

RETURN = r"""
ansible_facts:
  description: Under C(provision), what was found.
  returned: always
  type: dict
  contains:
    provision:
      description: The facts.
      type: dict
      sample:
        python: {path: /usr/bin/python3, version: [3, 11, 2], libc: [glibc, "2.36"]}
        machine: x86_64
        engines: [docker, podman]
        has_kubelet: false
        own_containerd: null
        is_installed: true
        is_ostree: false
        has_read_only_usr: false
        pci:
          - address: "0000:01:00.0"
            vendor: 10de
            device: 1c81
            device_class: "0300"
            driver: nvidia
"""

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.oci_decorator.drivers.plugins.module_utils.program import (
    is_there,
    located,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.pythons import find

# The program of the service, and not the client, which may be installed without it.
_ENGINES = {"docker": "dockerd", "containerd": "containerd", "podman": "podman", "crio": "crio"}
# Distributions of Kubernetes with a containerd in themselves, whose settings they write when they
# start. RKE2's tarball and its packages lie in different folders.
_WITH_CONTAINERD = ("k3s", "rke2")
_FOLDERS = ["/usr/local/bin", "/opt/rke2/bin"]


_DEVICES = Path("/sys/bus/pci/devices")


def _pci() -> list[dict[str, str | None]]:
    """Return the PCI devices by address, with the keys that C(provision facts) has for them."""
    found = []
    for folder in sorted(_DEVICES.iterdir()) if _DEVICES.is_dir() else []:
        link = folder / "driver"
        # One may be unplugged meanwhile.
        with suppress(OSError):
            names = ("vendor", "device", "class")
            texts = [(folder / name).read_text(encoding="utf-8") for name in names]
            vendor, device, kind = (text.strip()[2:] for text in texts)
            found.append(
                {
                    "address": folder.name,
                    "vendor": vendor,
                    "device": device,
                    "device_class": kind[:4],
                    "driver": link.resolve().name if link.is_symlink() else None,
                }
            )
    return found


def _gathered(module: AnsibleModule) -> dict[str, Any]:
    return {
        "python": find(module, module.params["python"]),
        "machine": platform.machine(),
        "engines": [name for name, program in _ENGINES.items() if module.get_bin_path(program)],
        "has_kubelet": module.get_bin_path("kubelet") is not None,
        "own_containerd": next(
            (name for name in _WITH_CONTAINERD if module.get_bin_path(name, opt_dirs=_FOLDERS)),
            None,
        ),
        "is_installed": is_there(located(module.params["program"])),
        "is_ostree": Path("/run/ostree-booted").exists(),
        "has_read_only_usr": bool(os.statvfs("/usr").f_flag & os.ST_RDONLY),
        "pci": _pci(),
    }


def main() -> None:
    """Gather."""
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path"},
            "program": {"type": "path"},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, ansible_facts={"provision": _gathered(module)})


if __name__ == "__main__":
    main()
