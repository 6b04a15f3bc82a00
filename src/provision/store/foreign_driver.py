"""The vendor file of a driver that the distro or the vendor installed, and not provision.

The format has no patterns for files, so the files are searched once and listed. The recipe says
what belongs to the driver: ``[installed]``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from provision.catalogue import Recipe
from provision.catalogue.fields import Installed, InstalledFeature
from provision.elf import HEAD_SIZE, elf_bits
from provision.errors import NotFoundError
from provision.files import glob_in_root, in_root
from provision.sources.candidates import newest_first

# The 32-bit architectures whose programs an architecture runs, as Debian's folders name them.
_SMALLER = {"x86_64": ("i386",)}


@dataclass(frozen=True, slots=True)
class Search:
    """Where files of a driver are searched."""

    root: Path
    machine: str
    installed: Installed
    version: str

    def libraries(self, feature: InstalledFeature) -> list[str]:
        """Return the paths of a feature's libraries, with the links that lead to them."""
        folders = library_folders(self.installed, self.machine)
        found: set[str] = set()
        for name in feature.libraries:
            pattern = name.replace("{version}", self.version)
            for file in self._first(folders, pattern, feature.bits):
                found |= {file, *self._links(folders, file)}
        return sorted(found)

    def binaries(self, feature: InstalledFeature) -> list[str]:
        """Return the paths of a feature's programs."""
        names = [name.replace("{version}", self.version) for name in feature.binaries]
        found = (self._first(self.installed.binaries, name, None) for name in names)
        return sorted({path for paths in found for path in paths})

    def miscellaneous(self, feature: InstalledFeature) -> list[str]:
        """Return the paths of a feature's other files."""
        patterns = [name.replace("{version}", self.version) for name in feature.miscellaneous]
        found = (glob_in_root(self.root, pattern) for pattern in patterns)
        return sorted({f"/{path}" for paths in found for path in paths if self._exists(path)})

    def _exists(self, path: PurePosixPath) -> bool:
        return in_root(self.root, path).exists()

    def _first(self, folders: Iterable[str], pattern: str, bits: int | None) -> list[str]:
        """Return the matching files of the first folder that has any."""
        for folder in folders:
            paths = glob_in_root(self.root, f"{folder}/{pattern}")
            if found := [f"/{path}" for path in paths if self._fits(path, bits)]:
                return found
        return []

    def _fits(self, path: PurePosixPath, bits: int | None) -> bool:
        place = in_root(self.root, path)
        return place.is_file() and (bits is None or _bits(place) == bits)

    def _links(self, folders: Iterable[str], file: str) -> Iterator[str]:
        """Yield the links to a library: its soname, and the name that linkers search."""
        stem = PurePosixPath(file).name.partition(".so")[0]
        target = in_root(self.root, file)
        for folder in folders:
            for path in glob_in_root(self.root, f"{folder}/{stem}.so*"):
                if in_root(self.root, path) == target:
                    yield f"/{path}"


def foreign_vendor_file(recipe: Recipe, *, root: Path, machine: str) -> str:
    """Return the text of a vendor file for a driver that provision did not install."""
    installed = recipe.installed
    if installed is None:
        raise NotFoundError(
            f"The recipe of '{recipe.name}' does not say how to find the driver on a host.",
            resolution=f"Have provision install it: provision install {recipe.name}",
        )
    version = _version(recipe, installed, root, machine)
    search = Search(root, machine, installed, version)
    container = recipe.container
    inventory = {
        name: {
            "devices": list(feature.devices),
            "binaries": search.binaries(feature),
            "libraries": search.libraries(feature),
            "miscellaneous": search.miscellaneous(feature),
        }
        for name, feature in installed.features.items()
    }
    document = {
        "version": version,
        "log_level": container.log_level,
        "activation_flag": container.activation_flag,
        "driver_feature": list(container.driver_feature),
        **({"interfaces": list(container.interfaces)} if container.interfaces else {}),
        **({"units": container.units} if container.units else {}),
        "inventory": inventory,
    }
    return json.dumps(document, indent=2) + "\n"


def library_folders(installed: Installed, machine: str) -> list[str]:
    """Return the folders of libraries, those of the 32-bit architecture among them."""
    triplets = [f"{name}-linux-gnu" for name in (machine, *_SMALLER.get(machine, ()))]
    return list(
        dict.fromkeys(
            folder.replace("{multiarch}", triplet)
            for folder in installed.libraries
            for triplet in triplets
        )
    )


def _version(recipe: Recipe, installed: Installed, root: Path, machine: str) -> str:
    """Return the installed version; of several, the loaded one."""
    before, _, after = installed.library.partition("{version}")
    pattern = re.compile(f"{re.escape(before)}([0-9][0-9A-Za-z.+~-]*){re.escape(after)}")
    folders = library_folders(installed, machine)
    names = {
        path.name
        for folder in folders
        for path in glob_in_root(root, f"{folder}/{before}*{after}")
        if fnmatchcase(path.name, f"{before}*.*{after}")
    }
    found = {match[1] for name in names if (match := pattern.fullmatch(name))}
    if not found:
        raise NotFoundError(
            f"The driver '{recipe.name}' is not installed under '{root}': there is no"
            f" {before}VERSION in {', '.join(folders)}.",
            resolution=f"Install it from your distro, or by: provision install {recipe.name}",
        )
    loaded = _loaded_version(recipe, root)
    return loaded if loaded is not None and loaded in found else newest_first(found)[0]


def _loaded_version(recipe: Recipe, root: Path) -> str | None:
    """Return the version of the loaded module; None if it is not loaded."""
    # All sources of a driver build the same modules.
    variant = next(recipe.variants(None, recipe.default_flavour))
    module = PurePosixPath(variant.build.modules[0]).stem
    path = PurePosixPath("sys/module", module.replace("-", "_"), "version")
    try:
        return in_root(root, path).read_text().strip()
    except OSError:
        return None


def _bits(path: Path) -> int | None:
    """Return the class of an ELF file, 32 or 64; None for other files."""
    try:
        with path.open("rb") as stream:
            return elf_bits(stream.read(HEAD_SIZE))
    except OSError:
        return None
