"""Registries of container images without an engine; here: names of images, tags, and manifests.

Everything that a registry says is foreign data: sizes are bounded while they are read, content is
compared with its digest before it is parsed or unpacked, and credentials go to the host that they
are for. What may be installed is decided by signatures only (docs/decisions/06-registries.md).

Manifests are read as far as artifacts use them. Sources:
https://github.com/opencontainers/image-spec/blob/v1.1.0/manifest.md (also image-index.md and
config.md), https://distribution.github.io/distribution/spec/manifest-v2-2/.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field

from provision.documents import Foreign, refusing
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.pin import MACHINE_OF_GO, ImageDigest

# https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pulling-manifests
_REPOSITORY = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_NAME = 255
_LONGEST_TAG = 128
_KEPT_OF_LONG_TAG = 115
_DIGITS = 12
# Suffix of the images that Kubernetes' KMM makes when it signs modules, in a format of its own.
KMM_SIGNED = ".signed"
# The underscore before the name of a pre-release, which sorts before the release, as "~" does.
_BEFORE_RELEASE = re.compile(r"_(?=(?:alpha|beta|dev|git|pre|preview|rc)(?![a-z]))")
_HUB = "docker.io"
# Begins the name of a folder that is used like a registry, as skopeo calls it. No registry and no
# rule of [trust.registries] can have it, because a port is a number.
FOLDER = "oci:"
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|\[::1\]")
# The kernel begins with a digit and the flavour with a letter, in every recipe there is.
_TAG_OF_HOSTS = re.compile(
    r"(?P<version>[A-Za-z0-9._-]+?)-(?P<flavour>[a-z][a-z0-9._]*)-(?P<kernel>[0-9]+\..+?)"
    r"\.(?P<distro>[a-z][a-z-]*[0-9.]*)"
)


class Reference(NamedTuple):
    """An image in a registry, or in a folder."""

    # ``host[:port]``, or ``oci:FOLDER``.
    registry: str
    # ``drivers/nvidia``.
    repository: str
    # Its tag; None if only the digest was given.
    tag: str | None = None
    # ``sha256:…`` of its manifest; None if the tag decides.
    digest: str | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"

    @property
    def name(self) -> str:
        """The repository with its registry: ``host[:port]/drivers/nvidia``."""
        return f"{self.registry}/{self.repository}"

    @property
    def layout(self) -> Path | None:
        """The OCI image layout of a folder that has the repository; None: it is a registry's."""
        if not self.registry.startswith(FOLDER):
            return None
        return Path(self.registry.removeprefix(FOLDER), self.repository)

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is this machine itself."""
        host = self.registry
        name = host if host.endswith("]") else re.sub(r":[0-9]+$", "", host)
        return bool(_LOOPBACK.fullmatch(name))

    def with_tag(self, tag: str) -> Self:
        """Return the image of another tag in the same repository."""
        return self._replace(tag=tag, digest=None)

    def with_digest(self, digest: str) -> Self:
        """Return the same image by its digest."""
        return self._replace(digest=digest)


def parse_reference(text: str) -> Reference:
    """Parse an image's name: ``host[:port]/name[:tag][@sha256:…]``, or ``oci:FOLDER/name…``.

    Without tag and digest, the tag is ``latest``.
    """
    name, at, digest = text.partition("@")
    if at and ("/" in digest or "/" not in name) and not text.startswith(FOLDER):
        # Whatever stands before the host may be secret.
        place = text.rpartition("@")[2]
        raise UsageError(
            f"'***@{place}' is not a valid image name: a login has no place in it.",
            resolution=f"Log in apart from the name: docker login {place.partition('/')[0]}",
        )
    folder, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    is_folder = text.startswith(FOLDER) and len(folder) > len(FOLDER)
    if is_folder:
        registry, repository = folder, last
    else:
        registry, _, repository = f"{folder}{slash}{last}".partition("/")
    if registry == _HUB and "/" not in repository:
        repository = f"library/{repository}"
    is_good = (
        (is_folder or _HOST.fullmatch(registry))
        and ("." in registry or ":" in registry)
        and _REPOSITORY.fullmatch(repository)
        and len(repository) <= _LONGEST_NAME
        and (_TAG.fullmatch(tag) if colon else True)
        and (DIGEST.fullmatch(digest) if at else True)
    )
    if not is_good:
        raise UsageError(
            f"'{text}' is not a valid image name.",
            resolution="Name it as registry.example[:5000]/drivers/nvidia:TAG, in a folder as"
            " oci:FOLDER/nvidia:TAG, or with @sha256:DIGEST in place of the tag; the digest has 64"
            " hexadecimal digits.",
        )
    if not tag and not digest:
        tag = "latest"
    return Reference(registry, repository, tag or None, digest or None)


def check_push_name(text: str) -> None:
    """Check that a name to push to has a registry and no digest.

    Engines regard a name without a host as one of Docker's public hub.
    """
    # A folder alone is completed by driver and tag.
    if "@" in text or not text.startswith(FOLDER):
        parse_reference(text)
    if "@" in text:
        raise UsageError(
            f"'{text}' has a digest in it, and nothing can be pushed under that.",
            resolution=f"Give a tag: {text.partition('@')[0]}",
        )


class HostTag(NamedTuple):
    """The parts of a tag that hosts look for: ``<version>-<flavour>-<kernel>.<distro>``.

    Where they were read from a tag, they are escaped: ``6.12.48_deb13-amd64`` and ``debian13``.
    """

    version: str
    flavour: str
    kernel: str
    # Id and version of the kernel's distro, such as ``debian:12``.
    distro: str

    @property
    def suffix(self) -> str:
        """The part of the tag after the version."""
        return escaped(f"-{self.flavour}-{self.kernel}.{self.distro.replace(':', '')}")

    @property
    def text(self) -> str:
        """The tag; one that would be too long ends with a digest of the whole."""
        whole = f"{self.version}{self.suffix}"
        tag = escaped(whole)
        if len(tag) <= _LONGEST_TAG:
            return tag
        digest = hashlib.sha256(whole.encode()).hexdigest()[:_DIGITS]
        return f"{tag[:_KEPT_OF_LONG_TAG]}-{digest}"


def read_tag(tag: str, flavours: Iterable[str] = ()) -> HostTag | None:
    """Return the parts of a tag; None if it is not one that hosts look for.

    They are a guess: only the image's signature is trusted. Names that are not among the driver's
    flavours count as part of the version.
    """
    if tag.endswith(KMM_SIGNED):
        return None
    for flavour in flavours:
        pattern = rf"(?P<version>.+?)-{re.escape(escaped(flavour))}-(?P<kernel>[0-9]+\..+?)"
        found = re.fullmatch(rf"{pattern}\.(?P<distro>[a-z][a-z-]*[0-9.]*)", tag)
        if found:
            return HostTag(found["version"], flavour, found["kernel"], found["distro"])
    found = _TAG_OF_HOSTS.fullmatch(tag)
    return HostTag(**found.groupdict()) if found else None


def pin_tag(pin: str) -> str:
    """Return the permanent tag for the image of a Pin, given the Pin's digest."""
    return f"pin-{pin.removeprefix('sha256:')}"


# Distros of which NVIDIA's GPU Operator knows one image for all minor releases.
# https://github.com/NVIDIA/gpu-operator/blob/v26.7.0/internal/state/nodepool.go
_WITHOUT_MINOR = frozenset({"rhel", "rocky", "ol"})


def operator_tags(version: str, kernel: str, distro: str) -> tuple[str, str]:
    """Return the tags by which NVIDIA's GPU Operator finds a driver: of the version, of its branch.

    Its own images are ``driver:<version or branch>-<kernel>-<distro>``, with the kernel as Node
    Feature Discovery writes it in a label. The branch is the version's first number.
    """
    name, _, release = distro.partition(":")
    system = name + (release.partition(".")[0] if name in _WITHOUT_MINOR else release)
    number, dash, flavour = version.partition("-")
    branch = f"{number.partition('.')[0]}{dash}{flavour}"
    end = f"-{kernel}-{system}"
    return escaped(f"{version}{end}"), escaped(f"{branch}{end}")


def version_of_tag(text: str) -> str:
    """Return a comparable version from its form in tags.

    In tags, ``_`` replaces ``+``, ``~`` and others. It becomes ``~`` before a word for a
    pre-release: ``2.0_rc1`` is older than ``2.0``, ``2.0_dfsg`` newer.
    """
    return _BEFORE_RELEASE.sub("~", text).replace("_", "+")


def escaped(text: str) -> str:
    """Return a text as a tag has it: `_` in place of other characters, as Kubernetes' KMM does."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)


OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
MANIFESTS = (OCI_MANIFEST, DOCKER_MANIFEST)
INDEXES = (OCI_INDEX, DOCKER_LIST)
_GZIP = (
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
)
_PLAIN = (
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
)
# Other tools write these: skopeo with --dest-compress-format zstd, BuildKit with compression=zstd.
_ZSTD = (
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
)
# Registries refuse larger manifests: distribution-spec 1.1, "Pushing manifests".
LONGEST_MANIFEST = 4 << 20
LARGEST_LAYER = 4 << 30
# Where a layout has its blobs: image-layout.md.
BLOBS = "blobs/sha256"
_MOST_LAYERS = 128
_MOST_MANIFESTS = 1024
_NOT_OURS = "This is no artifact image that provision built: don't use it."


class Content(NamedTuple):
    """A manifest: its bytes, and the digest of these bytes."""

    data: bytes
    digest: str


class Platform(Foreign):
    """The platform of an image in an index."""

    architecture: str = ""
    os: str = ""


class Descriptor(Foreign):
    """A reference to content by its digest."""

    media_type: str = Field(alias="mediaType", max_length=255)
    digest: ImageDigest
    size: int = Field(ge=0, le=LARGEST_LAYER)
    annotations: Mapping[str, str] = Field(default_factory=dict)
    platform: Platform = Platform()

    @property
    def is_gzip(self) -> bool:
        """Whether it is a layer that is compressed with gzip."""
        return self.media_type in _GZIP

    @property
    def is_zstd(self) -> bool:
        """Whether it is a layer that is compressed with zstd."""
        return self.media_type in _ZSTD


class ImageManifest(Foreign):
    """An image, or the signatures of one."""

    schema_version: Literal[2] = Field(alias="schemaVersion")
    config: Descriptor
    layers: tuple[Descriptor, ...] = Field(max_length=_MOST_LAYERS)

    @property
    def size(self) -> int:
        """Bytes of all layers, as they are transferred."""
        return sum(layer.size for layer in self.layers)


class Index(Foreign):
    """Images of one name for several architectures."""

    schema_version: Literal[2] = Field(alias="schemaVersion")
    manifests: tuple[Descriptor, ...] = Field(max_length=_MOST_MANIFESTS)

    def of(self, architecture: str, name: str) -> Descriptor:
        """Return the image for an architecture, which is named as by ``uname -m``."""
        for one in self.manifests:
            known = MACHINE_OF_GO.get(one.platform.architecture)
            if known == architecture and one.platform.os in {"linux", ""}:
                return one
        raise NotFoundError(
            f"'{name}' has no image for {architecture}.",
            resolution="Build and push one on such a machine:"
            f" provision build DRIVER --push {name}",
        )


class _RootFs(Foreign):
    diff_ids: tuple[ImageDigest, ...] = Field(max_length=_MOST_LAYERS)


class _ConfigBody(Foreign):
    labels: Mapping[str, str] | None = Field(default=None, alias="Labels")


class _Config(Foreign):
    rootfs: _RootFs
    config: _ConfigBody | None = None


def parse_manifest(data: bytes, name: str) -> ImageManifest | Index:
    """Parse a manifest whose digest was compared before."""
    document = _object(data, name)
    kind = document.get("mediaType")
    has_layers, has_manifests = "layers" in document, "manifests" in document
    # https://github.com/opencontainers/image-spec/security/advisories/GHSA-77vh-xpmg-72qh
    if has_layers and has_manifests:
        raise _refused(name, "has both layers and manifests, and can be read in two ways")
    if kind is not None and kind not in (INDEXES if has_manifests else MANIFESTS):
        raise _refused(name, f"is a {str(kind)[:80]}, and no image")
    with refusing(f"'{name}' is refused: it is no manifest of an image.", resolution=_NOT_OURS):
        return (Index if has_manifests else ImageManifest).model_validate_json(data)


def check_image(manifest: ImageManifest, name: str) -> None:
    """Check that all layers of an image can be unpacked."""
    if manifest.config.media_type not in {OCI_CONFIG, DOCKER_CONFIG}:
        raise _refused(name, f"holds a {manifest.config.media_type}, and no image")
    if not manifest.layers:
        raise _refused(name, "has no layers")
    for layer in manifest.layers:
        if layer.media_type not in (*_GZIP, *_ZSTD, *_PLAIN):
            raise _refused(name, f"has a layer of the kind {layer.media_type}")
    if manifest.config.size > LONGEST_MANIFEST:
        raise _refused(name, "has a configuration that is too large")
    if manifest.size > LARGEST_LAYER:
        raise _refused(name, f"is larger than {LARGEST_LAYER} bytes")


def parse_labels(data: bytes, manifest: ImageManifest, name: str) -> Mapping[str, str]:
    """Return the labels in an image's configuration."""
    with refusing(f"'{name}' is refused: its configuration is not valid.", resolution=_NOT_OURS):
        config = _Config.model_validate_json(data)
    if len(config.rootfs.diff_ids) != len(manifest.layers):
        raise _refused(name, "has another number of layers than its configuration says")
    return (config.config.labels if config.config else None) or {}


def _object(data: bytes, name: str) -> Mapping[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _refused(name, "is not JSON") from error
    if not isinstance(document, Mapping):
        raise _refused(name, "is no JSON object")
    return document


def _refused(name: str, why: str) -> ProvisionError:
    return ProvisionError(f"'{name}' is refused: it {why}.", resolution=_NOT_OURS)


def content_digest(data: bytes) -> str:
    """Return the digest of content, as registries write it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blob_path(folder: Path, descriptor: Descriptor) -> Path:
    """Return the file of a layer that was fetched into a folder."""
    return folder / BLOBS / descriptor.digest.removeprefix("sha256:")
