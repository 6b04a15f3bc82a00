"""Examples of pages that no test can run whole: that they parse, and name what there is."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit.cache import REPOSITORY
from kit.pages import blocks, pages
from kit.process import run
from provision.config import Config
from unit.documentation.commands import refusal

# What was decided stays as it was written; all other pages are what users type from.
_PAGES = [page for page in pages() if "docs/decisions" not in str(page)]
_KUBERNETES = REPOSITORY / "docs/how-to/kubernetes.md"
_SETTINGS = set(Config.model_fields)
# What stands for something of the reader's, or for more of the same.
_PLACEHOLDER = re.compile(r"[…\[\]|:]|^\.\.\.$|^COMMAND$")
_OPTION = re.compile(r"--[a-z][a-z-]+")


_GATES = REPOSITORY / "docs/examples/gates"


def _kured() -> list[str]:
    values = yaml.safe_load((_GATES / "kured.yaml").read_text())
    return shlex.split(values["configuration"]["rebootSentinelCommand"])


def _unit() -> list[str]:
    text = (_GATES / "reboot-when-ready.service").read_text()
    (condition,) = re.findall(r"(?m)^ExecCondition=(.*)$", text)
    return shlex.split(condition.replace("$$", "$"))


@pytest.mark.parametrize(("code", "is_open"), [(0, True), (4, True), (1, False), (3, False)])
def test_what_reboots_hosts_does_so_where_no_driver_is_lost(
    code: int, tmp_path: Path, *, is_open: bool
) -> None:
    program = tmp_path / "provision"
    program.write_text(f'#!/bin/sh\n[ "$*" = "status --check" ] && exit {code}\n')
    program.chmod(0o755)
    (tmp_path / "reboot-required").touch()

    def played(words: list[str], given: str = "") -> tuple[int, str]:
        words = [word.replace("/run/reboot", "reboot") for word in words]
        path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        done = run(words, env=path, cwd=tmp_path, stdin=given, check=False)
        return done.returncode, done.stdout

    asked = "POST /v1/pre-reboot HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"
    zincati = played(["/bin/sh", str(_GATES / "fleet-lock")], asked)[1].split()[1]
    assert (zincati == "200", zincati == "409") == (is_open, not is_open)
    assert [played(words)[0] == 0 for words in (_kured(), _unit())] == [is_open] * 2


def _name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def _lines(program: str) -> Iterator[tuple[str, list[str]]]:
    """The command lines of a program in blocks of code, as words, each with its page."""
    for page in _PAGES:
        for language, block in blocks(page.read_text()):
            if language not in {"", "sh", "console"}:
                continue
            for line in re.sub(r"\\\n", " ", block).splitlines():
                command = re.search(rf"(?:^|[\s/(]){program} ([^>&)`]*)", line.partition(" #")[0])
                if command and line.lstrip().startswith((program, "/", ".venv", "sudo")):
                    yield _name(page), shlex.split(command[1])


def _command_lines(program: str) -> list[tuple[str, list[str]]]:
    found = [(page, words) for page, words in _lines(program) if words]
    return [item for item in found if not any(_PLACEHOLDER.search(word) for word in item[1][:1])]


@pytest.mark.parametrize(("page", "words"), _command_lines("provision"))
def test_a_command_line_of_provision_has_known_words(page: str, words: list[str]) -> None:
    assert refusal(words, is_whole=False) is None, page


@pytest.mark.parametrize(("page", "words"), _command_lines("oci-decorator"))
def test_a_command_line_of_oci_decorator_has_known_words(page: str, words: list[str]) -> None:
    manual = (REPOSITORY / "hooks/man/oci-decorator.8").read_text().replace("\\-", "-")
    configure = (REPOSITORY / "hooks/src/cli/configure.txt").read_text()
    known = set(_OPTION.findall(manual)) | set(_OPTION.findall(configure))
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert options <= known, page


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_every_example_of_settings_can_be_read(page: Path) -> None:
    for language, block in blocks(page.read_text()):
        if language == "json":
            json.loads(block)
        elif language == "yaml":
            assert list(yaml.safe_load_all(block))
        elif language == "toml":
            found = tomllib.loads(block)
            if found.keys() <= _SETTINGS and not _is_of_the_hook(found):
                Config.model_validate_json(json.dumps(_filled(found)))


def _is_of_the_hook(found: dict[str, Any]) -> bool:
    """Whether it is oci-decorator's: both halves have a table `policy`."""
    ours = Config.model_fields["policy"].annotation
    return "policy" in found and not found["policy"].keys() <= set(ours.model_fields)  # type: ignore[union-attr]  # it is a model


def _filled(value: Any) -> Any:  # noqa: ANN401 - whatever TOML has
    """What a reader would write in place of a `…`."""
    if isinstance(value, dict):
        return {key: _filled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item) for item in value]
    return value.replace("…", "0" * 64) if isinstance(value, str) else value


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, Any]]:
    """What the page on Kubernetes has a reader apply."""
    text = _KUBERNETES.read_text()
    return [yaml.safe_load(block) for language, block in blocks(text) if language == "yaml"]


def test_kubernetes_objects_are_complete(manifests: list[dict[str, Any]]) -> None:
    versions = {
        "RuntimeClass": "node.k8s.io/v1",
        "Pod": "v1",
        "Module": "kmm.sigs.x-k8s.io/v1beta1",
    }
    assert {manifest["kind"] for manifest in manifests} == set(versions)
    for manifest in manifests:
        assert manifest["apiVersion"] == versions[manifest["kind"]]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", manifest["metadata"]["name"])


def test_a_pods_runtime_class_is_one_of_the_page_and_of_an_engine(
    manifests: list[dict[str, Any]],
) -> None:
    classes = {one["metadata"]["name"]: one for one in manifests if one["kind"] == "RuntimeClass"}
    text = _KUBERNETES.read_text()
    for handler in (one["handler"] for one in classes.values()):
        assert f"runtimes.{handler}]" in text or f"The runtime of that name is `{handler}`" in text
    for pod in (one for one in manifests if one["kind"] == "Pod"):
        assert pod["spec"]["runtimeClassName"] in classes
        assert all(container["image"] for container in pod["spec"]["containers"])


def test_a_pod_asks_by_the_flag_of_a_recipe(manifests: list[dict[str, Any]]) -> None:
    recipe = tomllib.loads((REPOSITORY / "driver_images/nvidia/driver.toml").read_text())
    container = recipe["container"]
    asked = []
    for pod in (one for one in manifests if one["kind"] == "Pod"):
        notes = pod["metadata"].get("annotations", {})
        asked += [(k.removeprefix("oci-decorator.d/"), v) for k, v in notes.items()]
        for one in pod["spec"]["containers"]:
            asked += [(env["name"], env["value"]) for env in one.get("env", [])]
    assert len(asked) == 2
    for flag, feature in asked:
        assert flag == container["activation_flag"]
        assert feature in container["features"]
