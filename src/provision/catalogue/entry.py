"""One driver's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.catalogue.recipe import Recipe
from provision.documents import MAX_BYTES, load_toml
from provision.errors import ConfigError, Mistake

RECIPE = "driver.toml"
PATCHES = "patches"


@dataclass(frozen=True, slots=True)
class Entry:
    """A driver of the catalogue.

    Attributes:
        folder: Where it lies.
        recipe: Its driver.toml.
        patches: Contents of the patches that the recipe names, by file name.
    """

    folder: Path
    recipe: Recipe
    patches: Mapping[str, bytes]

    def patch_sha256(self, file: str) -> str:
        """Return the checksum of a patch that the recipe names."""
        return hashlib.sha256(self.patches[file]).hexdigest()


def load_entry(folder: Path) -> Entry:
    """Read a driver's folder.

    Raises:
        NotFoundError: It has no driver.toml.
        ConfigError: driver.toml has mistakes, or doesn't fit the folder; all of them are named.
    """
    path = folder / RECIPE
    recipe = load_toml(path, Recipe)
    mistakes = []
    if recipe.name != folder.name:
        mistakes.append(
            Mistake("name", f"'{recipe.name}' must be the folder's name, '{folder.name}'")
        )
    patches = {}
    for number, patch in enumerate(recipe.patches):
        file = folder / PATCHES / patch.file
        if patch.file in patches:
            mistakes.append(Mistake(f"patches.{number}.file", f"'{patch.file}' is named twice"))
        elif file.is_file():
            with file.open("rb") as stream:
                content = stream.read(MAX_BYTES + 1)
            patches[patch.file] = content
            if len(content) > MAX_BYTES:
                mistakes.append(
                    Mistake(f"patches.{number}.file", f"'{file}' is larger than {MAX_BYTES} bytes")
                )
        else:
            mistakes.append(Mistake(f"patches.{number}.file", f"there is no file '{file}'"))
    if mistakes:
        raise ConfigError(str(path), mistakes)
    return Entry(folder, recipe, patches)
