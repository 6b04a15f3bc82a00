"""Documents the action plugin that installs a Python on a host without one."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: _provision_host_python
short_description: Installs a Python on a host without one
description:
  - Unpacks an archive of C(provision export host-python) on the host. Needs no Python there, only
    the
    programs C(sh), C(tar), C(gzip) and C(sha256sum).
  - If the new Python does not run on the host, the earlier one stays.
  - This is an action plugin. It returns the path of the Python as I(interpreter).
version_added: 0.1.0
options:
  archive:
    description: The archive, on the controller.
    type: path
  sha256:
    description: The archive's checksum. Without it, any archive is accepted.
    type: str
  prefix:
    description: The folder on the host. The archive must have been made for it.
    type: path
    default: /opt/provision/python
  state:
    description:
      - Whether the Python should be installed.
      - V(absent) removes only what this action has installed.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Reports whether it would be unpacked or removed.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ensure a Python on Fedora CoreOS
  oci_decorator.drivers._provision_host_python:
    archive: /srv/provision-python-3.11.2-x86_64.tar.gz
"""

RETURN = r"""
interpreter:
  description: The Python.
  returned: always
  type: str
digest:
  description: The checksum of the archive.
  returned: when it has to be there
  type: str
"""
