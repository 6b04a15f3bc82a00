"""Returns the hosts of a play, and fails if there are none."""

from __future__ import annotations

DOCUMENTATION = r"""
---
name: provision_hosts
short_description: Returns the hosts that match a pattern, and fails if there are none
version_added: 0.1.0
description:
  - A play whose pattern matches no host ends with status 0 and has done nothing. With this lookup
    as its C(hosts), it fails and gives the reason.
options:
  _terms:
    description: Patterns, as C(hosts) of a play takes them.
    required: true
author:
  - The authors of provision and oci-decorator (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Do something on all GPU hosts
  hosts: "{{ query('oci_decorator.drivers.provision_hosts', 'gpu') }}"
"""

RETURN = r"""
_raw:
  description: The hosts' names.
  type: list
  elements: str
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible import context
from ansible.errors import AnsibleError
from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase

_MATCHING = "ansible.builtin.inventory_hostnames"
# '@FILE' names a file, which the inventory itself reads.
_FILE = "@"


class LookupModule(LookupBase):  # type: ignore[misc]  # Ansible has no type hints
    """The lookup."""

    def run(
        self,
        terms: Sequence[str | list[str]],
        variables: Mapping[str, Any] | None = None,
        **_: object,
    ) -> list[str]:
        """Return the hosts.

        Raises:
            AnsibleError: No host matches.
        """
        known = variables or {}
        patterns = [p for term in terms for p in ([term] if isinstance(term, str) else term)]
        hosts = self._matching(patterns, known)
        said = ",".join(patterns)
        # A syntax check needs no host.
        if context.CLIARGS.get("syntax"):
            return hosts
        if not hosts:
            raise AnsibleError(
                f"No host of the inventory matches '{said}', so nothing was done. Name an inventory"
                " that has hosts: ansible-playbook -i INVENTORY site.yml. The variable"
                " provision_hosts selects some of them; without it, the play has all."
            )
        limit = known.get("ansible_limit")
        if not limit or _FILE in limit:
            return hosts
        allowed = set(self._matching([limit], known))
        hosts = [host for host in hosts if host in allowed]
        if not hosts:
            raise AnsibleError(
                f"'--limit {limit}' leaves no host of '{said}', so nothing was done."
            )
        return hosts

    def _matching(self, patterns: list[str], known: Mapping[str, Any]) -> list[str]:
        lookup = lookup_loader.get(_MATCHING, loader=self._loader, templar=self._templar)
        found: list[str] = lookup.run(patterns, variables=known)
        return found
