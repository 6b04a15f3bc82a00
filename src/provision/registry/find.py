"""Finds the image that a host needs: where it looks, whom it trusts, what it accepts and unpacks.

A name without a registry's host is local, and is looked for in no registry. Only signatures make
the answers of a registry trusted (docs/decisions/06-registries.md). An image is examined in this
order: the manifest's bytes, their digest, the signature of that digest, the signed facts, the
image's configuration, and then its layers, all by their digests.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from provision.build.request import VersionRequest
from provision.build.workspace import Settings
from provision.documents import parse_json
from provision.engine.tar_streams import layer_content, unzstd
from provision.errors import (
    ConfigError,
    DeniedError,
    NotFoundError,
    ProvisionError,
    UnreachableError,
    UntrustedError,
    WrongContentError,
    choices,
)
from provision.files import in_root, settled_path
from provision.host.kernels import machine
from provision.pin import PIN_LABEL, Pin
from provision.progress import Note, report
from provision.registry import (
    FOLDER,
    Content,
    Descriptor,
    HostTag,
    ImageManifest,
    Index,
    Reference,
    blob_path,
    check_image,
    content_digest,
    parse_labels,
    parse_manifest,
    parse_reference,
    pin_tag,
    read_tag,
    version_of_tag,
)
from provision.registry.repositories import (
    ImageLayout,
    Registry,
    Repository,
    folder_layout,
)
from provision.registry.signatures import (
    PublicKey,
    SignedFacts,
    VerifiedSignature,
    load_keys,
    settled_keys,
    verify_signature,
)
from provision.sources.candidates import newest_first


class ArtifactImage(NamedTuple):
    """An artifact image of a repository, of which only manifest and configuration were read."""

    client: Repository
    # By its digest, which the bytes of the manifest have.
    reference: Reference
    manifest: ImageManifest
    labels: Mapping[str, str]
    # One of them.
    pin: Pin
    # Its verified signature; None if none is required.
    verified: VerifiedSignature | None = None
    # The version that was asked for. Naming a version or branch is trust to it: the image is
    # compared only with earlier ones that would have satisfied the same request.
    request: VersionRequest = VersionRequest()

    @property
    def facts(self) -> SignedFacts | None:
        """The signed facts."""
        return self.verified.facts if self.verified else None


def read_image(
    client: Repository,
    architecture: str,
    *,
    examine: Callable[[str], VerifiedSignature | None] | None = None,
) -> ArtifactImage:
    """Return the image of a client's reference, once its signature was examined.

    The architecture (``uname -m``) selects an image of an index. ``examine`` verifies the signature
    of a manifest with this digest; without it, none is required.
    """
    name = str(client.reference)
    content, manifest = _manifest(client, architecture)
    reference = client.reference.with_digest(content.digest)
    verified = examine(content.digest) if examine else None
    check_image(manifest, name)
    labels = _labels(client, content.digest, manifest)
    pin = _pin(labels, name)
    if (
        verified is not None
        and verified.facts is not None
        and facts_of(pin, verified.facts.serial) != verified.facts
    ):
        raise UntrustedError(
            f"'{reference}' is refused: its Pin is not the one that is signed.",
            resolution="Sign it again: provision registry sign",
        )
    return ArtifactImage(client, reference, manifest, labels, pin, verified)


def _manifest(client: Repository, architecture: str) -> tuple[Content, ImageManifest]:
    name = str(client.reference)
    content = client.manifest(client.reference.digest or client.reference.tag or "latest")
    found = parse_manifest(content.data, name)
    if isinstance(found, Index):
        content = client.manifest(found.of(architecture, name).digest)
        found = parse_manifest(content.data, name)
    if isinstance(found, Index):
        raise ProvisionError(
            f"'{name}' is refused: it is an index of indexes.",
            resolution="Push the image itself: provision registry push IMAGE",
        )
    return content, found


def _labels(client: Repository, digest: str, manifest: ImageManifest) -> Mapping[str, str]:
    data = client.config(digest, manifest)
    if content_digest(data) != manifest.config.digest:
        raise WrongContentError(
            f"'{client.reference.name}@{digest}' is damaged: its configuration is another one than"
            " its manifest names.",
            resolution="Have it pushed again by those who build it: provision registry push IMAGE",
        )
    return parse_labels(data, manifest, str(client.reference))


def _pin(labels: Mapping[str, str], name: str) -> Pin:
    try:
        return parse_json(labels[PIN_LABEL], Pin, name=f"{name}: {PIN_LABEL}")
    except (KeyError, ConfigError) as error:
        raise ProvisionError(
            f"'{name}' is no artifact image: it has no Pin in its label {PIN_LABEL}.",
            resolution="Name an image that 'provision build --push' or 'provision registry push'"
            " put there.",
            details=error.details if isinstance(error, ConfigError) else None,
        ) from error


def facts_of(pin: Pin, serial: int) -> SignedFacts:
    """Return the facts to sign for the artifact of a Pin."""
    return SignedFacts(
        pin=pin.digest,
        driver=pin.driver.name,
        version=pin.driver.version,
        flavour=pin.driver.flavour,
        distro=pin.distro.name,
        kernel=pin.kernel.release,
        architecture=pin.kernel.architecture,
        serial=serial,
    )


def unpack_layers(
    image: ArtifactImage,
    folder: Path,
    unpack: Callable[[IO[bytes]], None],
    *,
    is_complete: Callable[[], bool] = lambda: False,
) -> int:
    """Download an image's layers, the last first, and unpack each after its digest was compared.

    Their order does not matter: no file of an artifact is in two of them. Once the last one is
    unpacked, ``is_complete`` says whether the content of the others is there already. Returns how
    many bytes were downloaded, of which nothing stays in the folder.
    """
    report(Note(f"Pulling {image.reference}"))
    digest, manifest = str(image.reference.digest), image.manifest
    *others, last = manifest.layers
    received = 0
    with tempfile.TemporaryDirectory(prefix=".layers-", dir=folder) as name:
        for layers in ([last], others[::-1]):
            if not layers or (received and is_complete()):
                break
            image.client.fetch(digest, manifest, layers, Path(name))
            for layer in layers:
                received += layer.size
                _unpack_layer(layer, blob_path(Path(name), layer), unpack, str(image.reference))
    return received


def _unpack_layer(
    layer: Descriptor, file: Path, unpack: Callable[[IO[bytes]], None], name: str
) -> None:
    plain = unzstd(file, name) if layer.is_zstd else file
    with plain.open("rb") as stored, layer_content(stored, is_gzip=layer.is_gzip) as content:
        unpack(content)
    if plain != file:
        plain.unlink()


# Versions that Debian's order can compare.
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~-]*")


class MissingArtifactError(NotFoundError):
    """No registry has an artifact, and nothing is built here."""

    reason = "no-artifact"


class TrustOverride(NamedTuple):
    """Exceptions from provision.toml that a caller allows."""

    # A public key, or a folder of them, that counts; None: those of provision.toml.
    public_key: Path | None = None
    insecure: bool = False
    # Whether an artifact may be older than one that was pulled before.
    allow_downgrade: bool = False


# Returns a repository.
Connect = Callable[[Settings, Reference], Repository]


def connect(settings: Settings, reference: Reference) -> Registry | ImageLayout:
    """Return an image's repository, reached as provision.toml says; nothing is asked yet."""
    if reference.layout is not None:
        return folder_layout(reference)
    return registry_of(settings, reference)


def registry_of(settings: Settings, reference: Reference) -> Registry:
    """Return a registry's repository; as ``connect``."""
    registry = settings.config.registry
    auth_file = in_root(settings.root, registry.auth_file) if registry.auth_file else None
    # Settings of the host's own registry are not for others; without one, they are for that of a
    # fleet.toml.
    own = registry.addresses or (f"{reference.registry}/",)
    if not any(f"{a}/".startswith(f"{reference.registry}/") for a in own):
        return Registry(reference, auth_file=auth_file)
    ca = settled_path(settings.root, registry.ca) if registry.ca else None
    return Registry(reference, ca, registry.plain_http, auth_file)


def tag_of(pin: Pin) -> HostTag:
    """Return the tag by which hosts find the artifact of a Pin."""
    facts = facts_of(pin, 0)
    return HostTag(facts.version, facts.flavour, facts.kernel, facts.distro)


def host_reference(settings: Settings, pin: Pin, given: str | None = None) -> str | None:
    """Return the reference by which hosts find the artifact of a Pin; None: no place is known.

    A whole reference that is given is returned; ``oci:FOLDER`` stands in the place of the registry
    of provision.toml.
    """
    if given is not None and not (given.startswith(FOLDER) and ":" not in given[len(FOLDER) :]):
        return given
    place = given.rstrip("/") if given else settings.config.registry.address
    return f"{place}/{pin.driver.name}:{tag_of(pin).text}" if place else None


def trusted_keys(
    settings: Settings, repository: str, driver: str, trust: TrustOverride
) -> tuple[PublicKey, ...] | None:
    """Return the keys that count for a driver of a repository; None: no signature is needed."""
    rule = settings.config.trust.rule(repository, driver)
    if trust.insecure or (rule.insecure and trust.public_key is None):
        return None
    if trust.public_key is not None:
        return load_keys(trust.public_key)
    if rule.keys is None:
        raise ProvisionError(
            f"No trusted key is configured for '{repository}'.",
            resolution="Put the public keys of those who sign your artifacts into a folder, and"
            ' name it: [trust] keys = "/etc/provision/trust.d". To build here and never pull:'
            ' [policy] build = "always". To install unsigned images: [trust] insecure = true. For'
            " one image: provision install IMAGE --public-key FILE, or --insecure if it is"
            " unsigned.",
        )
    return settled_keys(settings.root, rule.keys)


def examine(
    settings: Settings,
    client: Repository,
    facts: Mapping[str, str],
    trust: TrustOverride,
    *,
    driver: str | None = None,
) -> ArtifactImage:
    """Return an image of a registry that this host may install, without downloading a layer.

    The image of a driver that is named has the tag by which hosts find it. Else it may have any
    name, and the rules for the repository's last part count.
    """
    reference = client.reference
    name = driver or reference.repository.rpartition("/")[2]
    facts = {"architecture": machine(settings.root), **facts}
    keys, rule = trusted_keys(settings, reference.name, name, trust), settings.config.trust.rule
    oldest = rule(reference.name, name).oldest

    def check(digest: str) -> VerifiedSignature | None:
        if keys is None:
            return None
        return verify_signature(client, digest, keys, facts, oldest=oldest)

    image = read_image(client, facts["architecture"], examine=check)
    found = facts_of(image.pin, 0)
    is_by_rules = not trust.insecure and trust.public_key is None
    if is_by_rules and rule(reference.name, found.driver) != rule(reference.name, name):
        raise UntrustedError(
            f"'{image.reference}' is refused: it is an image of {found.driver}, and it was examined"
            f" by the rules of '{name}' in place of the rules of '{found.driver}' in"
            " provision.toml.",
            resolution=f"Have it pushed to a repository that is called '{found.driver}'.",
        )
    wrong = {fact: value for fact, value in facts.items() if getattr(found, fact) != value}
    is_host_tag = driver is not None or read_tag(reference.tag or "", [found.flavour])
    if is_host_tag and reference.tag not in {tag_of(image.pin).text, pin_tag(found.pin)}:
        wrong["tag"] = str(reference.tag)
    if wrong:
        text = ", ".join(f"{fact} {value}" for fact, value in wrong.items())
        raise UntrustedError(
            f"'{image.reference}' is refused: it does not match the request ({text}), but"
            f" {found.driver} {found.version} ({found.flavour}) for {found.kernel} of"
            f" {found.distro} on {found.architecture}.",
            resolution="Push the right image under that name, or ask for this one by its digest.",
        )
    return image


class ArtifactQuery(NamedTuple):
    """A query to registries and the store for an artifact."""

    driver: str
    # Its version; of several, the newest that exists.
    version: VersionRequest
    flavour: str
    kernel: str
    distro: str
    # As ``uname -m`` prints it.
    architecture: str
    # Whether a version may serve the kernel.
    may_serve: Callable[[str], bool] = lambda _: True

    def tag(self, version: str) -> HostTag:
        """Return the tag of one version."""
        return HostTag(version, self.flavour, self.kernel, self.distro)

    def facts(self) -> dict[str, str]:
        """Return the facts that a signature must state, without the version."""
        names = ("driver", "flavour", "kernel", "distro", "architecture")
        return {name: getattr(self, name) for name in names}


# Raises a ``ProvisionError`` for an image that the host may not install after all, such as an old
# one of a mirror that lags behind.
Accept = Callable[[ArtifactImage], None]


def find_in_registries(
    settings: Settings,
    sought: ArtifactQuery,
    trust: TrustOverride,
    *,
    accept: Accept = lambda _: None,
    connected: Connect = connect,
) -> ArtifactImage | None:
    """Return the image of a query from the first of a host's registries that has it.

    None: no registry has it, or none answers, and the host may build. If the host never builds,
    these are errors. That no registry has it with a trusted signature always is one
    (``UntrustedError``).
    """
    offered: dict[str, None] = {}

    def version(client: Repository, version: str) -> ArtifactImage:
        named = client.at(client.reference.with_tag(sought.tag(version).text))
        found = examine(settings, named, sought.facts(), trust, driver=sought.driver)
        return found._replace(request=sought.version)

    def look(client: Repository) -> ArtifactImage:
        # With as few requests as possible.
        stays, exact = sought.version.prefer, sought.version.exact
        for name in dict.fromkeys((stays, exact)):
            may_stay = name is not None and sought.version.accepts(name) and sought.may_serve(name)
            if name is not None and (name == exact or may_stay):
                with suppress(NotFoundError):
                    return version(client, name)
        there = _versions(client.tags(), sought)
        if accepted := sought.version.accepted(there):
            # Without one that may serve, whoever asks is told why.
            return version(client, next(filter(sought.may_serve, accepted), accepted[0]))
        offered.update(dict.fromkeys(there))
        tag = sought.tag(sought.version.name or "…").text
        raise NotFoundError(
            f"'{client.reference.name}' has no {tag}.",
            resolution=f"Push it there: provision build {sought.driver} --push REGISTRY --sign",
        )

    found = _first(settings, sought.driver, look, trust, accept, connected)
    if found is None and settings.config.policy.build == "never":
        raise _missing(settings, sought, list(offered))
    return found


def _missing(
    settings: Settings, sought: ArtifactQuery, offered: Sequence[str]
) -> MissingArtifactError:
    registry, name = settings.config.registry, sought.version.name
    places = ", ".join((*registry.folders, *registry.addresses)) or "none is set"
    what = f"{sought.driver} {name}" if name and offered else sought.driver
    instead = (
        f"{choices(name or '', offered)} Name one in [drivers.{sought.driver}] of"
        " /etc/provision/provision.toml; or build and"
        if offered
        else "Build and"
    )
    return MissingArtifactError(
        f'No registry has {what} for {sought.kernel} ({places}), and [policy] build = "never".',
        resolution=f"{instead} push it elsewhere: provision build {sought.driver} --kernel"
        f" {sought.kernel} --distro {sought.distro} --push REGISTRY --sign; or allow it here:"
        ' [policy] build = "fallback" in /etc/provision/provision.toml.',
    )


def _versions(tags: tuple[str, ...], sought: ArtifactQuery) -> list[str]:
    """Return the versions that a repository has for a kernel, as in its tags, newest first."""
    suffix = sought.tag("").suffix
    found = [tag.removesuffix(suffix) for tag in tags if tag.endswith(suffix)]
    # Texts that are no versions can't be compared.
    labels = {version_of_tag(one): one for one in found}
    return [labels[one] for one in newest_first(filter(_VERSION.fullmatch, labels))]


def find_pin_in_registries(
    settings: Settings,
    pin: Pin,
    trust: TrustOverride,
    *,
    accept: Accept = lambda _: None,
    connected: Connect = connect,
) -> ArtifactImage | None:
    """Return the image of a Pin by the Pin's own tag."""
    signed_facts = facts_of(pin, 0)._asdict()
    del signed_facts["serial"]

    def look(client: Repository) -> ArtifactImage:
        named = client.at(client.reference.with_tag(pin_tag(pin.digest)))
        found = examine(settings, named, signed_facts, trust, driver=pin.driver.name)
        return found._replace(request=VersionRequest(pin.driver.version))

    return _first(settings, pin.driver.name, look, trust, accept, connected)


def _first(
    settings: Settings,
    driver: str,
    look: Callable[[Repository], ArtifactImage],
    trust: TrustOverride,
    accept: Accept,
    connected: Connect,
) -> ArtifactImage | None:
    places = _places(settings, driver, trust)
    refused: ProvisionError | None = None
    absent: ProvisionError | None = None
    for reference in places:
        address = reference.name.rpartition("/")[0]
        try:
            reach = connected if reference.layout is None else connect
            found = look(reach(settings, reference))
            accept(found)
        except NotFoundError as error:
            report(Note(f"{address} has no {driver}: {error.details or error.message}"))
            absent = None
        except (UnreachableError, DeniedError) as error:
            report(Note(f"{error.message} {error.details or ''}".rstrip()))
            absent = error
        except ProvisionError as error:
            if len(places) > 1:
                # Another registry may have a valid image, and then no error reports this one.
                report(Note(f"{error.message} {error.details or ''}".rstrip()))
            refused = refused or error
        else:
            return found
    if refused is not None:
        raise refused
    # The last registry is not a mirror, so only its failure counts.
    if absent is not None and settings.config.policy.build == "never":
        raise absent
    return None


def _places(settings: Settings, driver: str, trust: TrustOverride) -> list[Reference]:
    """Return where a host looks; its own mistakes are reported before a registry is asked."""
    registry = settings.config.registry
    folders = [
        Reference(f"{FOLDER}{in_root(settings.root, folder)}", driver)
        for folder in registry.folders
    ]
    places = [*folders, *(parse_reference(f"{one}/{driver}") for one in registry.addresses)]
    for reference in places:
        trusted_keys(settings, reference.name, driver, trust)
    return places
