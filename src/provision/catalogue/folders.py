"""Finding drivers by name or by hardware."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from provision.catalogue.entry import RECIPE, Entry, load_entry
from provision.errors import ConfigError, NotFoundError


class Catalogue:
    """The drivers of some folders. Each is read when it is asked for.

    Args:
        folders: Folders that hold driver folders; a driver in a later one masks one of the same
            name in an earlier one. A folder that is not there holds none.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(folders)
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
            NotFoundError: There is none of that name; the message lists those that there are.
            ConfigError: Its driver.toml has mistakes; all of them are named.
        """
        if name not in self._drivers:
            raise self._unknown(name)
        return load_entry(self._drivers[name])

    def entries(self) -> tuple[list[Entry], list[ConfigError]]:
        """Return all drivers that can be read, and what is wrong with the others."""
        entries: list[Entry] = []
        problems: list[ConfigError] = []
        for name in self.names:
            try:
                entries.append(self.entry(name))
            except ConfigError as error:
                problems.append(error)
        return entries, problems

    def _unknown(self, name: str) -> NotFoundError:
        close = difflib.get_close_matches(name.lower(), self.names, n=1, cutoff=0.5)
        guess = f"Did you mean '{close[0]}'? " if close else ""
        return NotFoundError(
            f"There is no driver '{name}'.",
            resolution=f"{guess}There are {', '.join(self.names) or 'none'}. To add one, add a"
            f" folder '{name}' with a {RECIPE} to one of the catalogue's folders.",
            details="\n".join(f"looked in {folder}" for folder in self.folders),
        )
