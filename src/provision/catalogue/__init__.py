"""The catalogue of drivers: a folder each, with a ``driver.toml`` and its patches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from provision.catalogue.fields import version_matches
from provision.catalogue.recipe import Recipe, Variant
from provision.catalogue.source_models import RecipeSource
from provision.documents import MAX_BYTES, how_to_correct, load_toml
from provision.errors import ConfigError, Mistake, NotFoundError, choices
from provision.trust import open_regular, require_trusted

__all__ = [
    "Catalogue",
    "Entry",
    "Recipe",
    "RecipeSource",
    "Variant",
    "load_entry",
    "version_matches",
]

RECIPE = "driver.toml"
PATCHES = "patches"


class Entry(NamedTuple):
    """A driver of the catalogue."""

    folder: Path
    recipe: Recipe
    # Contents of the patches that the recipe names, by file name.
    patches: Mapping[str, bytes]

    def patch_sha256(self, file: str) -> str:
        """Return the checksum of a patch that the recipe names."""
        return hashlib.sha256(self.patches[file]).hexdigest()


def load_entry(folder: Path) -> Entry:
    """Read a driver's folder."""
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
            with open_regular(file) as stream:
                content = stream.read(MAX_BYTES + 1)
            patches[patch.file] = content
            if len(content) > MAX_BYTES:
                mistakes.append(
                    Mistake(f"patches.{number}.file", f"'{file}' is larger than {MAX_BYTES} bytes")
                )
        else:
            mistakes.append(Mistake(f"patches.{number}.file", f"there is no file '{file}'"))
    if mistakes:
        raise ConfigError(str(path), mistakes, resolution=how_to_correct(path, Recipe))
    return Entry(folder, recipe, patches)


class Catalogue:
    """The drivers in some folders; each is read when it is used.

    Args:
        folders: Folders that hold driver folders; a driver in a later one masks one of the same
            name in an earlier one. Missing folders are skipped.
        settled: Those of them that a host's settings name: a driver there that users other than
            root may change is refused.
    """

    def __init__(self, folders: Sequence[Path], settled: Sequence[Path] = ()) -> None:
        self.folders = tuple(folders)
        self._settled = frozenset(settled)
        self._drivers = {
            path.parent.name: path.parent
            for folder in folders
            for path in sorted(folder.glob(f"*/{RECIPE}"))
        }

    @property
    def names(self) -> list[str]:
        """The drivers' names, sorted."""
        return sorted(self._drivers)

    def entry(self, name: str) -> Entry:
        """Return a driver.

        Raises:
            NotFoundError: The name is unknown; the message lists the known drivers.
        """
        if name not in self._drivers:
            raise self._unknown(name)
        folder = self._drivers[name]
        if folder.parent in self._settled:
            for path in (folder / RECIPE, *sorted((folder / PATCHES).glob("*"))):
                require_trusted(path)
        return load_entry(folder)

    def entries(self) -> tuple[list[Entry], list[ConfigError]]:
        """Return all readable drivers, and the errors of the others."""
        entries: list[Entry] = []
        problems: list[ConfigError] = []
        for name in self.names:
            try:
                entries.append(self.entry(name))
            except ConfigError as error:
                problems.append(error)
        return entries, problems

    def _unknown(self, name: str) -> NotFoundError:
        return NotFoundError(
            f"There is no driver '{name}'.",
            resolution=f"{choices(name, self.names)} To add one, add a"
            f" folder '{name}' with a {RECIPE} to one of the catalogue's folders.",
            details="\n".join(f"looked in {folder}" for folder in self.folders),
        )
