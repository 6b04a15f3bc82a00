"""Artifacts in the forms that other systems load; here: where they are taken from.

They come from a registry, an engine, or the host's own store.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from provision.build.image import is_built_here, pin_label, require_built_here
from provision.build.request import DriverRequest
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.catalogue.suitability import AUTO
from provision.engine.docker_api import extract, find_image, names_registry
from provision.errors import NotFoundError, UsageError
from provision.files import scratch
from provision.kmod.loader import remove_host_files
from provision.kmod.verify import verify_artifact
from provision.manifest import Manifest, load_manifest
from provision.progress import Note, report
from provision.registry import HostTag, Reference, escaped, parse_reference, read_tag
from provision.registry.find import Connect, TrustOverride, connect, examine
from provision.sources.candidates import newest_first
from provision.store.availability import look_for
from provision.store.entries import distrust, record_admission
from provision.store.layout import Layout
from provision.store.obtain import unpack_pulled, verify_and_sign


class ArtifactSource(NamedTuple):
    """The places that artifacts are taken from."""

    settings: Settings
    trust: TrustOverride
    connected: Connect = connect

    def repository(self, driver: str, address: str | None) -> Reference:
        """Return where a registry has a driver's images."""
        where = address or self.settings.config.registry.address
        if where is None:
            raise UsageError(
                "There is no registry that a cluster could pull images from.",
                resolution="Give --registry HOST[:PORT][/PREFIX], or set [registry] address in"
                " /etc/provision/provision.toml.",
            )
        return parse_reference(f"{where}/{driver}")

    def unpack(self, image: str, folder: Path) -> Manifest:
        """Unpack the artifact of a registry's or the engine's image into a new folder.

        It is verified there, and signed as hosts do.
        """
        if names_registry(image):
            client = self.connected(self.settings, parse_reference(image))
            trusted = examine(self.settings, client, {}, self.trust)
            return unpack_pulled(self.settings, trusted, folder)
        engine = self.settings.engine()
        found = find_image(engine, image)
        is_own = is_built_here(self.settings.state, found)
        if not self.trust.insecure:
            require_built_here(
                self.settings.state,
                found,
                image,
                resolution="Build it here, as the user who exports it: provision build DRIVER; or"
                " export an image that is signed: --image REGISTRY/NAME:TAG",
            )
        extract(engine, found, folder, state=self.settings.state)
        label = pin_label(found)
        return verify_and_sign(self.settings, folder, image, pin_label=label, signs=is_own)

    def manifest(self, image: str) -> Manifest:
        """Return the manifest of an image's artifact."""
        with scratch(self.settings.state, "export") as folder:
            return self.unpack(image, folder / "artifact")

    def release(self, repository: Reference, tag: HostTag) -> str:
        """Return the release of a tag's kernel; where characters may be escaped, the image's."""
        if "_" not in tag.kernel.removesuffix("x86_64"):
            return tag.kernel
        client = self.connected(self.settings, repository.with_tag(tag.text))
        return examine(self.settings, client, {}, self.trust).pin.kernel.release

    def artifact(self, request: DriverRequest, folder: Path) -> Manifest:
        """Put the artifact of a driver for one kernel into a new folder.

        It comes from the registry or else from the store; nothing is built.
        """
        kernel = request.kernel or ""
        trusted = None
        if self.settings.config.asks_registries:
            trusted = look_for(self.settings, request, self.trust, connected=self.connected)
        if trusted is not None:
            return unpack_pulled(self.settings, trusted, folder)
        entry = self._stored(request.driver, kernel)
        if entry is None:
            # For an unknown driver, the catalogue's error says more.
            self.settings.catalogue.entry(request.driver)
            raise NotFoundError(
                f"There is no artifact of {request.driver} for {kernel}: neither in a registry nor"
                " in the store.",
                resolution=f"Build it: provision build {request.driver} --kernel {kernel}; then"
                " name the image that it prints: --image IMAGE",
            )
        shutil.copytree(entry, folder, symlinks=True)
        remove_host_files(folder)
        record_admission(folder, None)
        return verify_artifact(folder).require_whole(f"The store entry '{entry}'")

    def _stored(self, driver: str, kernel: str) -> Path | None:
        layout = Layout(self.settings.root, driver)
        for link in (layout.kernel_link(kernel), layout.current):
            entry = layout.linked(link) if link.is_symlink() else None
            if entry is not None:
                manifest = load_manifest(entry)
                if manifest.pin.kernel.release == kernel and self._may_serve(driver, entry):
                    return entry
        return None

    def _may_serve(self, driver: str, entry: Path) -> bool:
        """Return whether an entry may go to other hosts, which trust what is exported here."""
        why = distrust(self.settings.config, self.settings.root, driver, entry)
        if why is None or self.trust.insecure:
            return True
        report(Note(f"{entry} is not exported: {why}"))
        return False


class Choice(NamedTuple):
    """The selected images of a repository."""

    # A version, or the beginning of one; None: the newest.
    version: str | None
    # The driver's flavour; None: its default one.
    flavour: str | None
    # The kernels' distro, such as ``debian:12``; None: the only one in the repository.
    distro: str | None
    # Releases of the kernels; if empty, all that the registry has images for.
    kernels: tuple[str, ...] = ()


def images_of(
    source: ArtifactSource,
    driver: str,
    repository: Reference,
    choice: Choice,
    *,
    is_one_distro: bool = True,
) -> list[HostTag]:
    """Return the tags of a registry's images of one version, for the named kernels or all."""
    recipe = source.settings.catalogue.entry(driver).recipe
    flavour = choice.flavour
    if flavour is None or flavour == AUTO:
        # Other hosts use these images, of whose cards nothing is known here.
        flavour = recipe.default_flavour
    client = source.connected(source.settings, repository)
    found = (read_tag(tag, recipe.flavours) for tag in client.tags())
    own = (tag for tag in found if tag and tag.flavour == flavour)
    tags = sorted(own, key=lambda tag: (tag.kernel, tag.text))
    if is_one_distro or choice.distro:
        tags = _of_distro(tags, choice.distro, driver)
    tags = _of_version(tags, choice.version)
    kernels = [tag.kernel for tag in tags]
    missing = [kernel for kernel in choice.kernels if escaped(kernel) not in kernels]
    if missing or not tags:
        name = " ".join(filter(None, (driver, choice.version, f"({flavour})")))
        kernel = missing[0] if missing else "RELEASE"
        registry = repository.name.rpartition("/")[0]
        raise NotFoundError(
            f"'{repository.with_tag('')}' has no image of {name} for"
            f" {', '.join(missing) or 'any kernel'}.",
            resolution=f"Build and push it: provision build {driver} --kernel {kernel} --push"
            f" {registry} --sign. What is there: provision registry list {driver}"
            f" --registry {registry}",
            details=f"It has images for {', '.join(kernels) or 'no kernel'}.",
        )
    named = {escaped(kernel) for kernel in choice.kernels}
    return [tag for tag in tags if not named or tag.kernel in named]


def _of_distro(tags: list[HostTag], distro: str | None, driver: str) -> list[HostTag]:
    names = sorted({tag.distro for tag in tags})
    if distro is None and len(names) > 1:
        raise UsageError(
            f"There are images of {driver} for several distros, and these objects are for one.",
            resolution=f"Name one of {', '.join(names)}: --distro {names[0]}",
        )
    return [tag for tag in tags if distro is None or tag.distro == distro.replace(":", "")]


def _of_version(tags: list[HostTag], version: str | None) -> list[HostTag]:
    versions = {tag.version for tag in tags}
    if version is not None:
        named = escaped(version)
        beginning = {one for one in versions if one.startswith(f"{named}.")}
        versions = {named} if named in versions else beginning
    newest = next(iter(newest_first(versions)), None)
    return [tag for tag in tags if tag.version == newest]


def note_dra(catalogue: Catalogue, driver: str, version: str) -> None:
    """Say so if pods that claim the devices will not start with this version, or branch.

    Whether a cluster has the DRA driver can't be seen here.
    """
    try:
        dra = catalogue.entry(driver).recipe.dra
    except NotFoundError:
        # A named image may hold a driver that no recipe here describes.
        return
    if dra is not None and (why := dra.refuses(version)):
        report(Note(f"for clusters with dynamic resource allocation: {why}"))


def check_driver(manifest: Manifest, driver: str, image: str) -> None:
    """Check that an image holds the driver that is exported."""
    found = manifest.pin.driver.name
    if found != driver:
        raise UsageError(
            f"'{image}' holds {found}, not {driver}.",
            resolution=f"Name an image of {driver}, or export {found}.",
        )
