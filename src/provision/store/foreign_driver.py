"""The vendor file for a driver that the distro or the vendor installed, and not provision.

The format has no patterns for files, so the files are searched once and listed. The recipe says
what belongs to the driver: ``[installed]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from provision.catalogue import Recipe
from provision.catalogue.fields import Installed
from provision.elf import HEAD_SIZE, elf_bits
from provision.errors import NotFoundError
from provision.files import glob_in_root, in_root, text_in_root
from provision.sources.candidates import newest_first

# The 32-bit architectures whose programs an architecture runs, as Debian's folders name them.
_SMALLER = {"x86_64": ("i386",)}


def foreign_vendor_file(recipe: Recipe, *, root: Path, machine: str) -> str:
    """Return the text of a vendor file for a driver that provision did not install."""
    installed = recipe.installed
    if installed is None:
        raise NotFoundError(
            f"The recipe of '{recipe.name}' does not say how to find the driver on a host.",
            resolution="To have it installed, name it in /etc/provision/provision.toml"
            f" ([drivers.{recipe.name}]), then: provision apply",
        )
    if recipe.container.activation_flag is None:
        raise NotFoundError(
            f"Containers get nothing of '{recipe.name}': its recipe has no [container].",
            resolution="Load it on the host; no vendor file is needed.",
        )
    version = _version(recipe, installed, root, machine)
    folders = library_folders(installed, machine)

    def searched(names: Iterable[str], places: Iterable[str], bits: int | None) -> list[str]:
        patterns = [name.replace("{version}", version) for name in names]
        files = [file for pattern in patterns for file in _first(root, places, pattern, bits)]
        # Programs have none.
        links = [link for file in files for link in _links(root, places, file)]
        return sorted({f"/{path}" for path in (*files, *links)})

    inventory = {
        name: {
            "devices": list(feature.devices),
            "binaries": searched(feature.binaries, installed.binaries, None),
            "libraries": searched(feature.libraries, folders, feature.bits),
            "miscellaneous": sorted(
                {
                    f"/{path}"
                    for name in feature.miscellaneous
                    for path in glob_in_root(root, name.replace("{version}", version))
                    if in_root(root, path).exists()
                }
            ),
        }
        for name, feature in installed.features.items()
    }
    return recipe.container.vendor_file(version, inventory)


def _first(
    root: Path, folders: Iterable[str], pattern: str, bits: int | None
) -> list[PurePosixPath]:
    """Return the matching files of the first folder that has any."""
    for folder in folders:
        paths = glob_in_root(root, f"{folder}/{pattern}")
        places = {path: in_root(root, path) for path in paths}
        if files := [p for p in paths if places[p].is_file() and bits in {None, _bits(places[p])}]:
            return files
    return []


def _links(root: Path, folders: Iterable[str], file: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the links to a library: its soname, and the name that linkers search."""
    # Of the running host, in_root() resolves nothing.
    target = in_root(root, file).resolve()
    for folder in folders:
        for path in glob_in_root(root, f"{folder}/{file.name.partition('.so')[0]}.so*"):
            if in_root(root, path).resolve() == target:
                yield path


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
            resolution=f"Install it from your distro; or name it in /etc/provision/provision.toml"
            f" ([drivers.{recipe.name}]), then: provision apply",
        )
    loaded = _loaded_version(recipe, root)
    return loaded if loaded is not None and loaded in found else newest_first(found)[0]


def _loaded_version(recipe: Recipe, root: Path) -> str | None:
    # All sources of a driver build the same modules.
    variant = next(recipe.variants(None, recipe.default_flavour))
    module = PurePosixPath(variant.build.modules[0]).stem
    return text_in_root(root, f"sys/module/{module.replace('-', '_')}/version")


def _bits(path: Path) -> int | None:
    try:
        with path.open("rb") as stream:
            return elf_bits(stream.read(HEAD_SIZE))
    except OSError:
        return None
