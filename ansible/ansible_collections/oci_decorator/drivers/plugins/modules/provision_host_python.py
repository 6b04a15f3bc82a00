"""Puts a Python onto a host that has none: documentation of the action plugin of this name."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: provision_host_python
short_description: Puts a Python onto a host that has none
description:
  - Unpacks an archive of C(provision host-python) on the host. Needs no Python there, but the
    programs C(sh), C(tar), C(gzip) and C(sha256sum).
  - A Python that does not run on the host leaves the earlier one in its place.
  - It is an action plugin. Where facts say that there is no other Python, it sets
    C(ansible_python_interpreter) for the rest of the run.
version_added: 0.1.0
options:
  archive:
    description: The archive, on the controller.
    type: path
  sha256:
    description: Its checksum. Without one, that which it has is taken.
    type: str
  prefix:
    description: Where it lies on the host; the archive must be made for that.
    type: path
    default: /opt/provision/python
  state:
    description:
      - Whether it has to be there.
      - V(absent) removes what this action has put there, and nothing else.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Says whether it would be unpacked or removed.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ensure a Python on Fedora CoreOS
  oci_decorator.drivers.provision_host_python:
    archive: /srv/provision-python-3.11.2-x86_64.tar.gz
"""

RETURN = r"""
interpreter:
  description: The Python.
  returned: always
  type: str
digest:
  description: Checksum of the archive.
  returned: when it has to be there
  type: str
"""
