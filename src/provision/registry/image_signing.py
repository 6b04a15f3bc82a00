"""Signs images in a registry, with a key in a file or in a token."""

from __future__ import annotations

import time
from dataclasses import dataclass

from provision.build.dockerfile import OPERATOR_LABEL
from provision.build.workspace import Settings
from provision.engine.docker_api import Engine
from provision.engine.transfer import Pushed, push
from provision.errors import ProvisionError
from provision.fetch import UnreachableError
from provision.files import in_root
from provision.host.kernels import machine
from provision.pin import Pin
from provision.progress import Note, Progress, silent
from provision.registry.artifact_images import ImageInfo, facts_of, find
from provision.registry.attached_signatures import add_signature, make_signature, signatures_name
from provision.registry.image_signature import Facts, Signer
from provision.registry.manifests import Writable, find_digest
from provision.registry.names import Reference, parse_reference
from provision.registry.private_key import URI_SCHEME, Password, open_signer
from provision.registry.publishing import (
    PinTagConflictError,
    pushed_before,
    retag_existing,
    set_operator_tags,
    set_pin_tag,
    tag_again,
    taken,
)
from provision.registry.registries import Connect, connect
from provision.registry.signing_key import read_password
from provision.registry.skopeo import DeniedError

# Attempts to write a signature again that others have overwritten.
_MOST_ROUNDS = 5
# Seconds between two looks at an image that another process is signing.
_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class SignedImage:
    """An image that was signed.

    Attributes:
        reference: Its name with the digest that was signed.
        signature: The name of its signatures.
        facts: The facts that were signed with the digest.
        pin_tag: The tag that always leads to it.
    """

    reference: str
    signature: str
    facts: Facts
    pin_tag: str = ""


@dataclass(frozen=True, slots=True)
class EngineImage:
    """An artifact image of an engine, on its way to a registry or an archive.

    Attributes:
        engine: The engine that has the image.
        image_id: Its id there.
        pin: Its Pin.
        signer: Signs it; None: it stays unsigned.
    """

    engine: Engine
    image_id: str
    pin: Pin
    signer: Signer | None = None


def sign_image(
    settings: Settings,
    reference: Reference,
    signer: Signer,
    *,
    connected: Connect = connect,
) -> SignedImage:
    """Sign an image of a registry, with the facts of its Pin.

    Afterwards the tag of its Pin leads to it.

    Args:
        settings: The host.
        reference: The image; by its digest if the registry must not decide what is signed.
        signer: Signs.
        connected: Makes clients of registries.

    Raises:
        NotFoundError: The registry does not have it.
        PinTagConflictError: The registry has another image of its Pin.
        ProvisionError: It is not an artifact image, or the registry refuses.
    """
    client = connected(settings, reference)
    image = find(client, machine(settings.root)).image
    return _sign(client, image, signer)


def _sign(client: Writable, image: ImageInfo, signer: Signer) -> SignedImage:
    """Sign an image that was found; errors as ``sign_image``."""
    facts = facts_of(image.pin, int(time.time()))
    digest = str(image.reference.digest)
    # The tag first: a tag of another image is found before anything is signed.
    tag = set_pin_tag(client, image.pin, client.manifest(digest), is_signed=True)
    made = make_signature(client, digest, facts, signer)
    for _ in range(_MOST_ROUNDS):
        # Again: another signer may have overwritten this one meanwhile.
        if not add_signature(client, digest, made, signer):
            break
    if (found := find_digest(client, tag)) != digest:
        # Another image was pushed at the same moment.
        raise taken(client, image.pin, found or "another")
    name = signatures_name(client, digest)
    return SignedImage(str(image.reference), name, facts, tag)


def publish(
    settings: Settings,
    image: EngineImage,
    name: str,
    *,
    connected: Connect = connect,
    progress: Progress = silent,
) -> tuple[Pushed, SignedImage | None]:
    """Push an image under a name, the tag of its Pin and those of a GPU operator, and sign it.

    Args:
        settings: The host.
        image: The image.
        name: ``registry/name:tag``.
        connected: Makes clients of registries.
        progress: Receives the bytes sent, and notes on what could not be done.

    Raises:
        PinTagConflictError: The registry has another image of this Pin that is signed, or neither
            is to be signed; nothing was pushed.
        ProvisionError: It refuses, or can't be reached.
    """
    client = connected(settings, parse_reference(name))
    pin, signer = image.pin, image.signer
    pushed, is_new = _pushed(client, image, name, progress)
    if signer is None:
        if is_new:
            _tag_unsigned(client, image, pushed, progress)
        return pushed, None
    by_digest = connected(settings, pushed_reference(pushed))
    there = find(by_digest, pin.kernel.architecture).image
    if there.pin != pin:
        raise ProvisionError(
            f"'{there.reference}' is not signed: it is not the image that was pushed.",
            resolution="Others write to that registry. Check it, and push again.",
        )
    try:
        signed = _sign(by_digest, there, signer)
    except PinTagConflictError:
        # Another was pushed at the same time. The name must not lead to an image that hosts refuse.
        _give_name_back(settings, client, pin, signer)
        raise
    _tag_for_operators(client, image, pushed.digest)
    return pushed, signed


def _pushed(
    client: Writable, image: EngineImage, name: str, progress: Progress
) -> tuple[Pushed, bool]:
    """Push an image unless the registry has it; return it, and whether it was pushed now."""
    is_signed = image.signer is not None
    before = pushed_before(
        client, image.pin, image.image_id, is_signed=is_signed, progress=progress
    )
    if before is None:
        return push(image.engine, image.image_id, name, progress=progress), True
    progress(Note(f"{name}: the registry has the image already, as {before.digest}"))
    tag_again(client, before)
    return Pushed(name, before.digest), False


def _give_name_back(settings: Settings, client: Writable, pin: Pin, signer: Signer) -> None:
    """Make a name lead to the other image of its Pin, which may be about to be signed."""
    for _ in range(_MOST_ROUNDS):
        if retag_existing(settings, client, pin, signer) is not None:
            return
        time.sleep(_PAUSE_S)


def _tag_for_operators(client: Writable, image: EngineImage, digest: str) -> None:
    found = image.engine.image(image.image_id)
    if found and (version := found.labels.get(OPERATOR_LABEL)):
        set_operator_tags(client, image.pin, version, digest)


def _tag_unsigned(client: Writable, image: EngineImage, pushed: Pushed, progress: Progress) -> None:
    """Set further tags; report a failure only as a note: perhaps only the engine has access."""
    try:
        set_pin_tag(client, image.pin, client.manifest(pushed.digest))
        _tag_for_operators(client, image, pushed.digest)
    except (UnreachableError, DeniedError) as error:
        progress(
            Note(f"{error.message} So the image has no tag of its Pin, nor those of operators.")
        )


def pushed_reference(pushed: Pushed) -> Reference:
    """Return the reference of a pushed image by digest, which no other image can take over."""
    return parse_reference(pushed.reference).with_digest(pushed.digest)


def configured_signer(settings: Settings, password: Password | None = None) -> Signer:
    """Return the signer of the images that this host builds and pushes.

    Args:
        settings: The host.
        password: Asks for the password of the key; None: the file that provision.toml names.

    Raises:
        As ``open_signer``; ProvisionError: provision.toml names no key, or not the file of its
        password.
    """
    registry = settings.config.registry
    if registry.sign_key is None:
        raise ProvisionError(
            "provision.toml names no key for images.",
            resolution='Set [registry] sign_key = "/etc/provision/fleet.key", or give --key.',
        )
    key = registry.sign_key
    path = key if key.startswith(URI_SCHEME) else str(in_root(settings.root, key))

    def configured() -> bytes:
        if registry.sign_password_file is None:
            raise ProvisionError(
                f"The key '{key}' takes a password, and provision.toml does not say where it is.",
                resolution="Write it into a file that only root reads, and name that: [registry]"
                ' sign_password_file = "/etc/provision/fleet.password".',
            )
        return read_password(in_root(settings.root, registry.sign_password_file))

    return open_signer(path, password or configured, root=settings.root)
