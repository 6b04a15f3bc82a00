"""Drivers that provision did not install, but the distro, DKMS or the vendor's installer.

Beside ours, such an installation conflicts: udev and modprobe load the copy in ``/lib/modules`` by
its name, whatever the store has. Without ours, containers get it by a vendor file: that format has
no patterns, so the files are searched once and listed. The recipe says what belongs to the driver:
``[installed]``. Here, files are only read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from provision.catalogue import Recipe
from provision.catalogue.fields import Installed
from provision.distros import version_key
from provision.elf import HEAD_SIZE, elf_bits
from provision.errors import NotFoundError
from provision.files import glob_in_root, in_root, text_in_root
from provision.host import STORE
from provision.manifest import Manifest

# Folders below /lib/modules/KERNEL where other tools than the distro's kernel put modules.
_MODULE_FOLDERS = (
    "updates",
    "extra",
    "weak-updates",
    "kernel/drivers/video",
    "kernel/drivers/extra",
)
_BUILT = re.compile(r"^\s*BUILT_MODULE_NAME(?:\[\d+\])?=[\"']?([\w-]+)", re.MULTILINE)
_DPKG = "var/lib/dpkg"
# Debian's hosts may have rpm too.
RPM_DATABASES = ("var/lib/rpm", "usr/lib/sysimage/rpm")


class OtherInstallation(NamedTuple):
    """Another installation of a driver."""

    driver: str
    # What is there of it, in one line.
    seen: str
    # The shell commands that remove it, in their order, without a question.
    remove: tuple[str, ...]
    # How to have it again.
    restore: str

    @property
    def resolution(self) -> str:
        """What to do, in which order, and the way back."""
        back = (
            f"To return, remove [drivers.{self.driver}] from /etc/provision/provision.toml, run"
            f" 'provision apply', and {self.restore}"
        )
        # Commands stand in lines of their own, to be pasted.
        lines = (
            "1. Run 'provision apply', which makes this driver; what is in use stays loaded.",
            "2. Stop what uses the driver, and remove the other installation:",
            *(f"  {command}" for command in self.remove),
            "3. Run 'provision apply' again, or reboot.",
            back,
        )
        return "\n    ".join(lines)


def other_installation(
    root: Path, driver: str, recipe: Recipe | None, manifest: Manifest | None
) -> OtherInstallation | None:
    """Return what a host has of a driver that provision did not install; None: nothing."""
    names = _modules(recipe, manifest) or {driver}
    copies = list(_copies(root, names))
    trees = list(_dkms_trees(root, driver, names))
    uninstallers = {
        command: path
        for command in (recipe.installed.uninstallers if recipe and recipe.installed else ())
        if in_root(root, path := command.split()[0]).is_file()
    }
    libraries = list(_libraries(root, recipe))
    if not (copies or trees or uninstallers or libraries):
        return None
    sources = {tree: f"usr/src/{tree.replace('/', '-')}/dkms.conf" for tree in trees}
    files = [*copies, *sources.values(), *uninstallers.values()]
    kept = f"/{STORE}/replaced-{driver}"
    owners = _debian_owners(root, [*files, *libraries])
    remove = [f"/{command}" for command, path in uninstallers.items() if path not in owners]
    restore = "run the vendor's installer again" if remove else "install it again as it was"
    has_rpm = any(in_root(root, one).is_dir() for one in RPM_DATABASES)
    if not remove and has_rpm and not in_root(root, _DPKG).is_dir():
        present = [name for name in (*files, *libraries) if in_root(root, name).exists()]
        remove, restore = _by_rpm(root, present, kept)
    if owners:
        by_apt, restore = _by_apt(root, owners, libraries, kept)
        # What came last goes first. An installer removes what it gave to DKMS.
        remove += by_apt
    if not remove and trees:
        remove = [f"dkms remove {tree} --all" for tree in trees]
        restore = f"run: {'; '.join(f'dkms install {tree}' for tree in trees)}"
    if not remove:
        remove = [f"rm {' '.join(f'/{name}' for name in (*copies, *libraries))}", "depmod -a"]
    packages = sorted({name for names in owners.values() for name in names})
    shown = [f"{', '.join(packages)} (packages)"] if packages else []
    shown += [f"DKMS has {', '.join(trees)}"] if trees else []
    found = (*copies, *uninstallers.values(), *libraries)
    others = [f"/{name}" for name in found if name not in owners]
    if others:
        shown.append(others[0] + (f" and {len(others) - 1} more" if len(others) > 1 else ""))
    seen = f"another installation is still there: {'; '.join(shown)}"
    return OtherInstallation(driver, seen, tuple(remove), restore)


def _by_apt(
    root: Path, owners: Mapping[str, Collection[str]], libraries: Iterable[str], kept: str
) -> tuple[list[str], str]:
    """Return how apt removes the owners of files, and how it installs the same again.

    What was made of the same source as the libraries goes too, and what depends on any of that:
    only apt knows it. What they depend on stays.
    """
    names = sorted({name for found in owners.values() for name in found})
    makers = _debian_sources(root, {name for path in libraries for name in owners.get(path, ())})
    if makers:
        listed = "dpkg-query --show --showformat '${source:Package} ${binary:Package}\\n'"
        wanted = " || ".join(f'$1 == "{name}"' for name in makers)
        names.append(f"$({listed} | awk '{wanted} {{print $2}}')")
    asked = f"apt-get --simulate remove {' '.join(names)}"
    remove = [
        f"{asked} | awk '/^Remv/ {{print $2}}' >> {kept}",
        f"xargs apt-get remove --yes < {kept}",
    ]
    # What they recommend was there if it was wanted, and has stayed.
    return remove, f"run: xargs apt-get install --yes --no-install-recommends < {kept}"


def _by_rpm(root: Path, files: Iterable[str], kept: str) -> tuple[list[str], str]:
    is_suse = in_root(root, "etc/zypp").is_dir()
    program = "zypper --non-interactive" if is_suse else "dnf --assumeyes"
    # Else dnf also removes what was installed for their sake.
    flags = "" if is_suse else " --noautoremove"
    owners = f"rpm -qf --queryformat '%{{NAME}}\\n' {' '.join(f'/{name}' for name in files)}"
    remove = [f"{owners} | sort -u >> {kept}", f"xargs {program} remove{flags} < {kept}"]
    return remove, f"run: xargs {program} install < {kept}"


def _modules(recipe: Recipe | None, manifest: Manifest | None) -> set[str]:
    names = {module.name for module in manifest.modules} if manifest else set()
    if recipe is not None:
        variants = [one for flavour in recipe.flavours for one in recipe.variants(None, flavour)]
        paths = [PurePosixPath(path).name for one in variants for path in one.build.modules]
        names |= {path.partition(".")[0] for path in paths if "*" not in path}
    return {name.replace("-", "_") for name in names}


def _copies(root: Path, names: Collection[str]) -> Iterator[str]:
    for kernel in glob_in_root(root, "lib/modules/*"):
        for folder in _MODULE_FOLDERS:
            top = in_root(root, kernel / folder)
            for path in sorted(top.rglob("*.ko*")):
                if path.name.partition(".")[0].replace("-", "_") in names:
                    yield str(kernel / folder / path.relative_to(top))


def _dkms_trees(root: Path, driver: str, names: Collection[str]) -> Iterator[str]:
    """Yield what DKMS knows of a driver, as ``NAME/VERSION``."""
    for tree in glob_in_root(root, "var/lib/dkms/*/*"):
        if not os.path.lexists(in_root(root, tree / "source", follow=False)):
            continue
        text = text_in_root(root, tree / "source/dkms.conf") or ""
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
    for name in glob_in_root(root, f"{_DPKG}/info/*.list"):
        lines = in_root(root, name).read_text(errors="replace").splitlines()
        for line in wanted.keys() & set(lines):
            owners.setdefault(wanted[line], set()).add(name.stem.partition(":")[0])
    return owners


def _debian_sources(root: Path, names: Collection[str]) -> list[str]:
    """Return the source packages of installed packages, by dpkg's own list."""
    found = set()
    for stanza in in_root(root, f"{_DPKG}/status").read_text(errors="replace").split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in stanza.splitlines())
        if (name := fields.get("Package", "")) in names:
            # With the version of the source in brackets, where that is another.
            found.add(fields.get("Source", name).partition(" ")[0])
    return sorted(found)


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
    return loaded if loaded is not None and loaded in found else max(found, key=version_key)


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
