"""Drivers that the distro or the vendor installed, and not provision: their use, their removal.

Two installations of one driver conflict: udev and modprobe load the copy in ``/lib/modules`` by its
name, whatever the store has. Here, files are only read.

The format has no patterns for files, so the files are searched once and listed. The recipe says
what belongs to the driver: ``[installed]``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from provision.build.workspace import Settings
from provision.catalogue import Recipe
from provision.catalogue.fields import Installed
from provision.elf import HEAD_SIZE, elf_bits
from provision.errors import NotFoundError, ProvisionError
from provision.files import glob_in_root, in_root
from provision.kmod.verify import stored_manifest
from provision.manifest import Manifest
from provision.sources.candidates import newest_first
from provision.store.layout import Layout

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
    container = recipe.container
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
    path = PurePosixPath("sys/module", module.replace("-", "_"), "version")
    try:
        return in_root(root, path).read_text().strip()
    except OSError:
        return None


def _bits(path: Path) -> int | None:
    try:
        with path.open("rb") as stream:
            return elf_bits(stream.read(HEAD_SIZE))
    except OSError:
        return None


# Folders below /lib/modules/KERNEL where other tools than the distro's kernel put modules.
_MODULE_FOLDERS = (
    "updates",
    "extra",
    "weak-updates",
    "kernel/drivers/video",
    "kernel/drivers/extra",
)
_BUILT = re.compile(r"^\s*BUILT_MODULE_NAME(?:\[\d+\])?=[\"']?([\w-]+)", re.MULTILINE)
_DPKG = "var/lib/dpkg/info"
# Debian's hosts may have rpm too.
_RPM = ("var/lib/rpm", "usr/lib/sysimage/rpm")


@dataclass(frozen=True, slots=True)
class OtherInstallation:
    """Another installation of a driver."""

    driver: str
    # What shows it, in one line.
    seen: str
    # The commands that remove it.
    remove: str
    # How to have it again.
    restore: str

    @property
    def resolution(self) -> str:
        """What to do, in which order, and the way back."""
        return (
            "1. 'provision apply' makes and installs this driver; it waits while the other one's"
            f" modules are in use. 2. Remove the other: {self.remove}. 3. Stop what uses the driver"
            " and run 'provision apply' again, or reboot. To return, remove"
            f" [drivers.{self.driver}] from /etc/provision/provision.toml, run 'provision apply',"
            f" and {self.restore}."
        )


def other_installations(settings: Settings, drivers: Iterable[str]) -> list[OtherInstallation]:
    """Return what a host has of drivers that provision did not install."""
    found = []
    for name in drivers:
        recipe = None
        with suppress(ProvisionError):
            recipe = settings.catalogue.entry(name).recipe
        manifest = stored_manifest(Layout(settings.root, name).current)
        found.append(other_installation(settings.root, name, recipe, manifest))
    return [one for one in found if one is not None]


def other_installation(
    root: Path, driver: str, recipe: Recipe | None, manifest: Manifest | None
) -> OtherInstallation | None:
    """Return what a host has of a driver that provision did not install; None: nothing."""
    names = _modules(recipe, manifest) or {driver}
    copies = list(_copies(root, names))
    trees = list(_dkms_trees(root, driver, names))
    installers = [
        name
        for name in (recipe.installed.uninstallers if recipe and recipe.installed else ())
        if in_root(root, name).is_file()
    ]
    if not copies and not trees and not installers:
        return None
    sources = {tree: f"usr/src/{tree.replace('/', '-')}/dkms.conf" for tree in trees}
    files = [*copies, *sources.values(), *installers]
    owners = _debian_owners(root, [*files, *_libraries(root, recipe)])
    packages = " ".join(sorted({name for names in owners.values() for name in names}))
    # An installer removes what it gave to DKMS, and a package what it owns.
    uninstallers = [f"/{name}" for name in installers if name not in owners]
    commands, restore = list(uninstallers), "install it again as it was installed"
    if uninstallers:
        restore = "run the vendor's installer again"
    elif not in_root(root, _DPKG).is_dir() and any(in_root(root, one).is_dir() for one in _RPM):
        remove = "zypper remove" if in_root(root, "etc/zypp").is_dir() else "dnf remove"
        one = next(iter([*sources.values(), *copies]))
        commands.append(f"{remove} $(rpm -qf --queryformat '%{{NAME}} ' /{one})")
    if packages:
        commands.append(f"apt-get purge {packages} && apt-get autoremove --purge")
        restore = f"run: apt-get install {packages}"
    if not commands:
        commands = [f"dkms remove {tree} --all" for tree in trees]
    if not commands:
        commands = [f"rm {' '.join(f'/{name}' for name in copies)} && depmod -a"]
    return OtherInstallation(driver, _seen(files, trees), "; ".join(commands), restore)


def _seen(files: list[str], trees: list[str]) -> str:
    shown = [f"DKMS has {', '.join(trees)}"] if trees else []
    others = [f"/{name}" for name in files if not name.startswith("usr/src/")]
    if others:
        shown.append(others[0] + (f" and {len(others) - 1} more" if len(others) > 1 else ""))
    return f"another installation of the same modules: {'; '.join(shown)}"


def _modules(recipe: Recipe | None, manifest: Manifest | None) -> set[str]:
    names = {module.name for module in manifest.modules} if manifest else set()
    if recipe is not None:
        variants = [one for flavour in recipe.flavours for one in recipe.variants(None, flavour)]
        paths = [PurePosixPath(path).name for one in variants for path in one.build.modules]
        names |= {path.partition(".")[0] for path in paths if "*" not in path}
    return {name.replace("-", "_") for name in names}


def _copies(root: Path, names: Collection[str]) -> Iterator[str]:
    """Yield the module files that modprobe finds by name, of any kernel."""
    for kernel in glob_in_root(root, "lib/modules/*"):
        for folder in _MODULE_FOLDERS:
            top = in_root(root, kernel / folder)
            for path in sorted(top.rglob("*.ko*")):
                if path.name.partition(".")[0].replace("-", "_") in names:
                    yield str(kernel / folder / path.relative_to(top))


def _dkms_trees(root: Path, driver: str, names: Collection[str]) -> Iterator[str]:
    """Yield what DKMS knows of a driver, as ``NAME/VERSION``."""
    for tree in glob_in_root(root, "var/lib/dkms/*/*"):
        source = in_root(root, tree / "source")
        if not os.path.lexists(in_root(root, tree / "source", follow=False)):
            continue
        try:
            text = (source / "dkms.conf").read_text(errors="replace")
        except OSError:
            text = ""
        built = {name.replace("-", "_") for name in _BUILT.findall(text)}
        if built & set(names) or tree.parent.name.partition("-")[0] == driver:
            yield f"{tree.parent.name}/{tree.name}"


def _libraries(root: Path, recipe: Recipe | None) -> Iterator[str]:
    """Yield the files that show the user space of another installation."""
    if recipe is None or recipe.installed is None:
        return
    name = recipe.installed.library.replace("{version}", "*")
    for folder in recipe.installed.libraries:
        yield from map(
            str, glob_in_root(root, f"{folder.replace('{multiarch}', '*-linux-gnu*')}/{name}")
        )


def _debian_owners(root: Path, paths: Iterable[str]) -> dict[str, set[str]]:
    """Return the installed packages that files belong to, where dpkg installed them.

    Source: dpkg-query(1); a list has a line for each file, from before /usr was merged or after.
    """
    wanted = {
        spelt: path
        for path in paths
        for spelt in (f"/{path}", f"/usr/{path}", f"/{path.removeprefix('usr/')}")
    }
    owners: dict[str, set[str]] = {}
    if not wanted:
        return owners
    for name in glob_in_root(root, f"{_DPKG}/*.list"):
        lines = in_root(root, name).read_text(errors="replace").splitlines()
        for line in wanted.keys() & set(lines):
            owners.setdefault(wanted[line], set()).add(name.stem.partition(":")[0])
    return owners
