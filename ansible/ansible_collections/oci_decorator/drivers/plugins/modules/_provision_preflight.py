"""Documents the action plugin that checks the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: _provision_preflight
short_description: Checks that the controller has everything that hosts need
description:
  - Checks variables and files on the controller, without a connection to any host. One message
    lists everything that is missing or wrong, each with what to do.
  - Without options, it fails if C(--tags) selects none of the playbook's tasks.
  - This is an action plugin.
version_added: 0.1.0
options:
  host:
    description: What the role P(oci_decorator.drivers.provision_host#role) needs. A part that is
      left out is not checked.
    type: dict
    suboptions:
      agent_image:
        description: The agent's image by its digest, or empty.
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
      install:
        description: How hosts get C(provision). With V(package), the controller needs none.
        type: str
        choices: [bundled, package]
        default: bundled
      source:
        description: A checkout of the project or a wheel of C(provision). If empty, the wheel in
          the collection is used, or the checkout that contains the collection.
        type: str
        default: ""
      constraints:
        description: A requirements file that replaces the one in the source, or empty.
        type: str
        default: ""
      wheelhouse:
        description: A folder with the packages that the requirements file names, or empty.
        type: str
        default: ""
      images:
        description: Archives of artifact images.
        type: list
        elements: str
        default: []
      trust_keys:
        description: Public keys that hosts trust.
        type: list
        elements: str
        default: []
      folder:
        description: A folder that has artifact images, or empty.
        type: str
        default: ""
  hook:
    description: What the role P(oci_decorator.drivers.provision_hook#role) needs.
    type: dict
    suboptions:
      install:
        description: How hosts get C(oci-decorator). With V(package), the controller needs none.
        type: str
        choices: [bundled, package]
        default: bundled
      program:
        description: The program C(oci-decorator). If empty, those in the collection are used, or
          the one that C(make build) made in the checkout that contains the collection.
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
  oci_decorator.drivers._provision_preflight:
    driver:
      config:
        drivers:
          nvidia: {version: production}
    hook: {}
"""

RETURN = r"""
source:
  description: The source from which C(provision) is installed.
  returned: with I(driver)
  type: str
programs:
  description: Paths of C(oci-decorator), by architecture.
  returned: with I(hook)
  type: dict
"""
