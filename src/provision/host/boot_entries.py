"""The kernels that a boot loader offers, and those of other systems on the same disk.

What may be booted again is more than what an updater says comes next: the deployment before this
one, the other slot, an older entry of the menu. All of it is read from the disk; no program is
asked, so that a broken updater can't make a kernel disappear.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision.files import glob_in_root, in_root
from provision.host.slots import image_release

# $BOOT of the Boot Loader Specification, or where distros mount it:
# https://uapi-group.org/specifications/specs/boot_loader_specification/
_PARTITIONS = ("boot", "efi", "boot/efi")
_MENUS = ("boot/grub/grub.cfg", "boot/grub2/grub.cfg")
# Patterns as text: most hosts have only some of this, and compiling takes longer than reading.
_GRUB = r"(?m)^\s*linux(?:16|efi)?\s+(\S+)"
_KEY = r"(?m)^[ \t]*(linux|efi|uki|version)[ \t]+(\S+)"
_IMAGE = r"(?:vmlinuz|vmlinux|kernel|Image)-(?P<release>\d.*)$"
_RELEASE = r"\d+\.\d+"
# A unified kernel image: TOKEN-RELEASE.efi, with the tries that are left: kernel-install(8).
_UNIFIED = r"-(?P<release>\d+\.\d+.*?)(?:\+\d+(?:-\d+)?)?\.efi$"
_SLOTS = ("a", "b")


@dataclass(frozen=True, slots=True)
class BootEntries:
    """Kernels that can be booted.

    Attributes:
        releases: As ``uname -r`` prints them.
        doubts: What could not be read: there may be more kernels.
    """

    releases: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def boot_entries(root: Path) -> BootEntries:
    """Return the kernels of all deployments, slots, boot loader entries and images of a host."""
    doubts: list[str] = []
    found = [
        *_deployments(root, doubts),
        *_slots(root, doubts),
        *_loader_entries(root, doubts),
        *_unified(root),
        *_menus(root, doubts),
        *_images(root),
    ]
    return BootEntries(tuple(dict.fromkeys(found)), tuple(doubts))


def _deployments(root: Path, doubts: list[str]) -> Iterator[str]:
    """Yield the kernels of every deployment of ostree, the one to go back to among them.

    Source: https://ostreedev.github.io/ostree/deployment/
    """
    if not in_root(root, "run/ostree-booted").exists():
        return
    found = (in_root(root, p) for p in glob_in_root(root, "ostree/deploy/*/deploy/*.[0-9]*"))
    deployments = [path for path in found if path.is_dir()]
    if not deployments:
        doubts.append(f"there is no deployment in {root / 'ostree/deploy'}")
    for deployment in deployments:
        # A deployment is a root of its own.
        images = glob_in_root(deployment, "usr/lib/modules/*/vmlinuz")
        yield from (path.parent.name for path in images)


def _slots(root: Path, doubts: list[str]) -> Iterator[str]:
    """Yield the kernels of both of Flatcar's slots; the one that was never written has none."""
    for name in _SLOTS:
        path = in_root(root, f"boot/flatcar/vmlinuz-{name}")
        if not path.exists():
            continue
        try:
            yield image_release(path)
        except (OSError, ValueError) as error:
            doubts.append(f"the kernel of the slot {name} can't be read: {error}")


def _loader_entries(root: Path, doubts: list[str]) -> Iterator[str]:
    """Yield the kernels of the entries of the Boot Loader Specification whose image is there."""
    for partition in _PARTITIONS:
        for entry in glob_in_root(root, f"{partition}/loader/entries/*.conf"):
            keys = dict(re.findall(_KEY, _text(root, entry, doubts)))
            image = keys.get("linux") or keys.get("uki") or keys.get("efi")
            if image is None or not _is_there(root, image):
                continue
            names = [keys.get("version", ""), _named(image) or "", Path(image).parent.name]
            releases = list(_releases(names))
            # What "efi" starts need be no kernel: a shell, another system's loader.
            if not releases and ("linux" in keys or "uki" in keys):
                releases = list(_release_inside(root, image, entry, doubts))
            yield from releases


def _release_inside(
    root: Path, image: str, entry: PurePosixPath, doubts: list[str]
) -> Iterator[str]:
    """Yield the release that an image says it has, where no name of the entry does."""
    try:
        yield image_release(_lies_at(root, image)[0])
    except (OSError, ValueError) as error:
        # A rescue entry (dracut's) brings all modules that it loads in its initial RAM disk.
        if "-rescue-" in image:
            return
        doubts.append(f"'{root / entry}' names no release of a kernel: {error}")


def _unified(root: Path) -> Iterator[str]:
    """Yield the kernels of unified images, which boot loaders find without an entry."""
    for partition in _PARTITIONS:
        for path in glob_in_root(root, f"{partition}/EFI/Linux/*.efi"):
            match = re.search(_UNIFIED, path.name)
            yield from _releases([match["release"]] if match else [])


def _menus(root: Path, doubts: list[str]) -> Iterator[str]:
    """Yield the kernels of GRUB's menu whose image is there."""
    for name in _MENUS:
        if not in_root(root, name).is_file():
            continue
        for image in re.findall(_GRUB, _text(root, PurePosixPath(name), doubts)):
            if _is_there(root, image):
                yield from _releases([_named(image) or ""])


def _images(root: Path) -> Iterator[str]:
    """Yield the kernels whose image lies in /boot."""
    yield from _releases(_named(str(path)) or "" for path in glob_in_root(root, "boot/*-*"))


def _named(image: str) -> str | None:
    """Return the release in an image's name; None where it has none (``vmlinuz-a``)."""
    match = re.match(_IMAGE, Path(image).name)
    return match["release"] if match else None


def _releases(names: Iterable[str]) -> Iterator[str]:
    yield from (name for name in names if re.match(_RELEASE, name))


def _is_there(root: Path, image: str) -> bool:
    """Return whether an image exists: an entry whose kernel is gone boots nothing."""
    return bool(_lies_at(root, image))


def _lies_at(root: Path, image: str) -> list[Path]:
    """Return the files that may be meant: entries count from the partition that they lie on."""
    name = re.sub(r"^\([^)]*\)", "", image).lstrip("/")
    found = (in_root(root, PurePosixPath(folder, name)) for folder in ("", *_PARTITIONS))
    return [path for path in found if path.exists()]


def _text(root: Path, name: PurePosixPath, doubts: list[str]) -> str:
    try:
        return in_root(root, name).read_text(errors="replace")
    except OSError as error:
        doubts.append(f"'{root / name}' can't be read: {error.strerror or error}")
        return ""
