"""The table of drivers and kernels in docs/reference/support.md says what the recipes say."""

from __future__ import annotations

import re

import pytest

from kit.cache import REPOSITORY
from provision.catalogue import load_entry

_PAGE = (REPOSITORY / "docs/reference/support.md").read_text().partition("\n### Kernels\n")[2]
_ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in _PAGE.partition("\n### ")[0].splitlines()
    if line.startswith("|")
]
_KNOWN = {"built": "works", "said": "works", "fails": "fails", "untried": "untried"}


def test_every_driver_of_the_catalogue_is_in_it() -> None:
    named = {row[0].split("`")[1] for row in _ROWS[2:]}
    assert named == {path.parent.name for path in REPOSITORY.glob("driver_images/*/driver.toml")}


@pytest.mark.parametrize("row", _ROWS[2:], ids=[row[0] for row in _ROWS[2:]])
def test_a_row_says_what_the_recipe_says(row: list[str]) -> None:
    name, versions = row[0].split("`")[1:]
    recipe = load_entry(REPOSITORY / "driver_images" / name).recipe
    listed = [
        release.version for source in recipe.sources for release in getattr(source, "releases", ())
    ]
    for version in re.findall(r"[0-9][0-9.]*", versions) or listed:
        # A branch stands for the version that was tried.
        tried = next((one for one in listed if one.startswith(f"{version}.")), version)
        standings = {
            kernel: recipe.standing(
                version=tried,
                flavour=recipe.default_flavour,
                kernel_release=f"{kernel}.0-1-amd64",
            )
            for kernel in _ROWS[0][1:]
        }
        found = [standing.known for standing in standings.values()]
        assert found == [_KNOWN[cell] for cell in row[1:]], version
        for (kernel, standing), cell in zip(standings.items(), row[1:], strict=True):
            if cell in {"built", "fails"}:
                assert standing.row is not None
                by = standing.row.by or ""
                assert _was_built(by, kernel), (version, kernel, by)


def _was_built(by: str, kernel: str) -> bool:
    """Return whether the recipe says that it was built here, on that kernel if it says where."""
    places = re.findall(r"built here on ([0-9. ,and]+)", by)
    return "built here" in by and (not places or kernel in re.findall(r"[0-9.]+", places[0]))
