"""Checks the controller: documentation of the action plugin of this name."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: provision_preflight
short_description: Checks that the controller has everything that hosts get
description:
  - Checks variables and files on the controller, asks no host anything, and names everything that
    is missing or wrong in one message, each with what to do.
  - It is an action plugin.
version_added: 0.1.0
options:
  host:
    description: What the role P(oci_decorator.drivers.provision_host#role) needs. Left out, it is
      not checked; so are the others.
    type: dict
    suboptions:
      python_archive:
        description: An archive of C(provision host-python), or empty.
        type: str
        default: ""
      python_archive_sha256:
        description: Its checksum, or empty.
        type: str
        default: ""
  driver:
    description: What the role P(oci_decorator.drivers.provision_driver#role) needs.
    type: dict
    suboptions:
      config:
        description: The content of C(provision.toml).
        type: dict
        default: {}
      source:
        description: A checkout of the project or a wheel of C(provision). Empty, the wheel that the
          collection brings, or the checkout that it lies in.
        type: str
        default: ""
      constraints:
        description: A requirements file in place of the one that the source has, or empty.
        type: str
        default: ""
      wheelhouse:
        description: A folder with the packages that it names, or empty.
        type: str
        default: ""
      images:
        description: Archives of artifact images.
        type: list
        elements: str
        default: []
      trust_keys:
        description: Public keys whose signatures count on hosts.
        type: list
        elements: str
        default: []
      bundle:
        description: A folder of C(provision bundle create), or empty.
        type: str
        default: ""
  hook:
    description: What the role P(oci_decorator.drivers.provision_hook#role) needs.
    type: dict
    suboptions:
      program:
        description: The program C(oci-decorator). Empty, those that the collection brings, or the
          one that C(make build) made in the checkout that it lies in.
        type: str
        default: ""
attributes:
  check_mode:
    description: Changes nothing.
    support: full
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Check the controller
  oci_decorator.drivers.provision_preflight:
    driver:
      config:
        drivers:
          nvidia: {version: "535"}
    hook: {}
"""

RETURN = r"""
source:
  description: Where C(provision) is installed from.
  returned: with I(driver)
  type: str
programs:
  description: Paths of C(oci-decorator), by the machine that each is for.
  returned: with I(hook)
  type: dict
"""
