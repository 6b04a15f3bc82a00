"""Makes bundles for an air gap: signed artifacts, and everything that offline builds need.

A bundle is a folder, or one tar archive of it. Making it again in the same folder continues an
interrupted run, and removes what no longer belongs there. ``SHA256SUMS`` names every file with its
checksum, and ``SHA256SUMS.sig`` is its signature: ECDSA over P-256, in DER. Programs that every
distro has verify both, before anything of ours is there: ``openssl dgst -sha256 -verify fleet.pub
-signature SHA256SUMS.sig SHA256SUMS``, and ``sha256sum --check SHA256SUMS``.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from provision.build.package_store import Closure, PackageStore
from provision.build.resolve import pin_document
from provision.build.workspace import Settings
from provision.documents import load_if_readable
from provision.engine.docker_api import Image, split_reference
from provision.errors import NotFoundError, ProvisionError
from provision.files import lock, replacing, sha256_file, write_atomic
from provision.pin import BasePin, Pin
from provision.progress import Note, Step, report
from provision.registry.artifact_images import ArtifactImage, facts_of, find
from provision.registry.find import BUNDLE_IMAGES, Connect, TrustOverride, check_of, connect, tag_of
from provision.registry.image_archives import pack_folder
from provision.registry.image_layout import prune
from provision.registry.keys import Signer
from provision.registry.manifests import Content, Index, Repository, Writable, parse_manifest
from provision.registry.names import parse_reference, read_tag
from provision.registry.signatures import UntrustedError, VerifiedSignature, signature_tag
from provision.registry.skopeo import Layout, copy


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """The access of a machine to registries, and its trust in them."""

    settings: Settings
    consent: TrustOverride
    connected: Connect = connect

    def client(self, name: str) -> Writable:
        """Return the client of a repository, such as ``registry.example/drivers/nvidia``."""
        return self.connected(self.settings, parse_reference(name))


@dataclass(frozen=True, slots=True)
class ImageSelection:
    """Which artifacts are selected."""

    # Names; empty: those of this machine's catalogue that the registry has.
    drivers: tuple[str, ...] = ()
    # Releases, or patterns of them (``6.1.0-*``); empty: all.
    kernels: tuple[str, ...] = ()
    # Such as ``debian:12``; empty: all.
    distros: tuple[str, ...] = ()

    def takes(self, image: ArtifactImage) -> bool:
        """Return whether an image is selected."""
        pin = image.pin
        release = pin.kernel.release
        is_kernel = not self.kernels or any(fnmatchcase(release, one) for one in self.kernels)
        return is_kernel and (not self.distros or pin.distro.name in self.distros)

    def may_take(self, tag: str) -> bool:
        """Return whether a tag may lead to a selected image; the image itself decides."""
        said = read_tag(tag)
        if said is None:
            return True
        # In tags, `_` replaces what they must not contain; a pattern's own characters stay.
        patterns = [re.sub(r"[^A-Za-z0-9._*?\[\]!-]", "?", one) for one in self.kernels]
        if patterns and not any(fnmatchcase(said.kernel, one) for one in patterns):
            return False
        escaped = [one.replace(":", "") for one in self.distros]
        return not self.distros or said.distro in escaped


@dataclass(frozen=True, slots=True)
class Chosen:
    """An image to copy, or an index of images."""

    repository: Repository
    driver: str
    content: Content
    images: tuple[ArtifactImage, ...]
    tags: tuple[str, ...]

    @property
    def signature_tags(self) -> tuple[str, ...]:
        """The tags of its signatures."""
        digests = {self.content.digest, *(str(o.reference.digest) for o in self.images)}
        known = set(self.repository.tags())
        return tuple(tag for tag in sorted(map(signature_tag, digests)) if tag in known)

    def documents(self) -> list[dict[str, object]]:
        """Return its images as JSON documents."""
        found = []
        for one in self.images:
            facts = asdict(facts_of(one.pin, one.facts.serial if one.facts else 0))
            facts |= {"digest": one.reference.digest, "tags": list(self.tags)}
            facts |= {"size": one.manifest.size}
            found.append(facts | {"signed_by": one.verified.key if one.verified else None})
        return found


def choose(
    access: RegistryAccess, address: str, selection: ImageSelection
) -> tuple[tuple[Chosen, ...], list[str]]:
    """Return the selected images of a registry, verified, and a line for each that is refused.

    Args:
        address: ``host[:port][/prefix]``.
    """
    found: list[Chosen] = []
    refused: list[str] = []
    drivers = selection.drivers or tuple(access.settings.catalogue.names)
    for driver in drivers:
        client = access.client(f"{address}/{driver}")
        try:
            tags = client.tags()
        except NotFoundError:
            if selection.drivers:
                refused.append(f"{address}/{driver}: the registry has no such repository")
            continue
        report(Note(f"{address}/{driver} has {len(tags)} tags"))
        found += verified(access, client, driver, selection, refused)
    if not found and not refused:
        raise NotFoundError(
            f"'{address}' has no artifact image of {', '.join(drivers)} for these kernels and"
            " distros.",
            resolution="'provision registry list DRIVER --registry HOST' lists what a registry"
            " has.",
        )
    return tuple(found), refused


def verified(
    access: RegistryAccess,
    repository: Repository,
    driver: str,
    selection: ImageSelection,
    refused: list[str],
) -> Iterator[Chosen]:
    """Yield the selected images of a repository that are signed; add others to ``refused``."""
    check = check_of(access.settings, repository, {}, access.consent, driver)
    for content, tags in _by_content(repository, selection).values():
        try:
            images = tuple(_examined(repository, content, check))
            _check_names(driver, images, tags)
        except (UntrustedError, NotFoundError) as error:
            refused.append(f"{error.message} {error.details or ''}".strip())
        else:
            if any(selection.takes(one) for one in images):
                yield Chosen(repository, driver, content, images, tags)


def _by_content(
    client: Repository, selection: ImageSelection
) -> dict[str, tuple[Content, tuple[str, ...]]]:
    """Return manifests by digest, each with all of its tags."""
    found: dict[str, tuple[Content, tuple[str, ...]]] = {}
    for tag in client.tags():
        if tag.endswith(".sig") or not selection.may_take(tag):
            continue
        content = client.manifest(tag)
        before = found.get(content.digest, (content, ()))[1]
        found[content.digest] = (content, (*before, tag))
    return found


def _examined(
    client: Repository, content: Content, check: Callable[[str], VerifiedSignature | None] | None
) -> Iterator[ArtifactImage]:
    """Yield the images of a manifest or index, each with a verified signature."""
    found = parse_manifest(content.data, f"{client.reference}@{content.digest}")
    contents = [content]
    if isinstance(found, Index):
        contents = [client.manifest(one.digest) for one in found.manifests]
    for one in contents:
        image = client.at(client.reference.with_digest(one.digest))
        # The manifest of one image; the architecture is not looked at.
        yield find(image, "", examine=check, content=one)


def _check_names(driver: str, images: tuple[ArtifactImage, ...], tags: tuple[str, ...]) -> None:
    """Check that no tag that hosts look for leads to an image of another kind."""
    for one in images:
        pin = one.pin
        own = tag_of(pin).text
        for tag in tags:
            said = read_tag(tag, [pin.driver.flavour])
            if pin.driver.name != driver or (said and tag != own):
                raise UntrustedError(
                    f"'{one.reference.with_tag(tag)}' is not copied: it is the image of"
                    f" {pin.driver.name} {own}."
                )


def total_size(chosen: tuple[Chosen, ...]) -> int:
    """Return the bytes of the layers of all images, each layer once."""
    layers = {
        layer.digest: layer.size
        for one in chosen
        for trusted in one.images
        for layer in trusted.manifest.layers
    }
    return sum(layers.values())


def require_all(refused: Sequence[str]) -> None:
    """Check that every selected image is trusted."""
    if refused:
        raise UntrustedError(
            f"{len(refused)} of the registry's images are not trusted.",
            resolution="Sign them with your key ('provision registry sign'), or name the public"
            " key that"
            " they are signed with: --public-key FILE",
            details="\n".join(refused),
        )


# Places in a bundle.
PACKAGES = "packages/sha256"
CLOSURES = "packages/closures"
PINS = "pins"
BASES = "bases"
# Folders of further files.
WHEELS, PYTHON, COLLECTION, PROGRAMS = "wheels", "python", "collection", "bin"
SUMS = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.sig"
# Marks a folder as ours before anything is written, so that foreign files are never removed.
_MARKER = ".provision-bundle"
# Spare room for the file system's own needs.
_MARGIN = 64 << 20


@dataclass(frozen=True, slots=True)
class Extras:
    """Files that go into a bundle unchanged."""

    # A folder of wheels, for ``provision_driver_wheelhouse``.
    wheels: Path | None = None
    # Archives of ``provision export host-python``.
    host_python: tuple[Path, ...] = ()
    collections: tuple[Path, ...] = ()
    # ``oci-decorator``, one for each machine.
    programs: tuple[Path, ...] = ()

    def files(self) -> dict[str, Path]:
        """Return the files by their places in a bundle."""
        wheels = sorted(self.wheels.glob("*.whl")) if self.wheels else []
        if self.wheels and not wheels:
            raise NotFoundError(
                f"There are no wheels in '{self.wheels}'.",
                resolution="Fill it: pip download --require-hashes --no-deps -r constraints.txt"
                f" --dest {self.wheels}",
            )
        parts = {
            WHEELS: wheels,
            PYTHON: self.host_python,
            COLLECTION: self.collections,
            PROGRAMS: self.programs,
        }
        return {f"{folder}/{p.name}": p for folder, paths in parts.items() for p in paths}


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a bundle."""

    chosen: tuple[Chosen, ...]
    copies: Mapping[str, Path]
    texts: Mapping[str, str]
    # Images of the engine, by their Pins.
    bases: tuple[tuple[BasePin, Image], ...]

    @property
    def drivers(self) -> frozenset[str]:
        """The drivers that it has images of."""
        return frozenset(one.driver for one in self.chosen)

    @property
    def size(self) -> int:
        """Bytes without small files; base images count with their size in the engine."""
        files = sum(path.stat().st_size for path in self.copies.values())
        return total_size(self.chosen) + files + sum(image.size for _pin, image in self.bases)


def gather(
    access: RegistryAccess,
    address: str,
    selection: ImageSelection,
    extras: Mapping[str, Path] | None = None,
    *,
    builds: bool = True,
) -> Contents:
    """Find everything that a bundle is to hold; nothing is written.

    Base images come from the engine, and what builds need from this machine's package store.

    Args:
        address: Where the artifacts are: ``host[:port][/prefix]``.
        extras: Files that go into it unchanged, by their places.
        builds: Whether it has what builds need: packages, sources, base images.
    """
    chosen, refused = choose(access, address, selection)
    require_all(refused)
    pins = {one.pin.digest: one.pin for each in chosen for one in each.images}
    copies, texts = dict(extras or {}), {}
    bases: tuple[tuple[BasePin, Image], ...] = ()
    missing: list[str] = []
    if builds:
        store = PackageStore(access.settings.state)
        for pin in pins.values():
            name = f"{PINS}/{pin.driver.name}-{pin.short_digest}.json"
            texts[name] = json.dumps(pin_document(pin), indent=1) + "\n"
            texts.update(_closures(store, pin))
            copies.update(_inputs(store, pin, missing))
        bases = tuple(_base_images(access.settings, pins.values(), missing))
    if missing:
        raise NotFoundError(
            "This machine lacks files that builds need, so the bundle would be incomplete.",
            resolution="Make the bundle on the machine that built these, get the files first"
            " ('provision build --pin', 'docker pull'), or leave them out: --artifacts-only.",
            details="\n".join(dict.fromkeys(missing)),
        )
    return Contents(chosen, copies, texts, bases)


def _inputs(store: PackageStore, pin: Pin, missing: list[str]) -> dict[str, Path]:
    """Return the files that a build of a Pin installs; add missing ones to ``missing``."""
    names = {package.sha256: package.name for package in pin.closure}
    for source in pin.sources:
        if source.file is not None and source.sha256 is not None:
            names[source.sha256] = source.address or source.sha256
    found = {}
    for sha256, name in names.items():
        path = store.whole(sha256)
        if path is None:
            missing.append(f"{name} (sha256 {sha256[:12]}…), for {pin.image}")
        else:
            found[f"{PACKAGES}/{sha256}"] = path
    return found


def _closures(store: PackageStore, pin: Pin) -> Iterator[tuple[str, str]]:
    """Yield the solved closures of a Pin, without addresses: a mirror's may hold a password."""
    packages = {package.sha256 for package in pin.closure}
    for path in sorted((store.folder / "closures").glob("*.json")):
        closure = load_if_readable(path, Closure)
        if closure is None:
            continue
        same = {package.sha256 for package in closure.packages} == packages
        if packages and same and closure.kernel == pin.kernel.release:
            bare = closure.model_copy(update={"urls": {}})
            yield f"{CLOSURES}/{path.name}", f"{bare.model_dump_json(by_alias=True, indent=1)}\n"


def _base_images(
    settings: Settings, pins: Iterable[Pin], missing: list[str]
) -> Iterator[tuple[BasePin, Image]]:
    """Yield the base images of Pins, each once; add missing ones to ``missing``."""
    for base in {pin.base.digest: pin.base for pin in pins}.values():
        name, _tag = split_reference(base.image)
        engine = settings.engine()
        image = engine.image(base.digest) or engine.image(f"{name}@{base.digest}")
        if image is None:
            missing.append(f"the base image {base.image}@{base.digest}")
        else:
            yield base, image


def create(
    access: RegistryAccess, contents: Contents, output: Path, signer: Signer | None
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
    # It stays there for others to copy.
    with lock(folder / _MARKER, mode=0o644):
        _write_images(folder, access, contents)
        _write_files(folder, contents, access.settings)
        _tidy(folder, contents)
        files = seal(folder, signer)
        if is_archive:
            report(Note(f"Writing {output}"))
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


def _write_images(folder: Path, access: RegistryAccess, contents: Contents) -> None:
    layouts = {driver: folder / BUNDLE_IMAGES / driver for driver in contents.drivers}
    for layout in layouts.values():
        layout.mkdir(parents=True, exist_ok=True)
        # skopeo adds to it, and takes the blobs that are there.
        (layout / "index.json").unlink(missing_ok=True)
    for number, one in enumerate(contents.chosen, 1):
        text = f"{one.driver} {', '.join(one.tags)}"
        report(Step(number, len(contents.chosen), text))
        registry = connect(access.settings, one.repository.reference)
        target = Layout(layouts[one.driver])
        for tag in one.tags:
            copy(registry, one.content.digest, target, tag)
        for tag in one.signature_tags:
            copy(registry, tag, target, tag)


def _write_files(folder: Path, contents: Contents, settings: Settings) -> None:
    for place, text in contents.texts.items():
        write_atomic(folder / place, text)
    for place, source in contents.copies.items():
        target = folder / place
        if target.is_file() and sha256_file(target) == sha256_file(source):
            continue
        report(Note(f"Copying {place}"))
        with source.open("rb") as content, replacing(target) as stream:
            shutil.copyfileobj(content, stream)
    for base, image in contents.bases:
        place = f"{BASES}/{base.digest.removeprefix('sha256:')}.tar"
        target = folder / place
        if not target.exists():
            report(Note(f"Copying the base image {base.image}"))
            with replacing(target) as stream:
                for chunk in settings.engine().save(image.id):
                    stream.write(chunk)


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
    data = "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(sums.items())).encode()
    if signer is not None:
        write_atomic(folder / SIGNATURE, signer(data))
    write_atomic(folder / SUMS, data)
    return sizes
