"""Installs a Python on a host without one, with a shell, tar and sha256sum."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.hashing import secure_hash
from ansible_collections.oci_decorator.drivers.plugins.module_utils.host_python import (
    install_script,
    look_script,
    parse_look,
    remove_script,
)

_DEFAULT_PREFIX = "/opt/provision/python"
_PREFIX = re.compile(r"(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*){2,}")
_MAKE = "'provision export host-python' makes one, in a container"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible has no type hints
    """The action."""

    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Examine the host, and unpack or remove the Python if necessary."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, given = self.validate_argument_spec(
            argument_spec={
                "archive": {"type": "path"},
                "sha256": {"type": "str"},
                "prefix": {"type": "path", "default": _DEFAULT_PREFIX},
                "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            },
            required_if=[("state", "present", ["archive"])],
        )
        prefix = given["prefix"]
        if not _PREFIX.fullmatch(prefix):
            raise AnsibleActionFail(f"'{prefix}' is no absolute path of two folders or more.")
        result["interpreter"] = f"{prefix}/bin/python3"
        there = parse_look(self._sh(look_script(prefix), "look for a Python"))
        if given["state"] == "absent":
            result["changed"] = there.digest is not None
            if there.digest is not None and not self._task.check_mode:
                self._sh(remove_script(prefix), "remove the Python")
            return result
        archive, digest = self._archive(given["archive"], given["sha256"])
        result["digest"] = digest
        result["changed"] = not (there.digest == digest and there.works)
        if result["changed"] and not self._task.check_mode:
            self._install(archive, digest, prefix)
        return result

    def _archive(self, name: str, expected: str | None) -> tuple[Path, str]:
        """Return the archive on the controller, and its checksum."""
        path = Path(self._loader.path_dwim(name))
        if not path.is_file():
            raise AnsibleActionFail(
                f"The archive '{path}' (provision_host_python_archive) is not there: {_MAKE}."
            )
        digest: str = secure_hash(str(path), hash_func=hashlib.sha256)
        if expected and expected.lower() != digest:
            wrong = "" if _SHA256.fullmatch(expected.lower()) else ", which is no checksum"
            raise AnsibleActionFail(
                f"The archive '{path}' has the sha256 {digest}, not {expected}{wrong}"
                " (provision_host_python_archive_sha256)."
            )
        return path, digest

    def _install(self, archive: Path, digest: str, prefix: str) -> None:
        folder = self._make_tmp_path()
        try:
            there = self._connection._shell.join_path(folder, "python.tar.gz")  # noqa: SLF001 - Ansible has no other way
            self._transfer_file(str(archive), there)
            self._sh(install_script(there, digest, prefix), "unpack the Python")
        finally:
            self._remove_tmp_path(folder)

    def _sh(self, script: str, what: str) -> str:
        """Run a script on the host, as the user that tasks become."""
        done = self._low_level_execute_command(f"/bin/sh -euc {shlex.quote(script)}")
        if done["rc"] != 0:
            # With a terminal, both streams arrive as one, and ssh writes to the other.
            said = [done[name].strip() for name in ("stdout", "stderr")]
            text = "\n".join(part for part in said if part) or f"status {done['rc']}"
            raise AnsibleActionFail(f"The host could not {what}: {text}")
        printed: str = done["stdout"]
        return printed
