"""The collection: what lies in two places is the same, and what its modules ask and hide."""

from __future__ import annotations

import ast
import importlib.util
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest
import yaml
from ansible_collections.oci_decorator.drivers.plugins.module_utils import (
    provision_toml as toml,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.provision_toml import (
    secrets_in,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.runtimes import (
    leaves_default,
    with_default,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.toml_text import dumps
from hypothesis import given
from hypothesis import strategies as st

from kit.cache import REPOSITORY
from kit.playbooks import COLLECTION
from unit.secret_forms import IN_SETTINGS, PUBLIC

_ROLES = sorted((COLLECTION / "roles").iterdir())


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


def test_nothing_decides_by_what_programs_say_in_the_hosts_language() -> None:
    folders = ("roles", "playbooks")
    paths = [path for name in folders for path in (COLLECTION / name).rglob("*.yml")]
    assert paths
    assert [path for path in paths if ".stderr" in path.read_text()] == []


def _without_encoding(source: str) -> Iterator[str]:
    """Yield the calls that read or write text in the encoding of whatever locale there is."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            named = any(keyword.arg == "encoding" for keyword in node.keywords)
            if node.func.attr in {"read_text", "write_text", "fdopen"} and not named:
                yield ast.unparse(node)


def test_texts_on_hosts_are_utf_8_whatever_their_locale() -> None:
    paths = sorted((COLLECTION / "plugins").rglob("*.py"))
    assert paths
    found = {path.name: list(_without_encoding(path.read_text())) for path in paths}
    assert {name: calls for name, calls in found.items() if calls} == {}


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
    template = COLLECTION / "roles/provision_hook/templates/hook.json.j2"
    # What is rendered is JSON, not a web page.
    environment = jinja2.Environment(keep_trailing_newline=True, autoescape=False)  # noqa: S701
    rendered = environment.from_string(template.read_text()).render(
        stage=stage, __provision_hook_bin="/usr/bin"
    )
    assert rendered == (REPOSITORY / "hooks/hooks.d" / name).read_text()


_SCALARS = st.booleans() | st.integers(-(2**62), 2**62) | st.text(st.characters(codec="utf-8"))
_TABLES = st.recursive(
    st.dictionaries(
        st.text(st.characters(codec="utf-8")),
        _SCALARS
        | st.lists(_SCALARS)
        | st.lists(st.dictionaries(st.text(st.characters(codec="utf-8")), _SCALARS)),
    ),
    lambda inner: st.dictionaries(st.text(st.characters(codec="utf-8")), inner | _SCALARS),
    max_leaves=8,
)


@given(_TABLES)
def test_what_is_written_is_read(document: dict[str, object]) -> None:
    assert tomllib.loads(dumps(document)) == document


def test_a_driver_without_settings_is_named() -> None:
    text = dumps({"drivers": {"nvidia": {}, "onload": {"version": "9"}}, "policy": {"keep": 2}})
    assert text == ('[drivers.nvidia]\n\n[drivers.onload]\nversion = "9"\n\n[policy]\nkeep = 2\n')


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError, match=r"1\.5 can't be written"):
        dumps({"a": 1.5})


@pytest.mark.parametrize(
    ("document", "secrets"),
    [
        ({"signing": {"key": "pkcs11:token=x?pin-value=1234&y=z"}}, {"1234"}),
        ({"catalogue": ["http://:pw@a/b", "plain"]}, {"pw"}),
        ({"url": "https://updates.example/repo?0123456789abcdef0123"}, {"0123456789abcdef0123"}),
        ({"url": "https://m.example/a?release=9&arch=x86_64"}, set()),
        ({"drivers": {"nvidia": {}}, "policy": {"keep": 2, "prebuild": True}}, set()),
        ('mirror = "https://me:pw@a/b"\nother = "http://b:8080/c@d"\n', {"pw"}),
    ],
)
def test_secrets_are_found(document: object, secrets: set[str]) -> None:
    assert secrets_in(document) == secrets


@pytest.mark.parametrize(("text", "secret", "_shown"), IN_SETTINGS)
def test_ansible_hides_what_provision_hides(text: str, secret: str, _shown: str) -> None:
    assert secret in secrets_in({"distros": {"debian": {"archive": {"mirror": text}}}})


@pytest.mark.parametrize("text", PUBLIC)
def test_ansible_shows_what_provision_shows(text: str) -> None:
    assert secrets_in(text) == set()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('{"default-runtime": "oci-decorator"}', "{}", True),
        ('{"default-runtime": "oci-decorator"}', None, True),
        ('\ufeff{"default-runtime": "oci-decorator"}', "{}", True),
        ('{"default-runtime": "oci-decorator"}', '{"default-runtime": "kata"}', False),
        ('{"default-runtime": "kata"}', "{}", False),
        (None, None, False),
        ('{"default-runtime": "oci-decorator"} // x', "{}", False),
        ("[]", "{}", False),
    ],
)
def test_a_removed_default_is_noticed(
    before: str | None, after: str | None, *, expected: bool
) -> None:
    assert leaves_default({"before": before, "after": after}, "oci-decorator") is expected


def test_another_default_changes_nothing_else() -> None:
    text = '{"debug": true, "default-runtime": "oci-decorator"}'
    assert json.loads(with_default(text, "runc")) == {"debug": True, "default-runtime": "runc"}
