"""Makes bundles for an air gap: signed artifacts, and everything that offline builds need.

A bundle is a folder, or one tar archive of it. Making it again in the same folder continues an
interrupted run, and removes what no longer belongs there.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from provision.errors import ProvisionError
from provision.files import lock, sha256_file, write_atomic
from provision.fleet.bundle_contents import BASES, Contents, Order
from provision.fleet.bundle_index import (
    INDEX,
    SIGNATURE,
    SUMS,
    BundleArtifact,
    BundleBase,
    BundleFile,
    BundleIndex,
    BundleKey,
    sums_text,
)
from provision.fleet.selection import Chosen, RegistryAccess
from provision.pipeline.image_archives import pack_folder
from provision.pipeline.registries import BUNDLE_IMAGES, trusted_keys
from provision.progress import Note, Progress, Step
from provision.registry.artifact_images import facts_of
from provision.registry.attached_signatures import signature_tag
from provision.registry.copying import ImageCopier
from provision.registry.image_layout import LayoutWriter
from provision.registry.image_signature import Signer
from provision.registry.manifests import Index, parse_manifest
from provision.registry.names import Reference, parse_reference

# Marks a folder as ours before anything is written, so that foreign files are never removed.
_MARKER = ".provision-bundle"
_WORK = ".work"
# Spare room for the file system's own needs.
_MARGIN = 64 << 20


def create(
    access: RegistryAccess, order: Order, contents: Contents, output: Path, signer: Signer | None
) -> BundleIndex:
    """Write a bundle.

    Args:
        access: How the registry is reached.
        order: The order for the bundle.
        contents: The result of ``gather``.
        output: A folder, or a file that ends in ``.tar``.
        signer: Signs the bundle; None: it stays unsigned.

    Raises:
        ProvisionError: The folder has other files, the disk has no room, or the registry failed.
        OSError: The folder can't be written.
    """
    is_archive = output.suffix == ".tar"
    folder = output.with_name(f".{output.name}.parts") if is_archive else output
    check_room(output, contents.size * (2 if is_archive else 1))
    _claim(folder)
    with lock(folder / _MARKER):
        (folder / _WORK).mkdir(exist_ok=True)
        _write_images(folder, order, contents, access.progress)
        bases = _write_files(folder, contents, access.progress)
        shutil.rmtree(folder / _WORK)
        _tidy(folder, contents)
        index = _index(access, folder, order, contents, bases)
        _seal(folder, index, signer)
        if is_archive:
            access.progress(Note(f"Writing {output}"))
            pack_folder(folder, output, (SUMS, INDEX))
    if is_archive:
        shutil.rmtree(folder)
    return index


def check_room(output: Path, size: int) -> None:
    """Check that there is room for a bundle.

    Raises:
        ProvisionError: The space does not suffice.
    """
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
    """Claim a folder for a bundle.

    Raises:
        ProvisionError: It has foreign files.
    """
    if folder.is_dir() and not (folder / _MARKER).exists() and any(folder.iterdir()):
        raise ProvisionError(
            f"'{folder}' has foreign files, so no bundle is written there.",
            resolution="Name an empty folder, or a new one.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARKER).touch()
    # Without these files it is no bundle until it is complete.
    for name in (SUMS, SIGNATURE, INDEX):
        (folder / name).unlink(missing_ok=True)


def _write_images(folder: Path, order: Order, contents: Contents, progress: Progress) -> None:
    for number, one in enumerate(contents.chosen, 1):
        progress(Step(number, len(contents.chosen), f"{one.driver} {', '.join(one.tags)}"))
        reference = parse_reference(f"{order.registry}/{one.driver}")
        writer = LayoutWriter(folder / BUNDLE_IMAGES / one.driver, reference)
        copier = ImageCopier(one.repository, writer, folder / _WORK, progress)
        copier.copy(one.content, one.tags)


def _write_files(folder: Path, contents: Contents, progress: Progress) -> tuple[BundleBase, ...]:
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
    found = []
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
        found.append(BundleBase(image=base.image, digest=base.digest, file=place))
    return tuple(found)


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
    drivers = {one.driver for one in contents.chosen}
    for layout in sorted((folder / BUNDLE_IMAGES).iterdir()):
        if layout.name not in drivers:
            shutil.rmtree(layout)
            continue
        _tidy_layout(layout, [one for one in contents.chosen if one.driver == layout.name])


def _tidy_layout(folder: Path, chosen: list[Chosen]) -> None:
    writer = LayoutWriter(folder, Reference("bundle", folder.name))
    digests: set[str] = set()
    tags: set[str] = set()
    for one in chosen:
        tags.update(one.tags)
        found = parse_manifest(one.content.data, one.content.digest)
        inner = [m.digest for m in found.manifests] if isinstance(found, Index) else []
        for digest in (one.content.digest, *inner):
            tags.add(signature_tag(digest))
            digests.add(digest)
    writer.keep(tags, digests)


def _index(
    access: RegistryAccess,
    folder: Path,
    order: Order,
    contents: Contents,
    bases: tuple[BundleBase, ...],
) -> BundleIndex:
    files = [
        BundleFile(
            path=str(path.relative_to(folder)), sha256=sha256_file(path), size=path.stat().st_size
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != _MARKER
    ]
    used = {t.verified.key for one in contents.chosen for t in one.images if t.verified}
    keys: dict[str, str] = {}
    for driver in {one.driver for one in contents.chosen}:
        repository = f"{order.registry}/{driver}"
        known = trusted_keys(access.settings, repository, driver, access.consent) or ()
        keys.update({key.name: key.fingerprint for key in known if key.name in used})
    return BundleIndex(
        created=int(time.time()),
        registry=order.registry,
        artifacts=tuple(_artifacts(contents.chosen)),
        bases=bases,
        keys=tuple(BundleKey(name=n, fingerprint=f) for n, f in sorted(keys.items())),
        files=tuple(files),
    )


def _artifacts(chosen: tuple[Chosen, ...]) -> Iterator[BundleArtifact]:
    for one in chosen:
        for trusted in one.images:
            facts = facts_of(trusted.image.pin, 0)
            yield BundleArtifact(
                driver=facts.driver,
                version=facts.version,
                flavour=facts.flavour,
                distro=facts.distro,
                kernel=facts.kernel,
                architecture=facts.architecture,
                pin=facts.pin,
                digest=str(trusted.image.reference.digest),
                within=one.content.digest,
                tags=one.tags,
                size=trusted.image.manifest.size,
            )


def _seal(folder: Path, index: BundleIndex, signer: Signer | None) -> None:
    """Write the list of files last, after its signature: without the list, it is no bundle."""
    text = f"{index.model_dump_json(by_alias=True, indent=1)}\n"
    write_atomic(folder / INDEX, text)
    sums = {file.path: file.sha256 for file in index.files}
    sums[INDEX] = sha256_file(folder / INDEX)
    data = sums_text(sums)
    if signer is not None:
        write_atomic(folder / SIGNATURE, signer(data))
    write_atomic(folder / SUMS, data)
