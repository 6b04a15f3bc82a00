"""The base image of the build stages: named, found here, pulled, or imported."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from provision import distros
from provision.build.output import transfer
from provision.build.workspace import Settings
from provision.documents import mistakes_of
from provision.engine.docker_api import (
    Engine,
    Image,
    Message,
    split_reference,
)
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.pin import BasePin, DistroPin, names_of
from provision.progress import Note, report

# Where Docker's official images are, by machine.
_OFFICIAL = {"x86_64": "amd64", "aarch64": "arm64v8"}


@dataclass(frozen=True, slots=True)
class BaseRequest:
    """The base image that is asked for."""

    distro: DistroPin
    architecture: str
    # ``name:tag`` or ``name@digest`` of another image; None: the distro's own.
    reference: str | None = None
    # Whether provision can make it from the distro's packages.
    can_be_made: bool = True
    # Debootstrap's script for it; None: the one that has the codename.
    script: str | None = None
    # Whether to look for it in a registry. An image that is only made locally is not looked for
    # there, because others could publish one under its name.
    is_published: bool = True

    @property
    def name(self) -> str:
        """The reference to look for."""
        return self.reference or image_for(
            self.architecture, f"{self.distro.id}:{self.distro.codename}"
        )


def image_for(machine: str, image: str) -> str:
    """Return what Docker's official images call an image for a machine.

    For another machine than this one they are in repositories of their own, so that a local image
    keeps its name. Source: https://github.com/docker-library/official-images#architectures-other-than-amd64
    """
    is_official = "/" not in image
    if machine == platform.machine() or not is_official:
        return image
    return f"{_OFFICIAL.get(machine, machine)}/{image}"


def base_request(
    settings: Settings, distro: DistroPin, *, reference: str | None = None
) -> BaseRequest:
    """Return the base image on which a distro is built here."""
    # For a build in a kernel tree, provision may have no data of the distro.
    data = distros.distro_named(distro.id)
    release = data.release(distro.version) if data else None
    if data and release and data.family == "tree" and release.version != distro.version:
        # These distros have an image for each version, and none for a whole release.
        release = None
    configured = _configured_image(settings, distro, data)
    apt = data.apt if data else None
    published = (
        image_for(settings.architecture, release.image) if release and release.image else None
    )
    return BaseRequest(
        distro=distro,
        architecture=settings.architecture,
        reference=reference or configured or published,
        # Not under a name that an admin chose: it stands for something else.
        can_be_made=not (reference or configured)
        and (apt is not None or bool(data and data.base_packages)),
        script=apt.debootstrap_script if apt else None,
    )


def _configured_image(
    settings: Settings, distro: DistroPin, data: distros.Distro | None
) -> str | None:
    """Return the base image that provision.toml names; its ``9.4`` is a release of 9 too."""
    images = settings.config.distro(distro.id).base_images
    if distro.version in images or data is None or data.family == "tree":
        return images.get(distro.version)
    release = data.release(distro.version)
    return next((image for name, image in images.items() if data.release(name) == release), None)


def named_base(request: BaseRequest) -> BasePin | None:
    """Return the base image of a request that names it by its digest; no engine is needed."""
    name, digest = split_reference(request.name)
    if "@" not in request.name or digest is None:
        return None
    return base_pin(request.name.split("@", 1)[0] or name, digest)


def find_base(engine: Engine, request: BaseRequest) -> BasePin:
    """Return the base image of a name with its digest; pull it if it is not local."""
    name, _tag = split_reference(request.name)
    image = engine.image(request.name)
    if image is None and request.is_published:
        image = _pulled(engine, request)
    if image is None:
        raise NotFoundError(
            f"There is no base image '{request.name}', here or in its registry."
            if request.is_published
            else f"There is no base image '{request.name}' here.",
            resolution=f"Pull it (docker pull {request.name}), or name another with --base or in"
            f" /etc/provision/provision.toml: [distros.{request.distro.id}] base_images.",
        )
    require_architecture(image, request.name, request.architecture)
    return base_pin(request.name, _digest(image, name))


def ensure_base(engine: Engine, base: BasePin) -> Image:
    """Return exactly the image that a Pin names; pull it by its digest if necessary."""
    name, _tag = split_reference(base.image)
    pinned = f"{name}@{base.digest}"
    image = engine.image(base.digest) or engine.image(pinned)
    if image is None:
        report(Note(f"Pulling the base image {pinned}"))
        _drain(engine.pull(pinned))
        image = engine.image(pinned)
    if image is None:
        raise NotFoundError(
            f"The base image that the Pin names, '{pinned}', is neither here nor in a registry.",
            resolution="Resolve again, so that the Pin names the base image of this machine, or "
            "name one with --base.",
        )
    return image


def image_of_tree(engine: Engine, tree: Path, request: BaseRequest, maker: str) -> BasePin:
    """Import a root filesystem; its parent folder needs room for a copy."""
    archive = tree.parent / "image.tar"
    _pack(tree, archive, request, maker)
    with archive.open("rb") as stream:
        engine.load(stream)
    image = engine.image(request.name)
    if image is None:
        raise ProvisionError(
            f"The engine at {engine.host} imported '{request.name}' but does not list it.",
            resolution="Look into the engine's log (journalctl -u docker),"
            " then run the command again.",
        )
    return base_pin(request.name, image.id)


def base_pin(name: str, digest: str) -> BasePin:
    """Return what a Pin says of an image; refuse a name that is none."""
    try:
        return BasePin(image=name, digest=digest)
    except ValidationError as error:
        raise UsageError(
            f"'{name}' ({digest}) is not a valid image name.",
            resolution="Give it as NAME:TAG or NAME@sha256:…, in lower case.",
            details="\n".join(map(str, mistakes_of(error))),
        ) from error


def _digest(image: Image, name: str) -> str:
    """Return the registry's digest of the image, or its own id where it has none."""
    of_registry = [d.split("@", 1)[1] for d in image.digests if d.split("@", 1)[0] == name]
    return sorted(of_registry)[0] if of_registry else image.id


def _pulled(engine: Engine, request: BaseRequest) -> Image | None:
    report(Note(f"Pulling the base image {request.name}"))
    architecture = names_of(request.architecture).go
    _drain(engine.pull(request.name, platform=f"linux/{architecture}"))
    return engine.image(request.name)


def _drain(messages: Iterator[Message]) -> None:
    """Follow a pull. If it fails, a note says why, and the image is missing afterwards."""
    try:
        for message in messages:
            if "error" in message:
                report(Note(f"Not pulled: {message['error']}"))
            for event in transfer(message):
                report(event)
    except ProvisionError as error:
        report(Note(f"Not pulled: {error.details or error.message}"))


def require_architecture(image: Image, name: str, machine: str) -> None:
    """Refuse a base image for another architecture than a kernel's."""
    architecture = names_of(machine).go
    if image.architecture != architecture:
        raise ProvisionError(
            f"The base image '{name}' is for {image.architecture}, not {architecture}.",
            resolution=f"Pull the right one: docker pull --platform linux/{architecture} {name};"
            " or name another with --base.",
        )


def _pack(tree: Path, archive: Path, request: BaseRequest, maker: str) -> None:
    """Write a tree as the archive of an image of one layer, like the distro's own.

    No import by the engine: Docker 20.10 then takes any image for one of its own machine.
    Source: https://github.com/moby/docker-image-spec/blob/v1.3.1/spec.md
    """
    layer = archive.with_name("layer.tar")
    try:
        with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as packed:
            packed.add(tree, arcname=".", filter=_plain)
    except (tarfile.TarError, ValueError) as error:
        raise ProvisionError(
            f"'{tree}' could not be packed: {error}.",
            resolution="Run the command again, which makes the tree again.",
        ) from error
    with layer.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    # With a Z: Docker 20.10 takes another spelling of the same time for another time.
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    config = {
        "architecture": names_of(request.architecture).go,
        "os": "linux",
        "created": now,
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Cmd": ["bash"],
            "Labels": {
                "org.opencontainers.image.title": f"{request.distro.id} {request.distro.version}",
                "org.opencontainers.image.description": f"Made by {maker}",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": now, "created_by": maker}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [request.name], "Layers": [layer.name]}]
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as packed:
        packed.add(layer, arcname=layer.name)
        for name, document in (("config.json", config), ("manifest.json", manifest)):
            content = json.dumps(document).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    layer.unlink()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Drop user names: the numbers are the image's own, the names this machine's."""
    entry.uname = entry.gname = ""
    return entry
