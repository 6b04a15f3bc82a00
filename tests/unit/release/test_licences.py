"""Every file has a licence whose text is here, and what is shipped on its own brings it."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase
from typing import Any

import pytest

from kit.cache import REPOSITORY

_WORD = re.compile(r"[A-Za-z0-9.-]+")
_OPERATORS = {"AND", "OR", "WITH"}
# What leaves this repository without the rest of it.
_SHIPPED = (
    "hooks/LICENSE",
    "ansible/ansible_collections/oci_decorator/drivers/LICENSE",
)


@pytest.fixture(scope="module")
def rights() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((REPOSITORY / "REUSE.toml").read_text())[
        "annotations"
    ]
    return found


def _paths(annotation: dict[str, Any]) -> list[str]:
    path = annotation["path"]
    return [path] if isinstance(path, str) else path


def test_every_file_is_covered_by_the_first_annotation(rights: list[dict[str, Any]]) -> None:
    assert _paths(rights[0]) == ["**"]
    assert rights[0]["SPDX-License-Identifier"] == "Apache-2.0"
    assert all(one["SPDX-FileCopyrightText"] for one in rights)


def test_the_text_of_every_licence_is_here(rights: list[dict[str, Any]]) -> None:
    named = {
        word
        for one in rights
        for word in _WORD.findall(one["SPDX-License-Identifier"])
        if word not in _OPERATORS
    }
    assert {path.stem for path in (REPOSITORY / "LICENSES").iterdir()} == named
    assert all((REPOSITORY / "LICENSES" / f"{name}.txt").read_text().strip() for name in named)


def test_a_patch_has_the_licence_of_what_it_changes(rights: list[dict[str, Any]]) -> None:
    patches = sorted((REPOSITORY / "driver_images").glob("*/patches/*.patch"))
    assert patches
    for patch in patches:
        name = str(patch.relative_to(REPOSITORY))
        licences = [
            one["SPDX-License-Identifier"]
            for one in rights[1:]
            if any(fnmatchcase(name, path.replace("**", "*")) for path in _paths(one))
        ]
        assert len(licences) == 1, name
        recipe = tomllib.loads((patch.parents[1] / "driver.toml").read_text())
        known = {
            word
            for one in recipe["flavours"].values()
            for text in one["licences"]
            for word in _WORD.findall(text)
        }
        assert set(_WORD.findall(licences[0])) <= known | _OPERATORS, name


@pytest.mark.parametrize("name", _SHIPPED)
def test_what_is_shipped_brings_its_licence(name: str) -> None:
    assert (REPOSITORY / name).read_bytes() == (REPOSITORY / "LICENSE").read_bytes()
