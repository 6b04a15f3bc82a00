"""Makes bundles for an air gap: signed artifacts, and everything that offline builds need.

A bundle is a folder, or one tar archive of it. Making it again in the same folder continues an
interrupted run, and removes what no longer belongs there.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from provision.errors import ProvisionError
from provision.files import lock, sha256_file, write_atomic
from provision.fleet.bundle_contents import BASES, Contents, Order
from provision.fleet.selection import RegistryAccess
from provision.fleet.signed_files import SIGNATURE, SUMS, sums_text
from provision.progress import Note, Progress, Step
from provision.registry.image_archives import pack_folder
from provision.registry.image_layout import prune
from provision.registry.keys import Signer
from provision.registry.names import parse_reference
from provision.registry.registries import BUNDLE_IMAGES, connect
from provision.registry.skopeo import Layout, copy

# Marks a folder as ours before anything is written, so that foreign files are never removed.
_MARKER = ".provision-bundle"
_WORK = ".work"
# Spare room for the file system's own needs.
_MARGIN = 64 << 20


def create(
    access: RegistryAccess, order: Order, contents: Contents, output: Path, signer: Signer | None
) -> Mapping[str, int]:
    """Write a bundle.

    Args:
        contents: The result of ``gather``.
        output: A folder, or a file that ends in ``.tar``.
        signer: Signs the bundle; None: it stays unsigned.

    Returns:
        Its files: their sizes in bytes by path.
    """
    is_archive = output.suffix == ".tar"
    folder = output.with_name(f".{output.name}.parts") if is_archive else output
    check_room(output, contents.size * (2 if is_archive else 1))
    _claim(folder)
    with lock(folder / _MARKER):
        (folder / _WORK).mkdir(exist_ok=True)
        _write_images(folder, access, order, contents)
        _write_files(folder, contents, access.progress)
        shutil.rmtree(folder / _WORK)
        _tidy(folder, contents)
        files = seal(folder, signer)
        if is_archive:
            access.progress(Note(f"Writing {output}"))
            pack_folder(folder, output, (SUMS,))
    if is_archive:
        shutil.rmtree(folder)
    return files


def check_room(output: Path, size: int) -> None:
    """Check that there is room for a bundle."""
    place = output.absolute()
    present = (
        sum(p.stat().st_size for p in place.rglob("*") if p.is_file()) if place.is_dir() else 0
    )
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free + present < size + _MARGIN:
        raise ProvisionError(
            f"'{place}' has {free // 1_000_000} MB left, and the bundle takes"
            f" {size // 1_000_000} MB.",
            resolution="Free some space, or choose fewer kernels: --kernel RELEASE. A .tar needs"
            " twice its size while it is made; a folder does not.",
        )


def _claim(folder: Path) -> None:
    """Claim a folder for a bundle."""
    if folder.is_dir() and not (folder / _MARKER).exists() and any(folder.iterdir()):
        raise ProvisionError(
            f"'{folder}' has foreign files, so no bundle is written there.",
            resolution="Name an empty folder, or a new one.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARKER).touch()
    # Without these files it is no bundle until it is complete.
    for name in (SUMS, SIGNATURE):
        (folder / name).unlink(missing_ok=True)


def _write_images(folder: Path, access: RegistryAccess, order: Order, contents: Contents) -> None:
    layouts = {driver: folder / BUNDLE_IMAGES / driver for driver in contents.drivers}
    for layout in layouts.values():
        layout.mkdir(parents=True, exist_ok=True)
        # skopeo adds to it, and takes the blobs that are there.
        (layout / "index.json").unlink(missing_ok=True)
    for number, one in enumerate(contents.chosen, 1):
        text = f"{one.driver} {', '.join(one.tags)}"
        access.progress(Step(number, len(contents.chosen), text))
        reference = parse_reference(f"{order.registry}/{one.driver}")
        registry = connect(access.settings, reference)
        target = Layout(layouts[one.driver])
        for tag in one.tags:
            copy(registry, one.content.digest, target, tag)
        for tag in one.signature_tags:
            copy(registry, tag, target, tag)


def _write_files(folder: Path, contents: Contents, progress: Progress) -> None:
    for place, text in contents.texts.items():
        write_atomic(folder / place, text)
    for place, source in contents.copies.items():
        target = folder / place
        if target.is_file() and sha256_file(target) == sha256_file(source):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        progress(Note(f"Copying {place}"))
        draft = folder / _WORK / "copy"
        shutil.copyfile(source, draft)
        draft.replace(target)
    for base, image in contents.bases:
        place = f"{BASES}/{base.digest.removeprefix('sha256:')}.tar"
        target = folder / place
        if not target.exists():
            progress(Note(f"Copying the base image {base.image}"))
            draft = folder / _WORK / "base"
            with draft.open("wb") as stream:
                for chunk in contents.engine().save(image.id):
                    stream.write(chunk)
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.replace(target)


def _tidy(folder: Path, contents: Contents) -> None:
    """Remove files of an earlier bundle that this one does not have."""
    listed = {*contents.copies, *contents.texts}
    listed |= {f"{BASES}/{b.digest.removeprefix('sha256:')}.tar" for b, _image in contents.bases}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        place = str(path.relative_to(folder))
        if place.startswith(f"{BUNDLE_IMAGES}/"):
            continue
        if place not in listed and place != _MARKER:
            path.unlink()
    for layout in sorted((folder / BUNDLE_IMAGES).iterdir()):
        if layout.name in contents.drivers:
            prune(layout)
        else:
            shutil.rmtree(layout)


def seal(folder: Path, signer: Signer | None) -> dict[str, int]:
    """Write the list of a bundle's files and its signature; return the sizes by path.

    The list is written last: without it, the folder is no bundle.
    """
    sums, sizes = {}, {}
    for path in sorted(folder.rglob("*")):
        place = str(path.relative_to(folder))
        if path.is_file() and place not in {_MARKER, SUMS, SIGNATURE}:
            sums[place], sizes[place] = sha256_file(path), path.stat().st_size
    data = sums_text(sums)
    if signer is not None:
        write_atomic(folder / SIGNATURE, signer(data))
    write_atomic(folder / SUMS, data)
    return sizes
