"""Reads bundles behind an air gap, and loads them into a registry there, or into one host.

A bundle brings no trust: the host that reads it decides which keys count. Every file is compared
with the signed list before any file is used. Each artifact still needs its own signature, as from a
registry: the signature of the bundle does not replace it.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from provision.build.package_store import Closure, PackageStore
from provision.build.workspace import Settings
from provision.documents import parse_json
from provision.engine.scratch import scratch
from provision.engine.tar_streams import BAD_TAR
from provision.errors import NotFoundError, ProvisionError
from provision.fleet.bundle import (
    BASES,
    CLOSURES,
    PACKAGES,
    SIGNATURE,
    SUMS,
    Chosen,
    ImageSelection,
    RegistryAccess,
    require_all,
    verified,
)
from provision.host.kernels import find_kernels, machine
from provision.progress import Note, Step, Transfer, report
from provision.registry.artifact_images import ArtifactImage
from provision.registry.find import (
    BUNDLE_IMAGES,
    FOLDER,
    TrustOverride,
    connect,
    tag_of,
    trusted_keys,
)
from provision.registry.image_layout import Files, open_files, open_layout, read_small, refused
from provision.registry.manifests import LONGEST_MANIFEST, find_digest
from provision.registry.names import Reference
from provision.registry.publish import names_for_operators, set_operator_tags
from provision.registry.signatures import UntrustedError
from provision.registry.skopeo import Layout, copy
from provision.store.obtain import store_pulled

# No blanks, no '..', nothing hidden: names that every file system and shell takes.
_PART = r"[A-Za-z0-9_][A-Za-z0-9._+~:-]*"
_LINE = re.compile(rf"([0-9a-f]{{64}})  ({_PART}(?:/{_PART})*)")
_LONGEST_SUMS = 16 << 20
_LONGEST_SIGNATURE = 4096
_LONGEST_CLOSURE = 16 << 20
_LONGEST_INDEX = 1 << 20
_CHUNK = 1 << 20
# In an archive of an engine: what its images are called, in the formats that engines read.
_INDEX, _LAYOUT_INDEX, _OLD_INDEX = "manifest.json", "index.json", "repositories"
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


@dataclass(frozen=True, slots=True)
class Bundle:
    """The files of a bundle, or of a folder in it, that its signed list names: ``Files``."""

    files: Files
    # Their checksums (sha256), by path.
    sums: Mapping[str, str]
    # The key that signed the list; None if no signature was required.
    signed_by: str | None
    folder: str = ""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.files.name}/{self.folder}".removesuffix("/")

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers that it has images of."""
        parts = (path.split("/") for path in self.sums)
        return tuple(sorted({each[1] for each in parts if each[0] == BUNDLE_IMAGES and each[1:]}))

    def open(self, path: str) -> IO[bytes]:
        """Open a file that is listed; errors as ``Files.open``."""
        place = f"{self.folder}{path}"
        if place not in self.sums:
            raise NotFoundError(
                f"The bundle '{self.files.name}' has no file '{place}'.",
                resolution="Copy the bundle again from where it was made.",
            )
        return self.files.open(place)

    def copy(self, path: str, target: Path) -> None:
        """Copy a file that is listed, and compare the copy: a medium may change once it is read."""
        found = hashlib.sha256()
        with self.open(path) as source, target.open("wb") as stream:
            while chunk := source.read(_CHUNK):
                found.update(chunk)
                stream.write(chunk)
        if found.hexdigest() != self.sums[f"{self.folder}{path}"]:
            target.unlink()
            raise refused(self.name, f"'{path}' in it is not what is signed")

    def below(self, folder: str) -> Iterator[str]:
        """Yield the paths of the files below a folder."""
        return (path for path in sorted(self.sums) if path.startswith(f"{folder}/"))


def open_bundle(settings: Settings, path: Path, consent: TrustOverride) -> Bundle:
    """Return a bundle once the signature of its list of files is verified; reads no other file."""
    files = open_files(path)
    try:
        sums = read_small(files, SUMS, _LONGEST_SUMS)
    except NotFoundError as error:
        raise NotFoundError(
            f"'{path}' is no bundle: {error.message}",
            resolution="Name the folder or archive that 'provision bundle create' wrote. If that"
            " command was interrupted, run it again to continue.",
        ) from error
    signed_by = _verified(settings, files, sums, consent)
    return Bundle(files, _parse_sums(files.name, sums), signed_by)


def check_files(bundle: Bundle) -> None:
    """Compare every file of a bundle with its checksum."""
    report(Note(f"Verifying {len(bundle.sums)} files of {bundle.name}"))
    wrong = []
    for number, (path, sha256) in enumerate(bundle.sums.items(), 1):
        report(Transfer("Verifying files", number, len(bundle.sums)))
        try:
            with bundle.open(path) as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type] # any binary stream
        except ProvisionError as error:
            wrong.append(f"{path}: {error.message}")
        except OSError as error:
            wrong.append(f"{path}: it can't be read: {error.strerror}")
        else:
            if found != sha256:
                wrong.append(f"{path}: its content is not what is signed")
    if wrong:
        raise ProvisionError(
            f"The bundle '{bundle.name}' is damaged: {len(wrong)} of its {len(bundle.sums)}"
            " files are not what is signed. Nothing of it was used.",
            resolution="Copy it again, and check the medium for damage. 'provision bundle create'"
            " with the same folder replaces what is missing.",
            details="\n".join(wrong),
        )


def _verified(settings: Settings, files: Files, sums: bytes, consent: TrustOverride) -> str | None:
    """Return the key that signed a list of files; None if no signature is required."""
    keys = trusted_keys(settings, "file:bundle", "", consent)
    if keys is None:
        return None
    try:
        signature = read_small(files, SIGNATURE, _LONGEST_SIGNATURE)
    except NotFoundError:
        why = "it is not signed"
    else:
        for key in keys:
            if key.has_signed(sums, signature):
                return key.name
        why = f"no key that this host trusts has signed it ({', '.join(k.name for k in keys)})"
    raise UntrustedError(
        f"The bundle '{files.name}' is refused: {why}.",
        resolution="Don't use it. Get a bundle that your signing key has signed ('provision bundle"
        " create --key'), or name the right public key: --public-key FILE",
    )


def _parse_sums(name: str, data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in data.decode(errors="replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or match[2] in found:
            raise refused(name, f"'{SUMS}' in it has a line that is no checksum: '{line[:80]}'")
        found[match[2]] = match[1]
    return found


@dataclass(slots=True)
class Loaded:
    """The result of loading a bundle."""

    # Names that the registry did not have, or that led to other images there.
    pushed: list[str] = field(default_factory=list)
    entries: list[str] = field(default_factory=list)
    # Numbers of files and solved closures that the package store did not have.
    packages: int = 0
    closures: int = 0
    # Base images that the engine did not have, by digest.
    bases: list[str] = field(default_factory=list)
    changed: bool = False


def artifacts_of(access: RegistryAccess, bundle: Bundle) -> tuple[Chosen, ...]:
    """Return the artifact images of a bundle, verified with the keys of this host."""
    found: list[Chosen] = []
    refused: list[str] = []
    for driver in bundle.drivers:
        reference = Reference(f"{FOLDER}{bundle.name}", driver)
        layout = replace(bundle, folder=f"{BUNDLE_IMAGES}/{driver}/")
        repository = open_layout(layout, reference)
        found += verified(access, repository, driver, ImageSelection(), refused)
    require_all(refused)
    return tuple(found)


def push_bundle(
    access: RegistryAccess,
    bundle: Bundle,
    artifacts: tuple[Chosen, ...],
    address: str,
    done: Loaded,
) -> None:
    """Copy artifact images with their signatures to a registry.

    A name that leads to the image already stays, and so do its signatures there. A GPU operator's
    tag of a branch stays with a newer version that is there.

    Args:
        bundle: The bundle; its files were checked.
        address: The registry: ``host[:port][/prefix]``.
    """
    with _images_folder(access, bundle) as folder:
        for number, one in enumerate(artifacts, 1):
            text = f"{one.driver} {', '.join(one.tags)}"
            report(Step(number, len(artifacts), text))
            client = access.client(f"{address}/{one.driver}")
            names = [names_for_operators(image.pin, image.labels) for image in one.images]
            # Set below, where no newer version is there.
            branches = {branch for _own, branch in filter(None, names)}
            missing = [
                tag
                for tag in one.tags
                if tag not in branches and find_digest(client, tag) != one.content.digest
            ]
            target = connect(access.settings, client.reference)
            # Signatures first: no host sees an unsigned image.
            for tag in (*(one.signature_tags if missing else ()), *missing):
                copy(Layout(folder / one.driver), tag, target, tag)
            for image, theirs in zip(one.images, names, strict=True):
                # A build that another has replaced has neither.
                if theirs and {tag_of(image.pin).text, *theirs} & {*one.tags}:
                    digest = str(image.reference.digest)
                    missing += set_operator_tags(client, image.pin, image.labels, digest)
            done.pushed += [f"{client.reference.name}:{tag}" for tag in missing]
            done.changed |= bool(missing)


@contextmanager
def _images_folder(access: RegistryAccess, bundle: Bundle) -> Iterator[Path]:
    """Yield a folder with a bundle's images for a while.

    Tags and manifests in it are copies. Of a folder, the layers are links: skopeo compares each
    with its digest while it copies it.
    """
    place = Path(bundle.name)
    with scratch(access.settings.state, "bundle") as folder:
        for path in bundle.below(BUNDLE_IMAGES):
            target, source = folder / path, place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if place.is_dir() and source.stat().st_size > LONGEST_MANIFEST:
                target.symlink_to(source.resolve())
            else:
                bundle.copy(path, target)
        yield folder / BUNDLE_IMAGES


def for_host(
    settings: Settings, artifacts: tuple[Chosen, ...], *, all_kernels: bool = False
) -> tuple[ArtifactImage, ...]:
    """Return the images that a host can use.

    Args:
        all_kernels: Also those for kernels that the host does not have.
    """
    kernels = find_kernels(settings.root).bootable
    own = machine(settings.root)
    pins = ((one, one.pin.kernel) for each in artifacts for one in each.images)
    return tuple(
        one
        for one, kernel in pins
        if kernel.architecture == own and (all_kernels or kernel.release in kernels)
    )


def store_bundle(
    access: RegistryAccess,
    bundle: Bundle,
    images: tuple[ArtifactImage, ...],
    done: Loaded,
    *,
    with_bases: bool = False,
) -> None:
    """Put artifacts into a host's store, and what builds need into its package store.

    Args:
        bundle: The bundle; its files were checked.
        with_bases: Whether the engine loads the base images.
    """
    settings = access.settings
    for one in images:
        stored = store_pulled(settings, one, access.consent)
        done.entries.append(str(stored.entry))
        done.changed |= stored.origin == "registry"
    _fill_packages(settings, bundle, done)
    if with_bases:
        _load_bases(settings, bundle, done)
    done.changed |= bool(done.packages or done.closures or done.bases)


def _fill_packages(settings: Settings, bundle: Bundle, done: Loaded) -> None:
    store = PackageStore(settings.state)
    for path in bundle.below(PACKAGES):
        sha256 = path.rpartition("/")[2]
        if bundle.sums[path] != sha256:
            raise refused(bundle.name, f"'{path}' in it has another checksum than its name")
        if store.whole(sha256) is None:
            report(Note(f"Adding {path}"))
            with bundle.open(path) as stream:
                store.add(stream, sha256=sha256, name=path)
            done.packages += 1
    for path in bundle.below(CLOSURES):
        key = Path(path).stem
        text = read_small(bundle, path, _LONGEST_CLOSURE).decode(errors="replace")
        closure = parse_json(text, Closure, name=f"{bundle.name}: {path}")
        if store.closure(key) is None:
            store.keep(key, closure)
            done.closures += 1


def _load_bases(settings: Settings, bundle: Bundle, done: Loaded) -> None:
    engine = settings.engine()
    for path in bundle.below(BASES):
        digest = f"sha256:{Path(path).stem}"
        if engine.image(digest) is not None:
            continue
        report(Note(f"Loading the base image {digest}"))
        with scratch(settings.state, "bundle") as folder:
            archive = folder / "base.tar"
            bundle.copy(path, archive)
            _refuse_names(bundle.name, path, archive)
            with archive.open("rb") as stream:
                engine.load(stream)
        done.bases.append(digest)
        if engine.image(digest) is None:
            report(
                Note(
                    f"The engine has the base image, but not as {digest}: Pins with that digest"
                    " can't be built with it. Push the image to a registry behind the air gap, and"
                    " set base_images to it"
                )
            )


def _refuse_names(name: str, path: str, archive: Path) -> None:
    """Refuse an archive of an engine that gives an image a name, or another image as its parent.

    ``debian:bookworm`` of a medium would take the place of the engine's own, and the child of an
    image counts as a step of a build that was done before.
    """
    images, layouts, old = _indexes(name, path, archive)
    named = [one for one in images or () if one.get("RepoTags") or one.get("Parent")]
    for one in (layouts or {}).get("manifests", ()):
        named += [one for key in _NAMES if key in (one.get("annotations") or {})]
    if named or old or not images or len(images) != 1:
        raise refused(name, f"'{path}' in it is more than one base image without a name")


def _indexes(name: str, path: str, archive: Path) -> list[Any]:
    """Return the indexes of an archive of an engine; None for one that it lacks."""
    found: dict[str, Any] = {}
    try:
        with tarfile.open(archive, mode="r:") as opened:
            for member in opened:
                place = posixpath.normpath(member.name)
                if place not in {_INDEX, _LAYOUT_INDEX, _OLD_INDEX}:
                    continue
                content = opened.extractfile(member) if member.isreg() else None
                if content is None or place in found or member.size > _LONGEST_INDEX:
                    raise refused(name, f"'{member.name}' in '{path}' is no index of images")
                found[place] = json.load(content)
    except (*BAD_TAR, RecursionError) as error:
        raise refused(name, f"'{path}' in it is no archive of an engine ({error})") from error
    return [found.get(place) for place in (_INDEX, _LAYOUT_INDEX, _OLD_INDEX)]
