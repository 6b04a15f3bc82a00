"""Writes the tag of a Pin to a registry.

It always leads to the same manifest. Hosts find images by their tags, and trust none of them
without a signature.
"""

from __future__ import annotations

from dataclasses import asdict

from provision.build.workspace import Settings
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.files import in_root
from provision.pin import Pin
from provision.progress import Note, Progress, silent
from provision.registry.artifact_images import facts_of, find
from provision.registry.attached_signatures import signature_tag, verify_signature
from provision.registry.image_signature import PublicKey, Signer, UntrustedError, load_keys
from provision.registry.manifests import Content, Index, Writable, find_digest, parse_manifest
from provision.registry.names import operator_tags, pin_tag
from provision.registry.private_key import FileSigner
from provision.registry.registries import trust_rule
from provision.registry.skopeo import DeniedError
from provision.sources import newest_first


class PinTagConflictError(ProvisionError):
    """A registry has another image of the same Pin, and the tag of a Pin is never moved."""


def pushed_before(
    client: Writable,
    pin: Pin,
    image_id: str,
    *,
    is_signed: bool = False,
    progress: Progress = silent,
) -> Content | None:
    """Return the manifest of an image that a registry has already; None: it has to be pushed.

    Args:
        client: The repository.
        pin: The Pin.
        image_id: The engine's id of the image.
        is_signed: Whether the image will be signed: it replaces one without a signature.
        progress: Receives a note if only the engine may reach the registry.

    Raises:
        PinTagConflictError: It has another image of this Pin.
    """
    try:
        content = client.manifest(pin_tag(pin.digest))
    except NotFoundError:
        return None
    except (UnreachableError, DeniedError) as error:
        # The engine has settings and credentials of its own.
        progress(Note(f"{error.message} So it is not known whether the image is there already."))
        return None
    if image_id in _identities(content, client):
        return content
    if is_signed and not _has_signature(client, content.digest):
        return None
    raise taken(client, pin, content.digest)


def _has_signature(client: Writable, digest: str) -> bool:
    """Return whether an image has signatures, made by any key."""
    return find_digest(client, signature_tag(digest)) is not None


def _identities(content: Content, client: Writable) -> set[str]:
    """Return the ids that engines give to the image of a manifest: its digest, or its config's."""
    manifest = parse_manifest(content.data, str(client.reference))
    if isinstance(manifest, Index):
        return {content.digest, *(one.digest for one in manifest.manifests)}
    return {content.digest, manifest.config.digest}


def tag_again(client: Writable, content: Content) -> None:
    """Make the tag of a client's reference lead to a manifest that the repository has.

    Raises:
        ProvisionError: The registry refuses or can't be reached.
    """
    tag = client.reference.tag
    if tag is not None:
        client.tag(content.digest, tag)


def set_pin_tag(client: Writable, pin: Pin, content: Content, *, is_signed: bool = False) -> str:
    """Make the tag of a Pin lead to a manifest; return the tag.

    Args:
        client: The repository.
        pin: The Pin.
        content: The manifest.
        is_signed: Whether it will be signed. Then it replaces an image without a signature, which a
            builder left that ended between push and signature, or that signs nothing.

    Raises:
        PinTagConflictError: It leads to another image, and is not moved.
        ProvisionError: The registry refuses or can't be reached.
    """
    tag = pin_tag(pin.digest)
    found = find_digest(client, tag)
    gives_way = is_signed and found not in {None, content.digest}
    if found is None or (gives_way and not _has_signature(client, found)):
        client.tag(content.digest, tag)
        # Another builder may have been first, or last: then both report it.
        found = find_digest(client, tag)
    if found != content.digest:
        raise taken(client, pin, found or "another")
    return tag


def set_operator_tags(client: Writable, pin: Pin, version: str, digest: str) -> None:
    """Make the tags by which a GPU operator finds a driver lead to an image.

    That of a branch leads to its newest version.

    Args:
        client: The repository.
        pin: The image's Pin.
        version: As which version the operator finds it.
        digest: Of its manifest.
    """
    distro = f"{pin.distro.id}:{pin.distro.version}"
    own, branch = operator_tags(version, pin.kernel.release, distro)
    client.tag(digest, own)
    try:
        there = client.at(client.reference.with_tag(branch))
        before = find(there, pin.kernel.architecture).image.pin.driver.version
    except NotFoundError:
        before = pin.driver.version
    if newest_first((before, pin.driver.version))[0] == pin.driver.version:
        client.tag(digest, branch)


def taken(client: Writable, pin: Pin, digest: str) -> PinTagConflictError:
    """Return the error for a tag of a Pin that leads to another image."""
    repository = f"{client.reference.registry}/{client.reference.repository}"
    return PinTagConflictError(
        f"'{repository}' has another image of the Pin {pin.digest}: its tag leads to {digest}, and"
        " is never moved.",
        resolution="Two builds of a Pin need not have the same bytes; use the one that is there:"
        f" provision registry pull {repository}@{digest}. To put yours in its place, remove the tag"
        f" '{pin_tag(pin.digest)}' from the registry first.",
    )


def retag_existing(
    settings: Settings, client: Writable, pin: Pin, signer: Signer | None
) -> str | None:
    """Make the tag of a client's reference lead to the registry's image of a Pin.

    Args:
        settings: The host; its [trust] counts, and the public half of the key that signs.
        client: The repository, and the name.
        pin: The Pin.
        signer: Signs the images that are pushed here; None: nothing is signed.

    Returns:
        The digest of its manifest; None: no key that counts here has signed it.

    Raises:
        ProvisionError: The registry refuses or can't be reached; a key is invalid.
    """
    tag = pin_tag(pin.digest)
    if signer is None:
        content = client.manifest(tag)
        parse_manifest(content.data, f"{client.reference.repository}:{tag}")
    else:
        content = client.manifest(tag)
        wanted = asdict(facts_of(pin, 0))
        del wanted["serial"]
        try:
            keys = _keys(settings, client, pin.driver.name, signer)
            verify_signature(client, content.digest, keys, wanted)
        except UntrustedError:
            return None
    tag_again(client, content)
    return content.digest


def _keys(
    settings: Settings, client: Writable, driver: str, signer: Signer
) -> tuple[PublicKey, ...]:
    rule = trust_rule(settings, client.reference, driver)
    configured = load_keys(in_root(settings.root, rule.keys)) if rule.keys else ()
    return (*configured, signer.public) if isinstance(signer, FileSigner) else configured
