"""Checks that the controller has everything that hosts need, before a host is touched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.oci_decorator.drivers.plugins.module_utils import preflight
from ansible_collections.oci_decorator.drivers.plugins.module_utils.provision_toml import secrets_in

_HEAD = "The controller is not ready. Correct this, and run the playbook again:"
_COLLECTION = Path(__file__).resolve().parents[2]


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible has no type hints
    """The action, which connects to no host."""

    _supports_check_mode = True
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Check, and return what was found."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, given = self.validate_argument_spec(
            argument_spec={
                "host": _part({"agent_image": _TEXT}),
                "driver": _part(
                    {
                        "config": {"type": "dict", "default": {}},
                        "install": _INSTALL,
                        "source": _TEXT,
                        "constraints": _TEXT,
                        "wheelhouse": _TEXT,
                        "trust_keys": {"type": "list", "elements": "str", "default": []},
                        "folder": _TEXT,
                        "catalogue": _TEXT,
                    }
                ),
                "hook": _part({"install": _INSTALL, "program": _TEXT}),
            },
        )
        if not any(given.values()):
            self._refuse_tags()
        mistakes: list[str] = []
        if given["host"] is not None:
            mistakes += preflight.image_mistakes(given["host"]["agent_image"])
        if given["driver"] is not None:
            result["source"], wrong = self._driver(given["driver"])
            mistakes += wrong
        if given["hook"] is not None:
            program = self._path(given["hook"]["program"])
            paths = [Path(program)] if program else preflight.own_programs(_COLLECTION)
            found, wrong = preflight.programs_by_machine(paths)
            result["programs"] = found
            mistakes += wrong if given["hook"]["install"] == "bundled" else []
        if mistakes:
            raise AnsibleActionFail("\n".join([_HEAD, *preflight.numbered(mistakes)]))
        return {**result, "changed": False}

    def _refuse_tags(self) -> None:
        """Refuse '--tags' that would select none of the playbook's tasks."""
        selected = context.CLIARGS.get("tags") or ["all"]
        # What a playbook that imports this one has given all its tasks.
        given = set(self._task.tags) - {"always"}
        groups = {"all", "tagged"} if given else {"all", "untagged"}
        if not (groups | given) & set(selected):
            raise AnsibleActionFail(
                f"No task has the tags '{','.join(selected)}', so nothing was done. The roles have"
                " no tags: leave --tags out, and select hosts by --limit or provision_hosts."
            )

    def _driver(self, given: Mapping[str, Any]) -> tuple[str, list[str]]:
        """Return where provision comes from, and what is wrong."""
        source = self._path(given["source"])
        path = Path(source) if source else preflight.own_source(_COLLECTION)
        is_bundled = given["install"] == "bundled"
        wrong = preflight.source_mistakes(path) if is_bundled else []
        packages = []
        if path is not None and is_bundled and not wrong:
            constraints = self._path(given["constraints"])
            wheelhouse = self._path(given["wheelhouse"])
            packages = preflight.packages_mistakes(path, constraints, wheelhouse)
        found = [
            *preflight.config_mistakes(given["config"], path),
            *wrong,
            *packages,
            *preflight.keys_mistakes([self._path(key) for key in given["trust_keys"]]),
            *preflight.folder_mistakes(self._path(given["folder"]), self._drivers(given)),
            *preflight.catalogue_mistakes(self._path(given["catalogue"])),
        ]
        for secret in secrets_in(given["config"]):
            found = [mistake.replace(secret, "********") for mistake in found]
        return str(path or ""), found

    def _drivers(self, given: Mapping[str, Any]) -> list[str]:
        drivers = given["config"].get("drivers")
        return list(drivers) if isinstance(drivers, Mapping) else []

    def _path(self, name: str) -> str:
        """Return a path on the controller. Relative paths begin at the playbook's folder."""
        return str(self._loader.path_dwim(name)) if name else ""


_TEXT: dict[str, Any] = {"type": "str", "default": ""}
_INSTALL: dict[str, Any] = {
    "type": "str",
    "choices": ["bundled", "package"],
    "default": "bundled",
}


def _part(options: dict[str, Any]) -> dict[str, Any]:
    return {"type": "dict", "options": options}
