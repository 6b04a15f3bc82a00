"""What lies in two places of the collection says the same in both."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

import jinja2
import pytest
import yaml
from ansible_collections.oci_decorator.drivers.plugins.module_utils import (
    provision_toml as toml,
)

from kit.cache import REPOSITORY
from kit.playbooks import COLLECTION

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

_ANSIBLE = COLLECTION
_ROLES = sorted((_ANSIBLE / "roles").iterdir())


def _spec(role: Path) -> dict[str, Any]:
    document = yaml.safe_load((role / "meta/argument_specs.yml").read_text())
    options: dict[str, Any] = document["argument_specs"]["main"]["options"]
    return options


def _documenter() -> ModuleType:
    found = importlib.util.spec_from_file_location(
        "documenter", REPOSITORY / "ansible/document_roles.py"
    )
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("role", _ROLES, ids=lambda role: role.name)
def test_a_roles_readme_is_made_from_its_specs(role: Path) -> None:
    assert (role / "README.md").read_text() == _documenter().readme(role)


@pytest.mark.parametrize("role", _ROLES, ids=lambda role: role.name)
def test_every_variable_has_a_default_a_spec_and_the_roles_prefix(role: Path) -> None:
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
    spec = _spec(role)
    assert set(defaults) == set(spec)
    assert all(name.startswith(f"{role.name}_") for name in defaults)
    for name, option in spec.items():
        if "default" in option:
            assert option["default"] == defaults[name], name


def test_the_role_knows_every_key_of_provision_toml() -> None:
    text = (REPOSITORY / "docs/reference/provision-toml.schema.json").read_text()
    schema = json.loads(text)
    assert set(toml.CONFIG) == set(schema["properties"])
    for name in toml.SECTIONS:
        reference = schema["properties"][name]
        model = schema["$defs"][reference.get("$ref", "").rpartition("/")[2]]
        assert set(toml.SECTIONS[name]) == set(model["properties"]), name
    distro = schema["$defs"]["DistroConfig"]["properties"]
    assert set(toml.DISTRO) == set(distro)
    for name, model in (("archive", "ArchiveConfig"), ("repositories", "RepositoryConfig")):
        assert set(toml.DISTRO[name]["options"]) == set(schema["$defs"][model]["properties"]), name


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("precreate", "10-oci-decorator-precreate.json"),
        ("prestart", "20-oci-decorator-prestart.json"),
    ],
)
def test_podmans_hooks_are_those_of_the_crate(stage: str, name: str) -> None:
    template = _ANSIBLE / "roles/provision_hook/templates/hook.json.j2"
    # What is rendered is JSON, not a web page.
    environment = jinja2.Environment(keep_trailing_newline=True, autoescape=False)  # noqa: S701
    rendered = environment.from_string(template.read_text()).render(
        stage=stage, __provision_hook_bin="/usr/bin"
    )
    assert rendered == (REPOSITORY / "hooks/hooks.d" / name).read_text()
