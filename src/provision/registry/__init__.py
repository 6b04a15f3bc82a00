"""Registries of container images without an engine; here: their names, and the tags of hosts.

Everything that a registry says is foreign data: sizes are bounded while they are read, content is
compared with its digest before it is parsed or unpacked, and credentials go to the host that they
are for. What may be installed is decided by signatures only (docs/decisions/06-registries.md).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from provision.errors import UsageError

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


@dataclass(frozen=True, slots=True)
class Reference:
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

    def with_tag(self, tag: str) -> Reference:
        """Return the image of another tag in the same repository."""
        return replace(self, tag=tag, digest=None)

    def with_digest(self, digest: str) -> Reference:
        """Return the same image by its digest."""
        return replace(self, digest=digest)


def parse_reference(text: str) -> Reference:
    """Parse an image's name.

    Args:
        text: ``host[:port]/name[:tag][@sha256:…]``, or ``oci:FOLDER/name[:tag][@sha256:…]``;
            without tag and digest, the tag is ``latest``.
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


@dataclass(frozen=True, slots=True)
class HostTag:
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

    They are a guess: only the image's signature is trusted.

    Args:
        flavours: The driver's flavours, if they are known; other names count as part of the
            version.
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
    """Return the tags by which NVIDIA's GPU Operator finds a driver for one kernel.

    Its own images are ``driver:<version or branch>-<kernel>-<distro>``, with the kernel as Node
    Feature Discovery writes it in a label.

    Args:
        version: What the admin gives the operator as version; the branch is its first number.
        distro: Id and version of its distro, such as ``debian:12``.

    Returns:
        That of the version, and that of its branch.
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
