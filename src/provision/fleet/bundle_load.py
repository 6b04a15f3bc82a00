"""Loads bundles behind an air gap: into a registry there, or into one host.

Every file is compared with the signed list before any file is used. Each artifact still needs its
own signature, as from a registry: the signature of the bundle does not replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from provision.build.package_store import Closure, PackageStore
from provision.documents import parse_json
from provision.engine.docker_api import Engine
from provision.engine.scratch import scratch
from provision.fleet.bundle_contents import CLOSURES, PACKAGES
from provision.fleet.bundle_index import Bundle, BundleArtifact
from provision.fleet.selection import RegistryAccess
from provision.host.kernels import find_kernels, machine
from provision.pipeline.pulling import store_pulled
from provision.pipeline.registries import BUNDLE_IMAGES, check_of, examine
from provision.pipeline.workspace import Settings
from provision.progress import Note, Progress, Step
from provision.registry.artifact_images import find
from provision.registry.copying import ImageCopier, uploader
from provision.registry.image_layout import open_layout
from provision.registry.manifests import Repository
from provision.registry.names import Reference
from provision.registry.storage import read_small, refused

_LONGEST_CLOSURE = 16 << 20


@dataclass(slots=True)
class Loaded:
    """The result of loading a bundle.

    Attributes:
        pushed: Names in the registry.
        sent: Bytes that were sent to it.
        entries: Entries of the store.
        packages: Files that the package store did not have.
        closures: Solved closures that it did not have.
        bases: Base images that the engine did not have.
        changed: Whether anything was done.
    """

    pushed: list[str] = field(default_factory=list)
    sent: int = 0
    entries: list[str] = field(default_factory=list)
    packages: int = 0
    closures: int = 0
    bases: list[str] = field(default_factory=list)
    changed: bool = False


def push_bundle(access: RegistryAccess, bundle: Bundle, address: str) -> Loaded:
    """Copy all artifact images of a bundle, with their signatures, to a registry.

    Args:
        access: How the registry is reached.
        bundle: The bundle; its files were checked.
        address: The registry: ``host[:port][/prefix]``.

    Raises:
        UntrustedError: An artifact lacks a trusted signature; nothing was sent.
        UnreachableError: The registry kept failing.
        ProvisionError: It refuses, or the bundle describes an image wrongly.
    """
    done = Loaded()
    for artifact in bundle.index.artifacts:
        _examine(access, bundle, artifact)
    contents = {(one.driver, one.within): one for one in bundle.index.artifacts}
    with scratch(access.settings.state, "mirror", progress=access.progress) as folder:
        for number, artifact in enumerate(contents.values(), 1):
            text = f"{artifact.driver} {', '.join(artifact.tags)}"
            access.progress(Step(number, len(contents), text))
            name = f"{address}/{artifact.driver}"
            source = _repository(bundle, artifact)
            copier = ImageCopier(source, uploader(access.client(name)), folder, access.progress)
            copier.copy(source.manifest(artifact.within), artifact.tags)
            done.sent += copier.size
            done.changed |= copier.blobs > 0
            done.pushed += [f"{name}:{tag}" for tag in artifact.tags]
    return done


def _examine(access: RegistryAccess, bundle: Bundle, artifact: BundleArtifact) -> None:
    """Check that an artifact has a trusted signature and is what the bundle says."""
    repository = _repository(bundle, artifact)
    check = check_of(access.settings, repository, {}, access.consent, artifact.driver)
    image = find(repository, artifact.architecture, examine=check).image
    if image.pin.digest != artifact.pin or image.pin.driver.name != artifact.driver:
        raise refused(bundle.name, f"{artifact.digest} is not the image that the index describes")


def for_host(
    settings: Settings, bundle: Bundle, *, all_kernels: bool = False
) -> tuple[BundleArtifact, ...]:
    """Return the artifacts of a bundle that a host can use.

    Args:
        settings: The host.
        bundle: The bundle.
        all_kernels: Also those for kernels that the host does not have.
    """
    kernels = find_kernels(settings.root).bootable
    own = machine(settings.root)
    return tuple(
        one
        for one in bundle.index.artifacts
        if one.architecture == own and (all_kernels or one.kernel in kernels)
    )


def store_bundle(
    access: RegistryAccess,
    bundle: Bundle,
    artifacts: tuple[BundleArtifact, ...],
    *,
    engine: Callable[[], Engine] | None = None,
) -> Loaded:
    """Put artifacts into a host's store, and what builds need into its package store.

    Args:
        access: The host, and what it accepts.
        bundle: The bundle; its files were checked.
        artifacts: The artifacts for the host.
        engine: Connects to the engine that loads the base images; None: they are not loaded.

    Raises:
        UntrustedError: An artifact lacks a trusted signature, or is older than an earlier one.
        ProvisionError: An artifact is damaged, the disk is full, or the engine failed.
    """
    done = Loaded()
    settings, consent, progress = access.settings, access.consent, access.progress
    trusted = []
    for artifact in artifacts:
        expected = {"driver": artifact.driver, "pin": artifact.pin}
        trusted.append(examine(settings, _repository(bundle, artifact), expected, consent))
    for one in trusted:
        stored = store_pulled(settings, one, consent, progress=progress).stored
        done.entries.append(str(stored.entry))
        done.changed |= stored.added
    _fill_packages(settings, bundle, done, progress)
    if engine is not None:
        _load_bases(bundle, engine(), done, progress)
    done.changed |= bool(done.packages or done.closures or done.bases)
    return done


def _repository(bundle: Bundle, artifact: BundleArtifact) -> Repository:
    reference = Reference(f"file:{bundle.name}", artifact.driver, digest=artifact.digest)
    return open_layout(bundle.below(f"{BUNDLE_IMAGES}/{artifact.driver}"), reference)


def _fill_packages(settings: Settings, bundle: Bundle, done: Loaded, progress: Progress) -> None:
    store = PackageStore(settings.state)
    for path in _below(bundle, PACKAGES):
        sha256 = path.rpartition("/")[2]
        if bundle.listed[path].sha256 != sha256:
            raise refused(bundle.name, f"'{path}' in it has another checksum than its name")
        if store.whole(sha256) is None:
            progress(Note(f"Adding {path}"))
            with bundle.open(path) as stream:
                store.add(stream, sha256=sha256, name=path)
            done.packages += 1
    for path in _below(bundle, CLOSURES):
        key = Path(path).stem
        text = read_small(bundle, path, _LONGEST_CLOSURE).decode(errors="replace")
        closure = parse_json(text, Closure, name=f"{bundle.name}: {path}")
        if store.closure(key) is None:
            store.keep(key, closure)
            done.closures += 1


def _load_bases(bundle: Bundle, engine: Engine, done: Loaded, progress: Progress) -> None:
    for base in bundle.index.bases:
        if engine.image(base.digest) is not None:
            continue
        progress(Note(f"Loading the base image {base.image}"))
        with bundle.open(base.file) as stream:
            engine.load(stream)
        done.bases.append(f"{base.image}@{base.digest}")
        if engine.image(base.digest) is None:
            progress(
                Note(
                    f"{base.image} was loaded, but the engine has no image {base.digest}: Pins with"
                    " that digest can't be built with it. Push the image to a registry behind the"
                    " air gap, and set base_images to it"
                )
            )


def _below(bundle: Bundle, folder: str) -> Iterator[str]:
    return (path for path in sorted(bundle.listed) if path.startswith(f"{folder}/"))
