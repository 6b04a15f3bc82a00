"""Artifact images in files: opened, signed and written, by the same rules as those of registries.

The driver of the image decides which rules of [trust] count for a file. Rules for registries do not
count, because a file has no reliable statement of its origin.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from provision.build.workspace import Settings
from provision.engine.scratch import scratch
from provision.errors import NotFoundError
from provision.files import open_output
from provision.host.kernels import kernel_release, machine
from provision.progress import Note, report
from provision.registry.artifact_images import ArtifactImage, facts_of, find
from provision.registry.find import tag_of
from provision.registry.image_layout import open_files, open_layout, writable_layout
from provision.registry.manifests import Repository
from provision.registry.names import Reference
from provision.registry.publish import EngineImage, SignedImage, check_signable, next_serial
from provision.registry.signatures import sign
from provision.registry.skopeo import Layout, save

# Begins the name of an archive where that of a registry would stand.
_FILE = "file:"


def is_archive_name(text: str) -> bool:
    """Return whether a word of a command line names a file, and not an image."""
    return text.startswith(("/", "./", "../")) or (text.endswith(".tar") and Path(text).is_file())


def open_archive(settings: Settings, path: Path) -> Repository:
    """Return the image for this host from an archive or an image layout, not verified yet."""
    if not path.exists():
        raise NotFoundError(f"There is no '{path}'.", resolution="Check whether the name is right.")
    files = open_files(path)
    reference = Reference(f"{_FILE}{path}", "unknown")
    repository = open_layout(files, reference)
    found = []
    for name in repository.tags():
        if name.endswith(".sig"):
            continue
        is_digest = name.startswith("sha256:")
        named = reference.with_digest(name) if is_digest else reference.with_tag(name)
        try:
            found.append(find(repository.at(named), machine(settings.root)))
        except NotFoundError as error:
            report(Note(f"{path}: {error.message}"))
    image = _chosen(settings, path, found)
    pin, digest = image.pin, str(image.reference.digest)
    named = Reference(reference.registry, pin.driver.name, tag_of(pin).text, digest)
    return repository.at(named)


def _chosen(settings: Settings, path: Path, found: list[ArtifactImage]) -> ArtifactImage:
    different = list({one.reference.digest: one for one in found}.values())
    if len(different) > 1:
        release = kernel_release(settings.root)
        different = [one for one in different if one.pin.kernel.release == release]
    if len(different) != 1:
        listed = [f"{one.pin.driver.name}:{tag_of(one.pin).text}" for one in found]
        raise NotFoundError(
            f"'{path}' has {'no image' if not different else 'several images'} of an artifact for"
            " this host's machine and kernel.",
            resolution="Give an archive with one image: provision registry push IMAGE --output"
            " FILE.tar",
            details="\n".join(sorted(set(listed))) or None,
        )
    return different[0]


def save_image(
    settings: Settings, image: EngineImage, output: Path
) -> tuple[str, SignedImage | None]:
    """Write an artifact image of the engine as an OCI image layout in a tar archive.

    Args:
        output: The archive; it appears when it is complete.

    Returns:
        The digest of its manifest, and the signed image if there is a signer.
    """
    pin, signer = image.pin, image.signer
    if signer is not None:
        check_signable(settings, image)
    report(Note(f"Writing {output}"))
    tag = tag_of(pin).text
    reference = Reference(f"{_FILE}{output}", pin.driver.name, tag)
    with scratch(settings.state, "save") as folder:
        layout = folder / "layout"
        save(image.engine, image.image_id, Layout(layout), tag, state=settings.state)
        writer = writable_layout(layout, reference)
        found = find(writer, pin.kernel.architecture)
        digest = str(found.reference.digest)
        signed = None
        if signer is not None:
            facts = facts_of(pin, next_serial(settings))
            name = sign(writer, digest, facts, signer)
            signed = SignedImage(str(reference.with_digest(digest)), name, facts)
        pack_folder(layout, output)
    return digest, signed


def pack_folder(folder: Path, target: Path) -> None:
    """Write a folder of regular files as a tar archive, which appears when it is complete."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    # As a stream, because the target may be a pipe.
    with (
        open_output(target) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in paths:
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)
