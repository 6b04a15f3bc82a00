"""Selects and verifies artifact images of a registry or a bundle, before they are copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase

from provision.build.workspace import Settings
from provision.errors import NotFoundError
from provision.progress import Note, report
from provision.registry.artifact_images import ImageInfo, VerifiedImage, facts_of, find
from provision.registry.find import Connect, TrustOverride, check_of, connect, tag_of
from provision.registry.manifests import Content, Index, Repository, Writable, parse_manifest
from provision.registry.names import parse_reference, read_tag
from provision.registry.signatures import UntrustedError, VerifiedSignature, signature_tag


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

    def takes(self, image: ImageInfo) -> bool:
        """Return whether an image is selected."""
        pin = image.pin
        distro = f"{pin.distro.id}:{pin.distro.version}"
        release = pin.kernel.release
        is_kernel = not self.kernels or any(fnmatchcase(release, one) for one in self.kernels)
        return is_kernel and (not self.distros or distro in self.distros)

    def may_take(self, tag: str) -> bool:
        """Return whether a tag may lead to a selected image; the image itself decides."""
        said = read_tag(tag)
        if said is None:
            return True
        if self.kernels and not any(fnmatchcase(said.kernel, one) for one in self.kernels):
            return False
        escaped = [one.replace(":", "") for one in self.distros]
        return not self.distros or said.distro in escaped


@dataclass(frozen=True, slots=True)
class Chosen:
    """An image to copy, or an index of images."""

    repository: Repository
    driver: str
    content: Content
    images: tuple[VerifiedImage, ...]
    tags: tuple[str, ...]

    @property
    def signature_tags(self) -> tuple[str, ...]:
        """The tags of its signatures."""
        digests = {self.content.digest, *(str(o.image.reference.digest) for o in self.images)}
        known = set(self.repository.tags())
        return tuple(tag for tag in sorted(map(signature_tag, digests)) if tag in known)

    def documents(self) -> list[dict[str, object]]:
        """Return its images as JSON documents."""
        found = []
        for one in self.images:
            facts = asdict(facts_of(one.image.pin, one.facts.serial if one.facts else 0))
            facts |= {"digest": one.image.reference.digest, "tags": list(self.tags)}
            facts |= {"size": one.image.manifest.size}
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
            if any(selection.takes(one.image) for one in images):
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
) -> Iterator[VerifiedImage]:
    """Yield the images of a manifest or index, each with a verified signature."""
    found = parse_manifest(content.data, f"{client.reference}@{content.digest}")
    contents = [content]
    if isinstance(found, Index):
        contents = [client.manifest(one.digest) for one in found.manifests]
    for one in contents:
        image = client.at(client.reference.with_digest(one.digest))
        # The manifest of one image; the architecture is not looked at.
        yield find(image, "", examine=check, content=one)


def _check_names(driver: str, images: tuple[VerifiedImage, ...], tags: tuple[str, ...]) -> None:
    """Check that no tag that hosts look for leads to an image of another kind."""
    for one in images:
        pin = one.image.pin
        own = tag_of(pin).text
        for tag in tags:
            said = read_tag(tag, [pin.driver.flavour])
            if pin.driver.name != driver or (said and tag != own):
                raise UntrustedError(
                    f"'{one.image.reference.with_tag(tag)}' is not copied: it is the image of"
                    f" {pin.driver.name} {own}."
                )


def total_size(chosen: tuple[Chosen, ...]) -> int:
    """Return the bytes of the layers of all images, each layer once."""
    layers = {
        layer.digest: layer.size
        for one in chosen
        for trusted in one.images
        for layer in trusted.image.manifest.layers
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
