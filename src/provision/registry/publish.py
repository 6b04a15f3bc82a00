"""Publishes artifact images: pushes and signs them, and sets the tags by which they are found.

The tag of a Pin always leads to the same image. Hosts find images by their tags, and trust none of
them without a signature.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from provision.build.dockerfile import OPERATOR_LABEL
from provision.build.image import require_built_here
from provision.build.workspace import Settings
from provision.engine.docker_api import find_image
from provision.errors import NotFoundError, ProvisionError, UntrustedError
from provision.files import lock, settled_path, write_atomic
from provision.host.kernels import machine
from provision.pin import Pin
from provision.progress import Note, report
from provision.registry import Reference, operator_tags, parse_manifest, parse_reference, pin_tag
from provision.registry.find import ArtifactImage, Connect, connect, facts_of, read_image, tag_of
from provision.registry.repositories import (
    Repository,
    copy,
    find_digest,
    push_image,
    writable_layout,
)
from provision.registry.signatures import (
    MOST_AHEAD_S,
    URI_SCHEME,
    FileSigner,
    Password,
    PublicKey,
    SignedFacts,
    Signer,
    open_signer,
    read_password,
    settled_keys,
    sign,
    signature_tag,
    verify_signature,
)
from provision.sources.candidates import newest_first

# How often, and after how many seconds, to look at an image that another process is signing.
_MOST_ROUNDS = 5
_PAUSE_S = 2.0


_LICENCES = "org.opencontainers.image.licenses"
# Licences that are on no list of free licences, unknown, or disputed for modules of a GPL kernel.
_RESTRICTED = re.compile(r"\b(?:LicenseRef-[A-Za-z0-9.-]+|NOASSERTION|CDDL-[0-9.]+)")


class PinTagConflictError(ProvisionError):
    """A registry has another image of the same Pin, and the tag of a Pin is never moved."""


class Pushed(NamedTuple):
    """An image in a registry: its name there and the registry's digest of it."""

    reference: str
    digest: str


class SignedImage(NamedTuple):
    """An image that was signed."""

    # Its name, with the digest that was signed.
    reference: str
    # The name of its signatures.
    signature: str
    facts: SignedFacts
    # The tag that always leads to it.
    pin_tag: str = ""


def publish(
    settings: Settings,
    pin: Pin,
    image_id: str,
    name: str,
    signer: Signer | None = None,
    *,
    connected: Connect = connect,
    push: Callable[..., str] = push_image,
) -> tuple[Pushed, SignedImage | None]:
    """Push an image of the engine under a name, the tag of its Pin and those of a GPU operator.

    It is signed, if there is a signer.

    Raises:
        PinTagConflictError: The registry has another image of this Pin that is signed, or neither
            is to be signed; nothing was pushed.
        UntrustedError: It is to be signed, and was not built here.
    """
    found = find_image(settings.engine(), image_id)
    if signer is not None:
        # A signature is this builder's word for an image.
        require_built_here(
            settings.state,
            found,
            found.name,
            resolution="Build it here, as the user who signs it: provision build"
            f" {pin.driver.name} --kernel {pin.kernel.release} --push REF --sign. If you know where"
            " the image came from, push it unsigned, and sign what its digest names: provision"
            " registry sign NAME@DIGEST",
        )
    client, labels = _writable(settings, name, connected), found.labels
    # Before the push, which takes the name from the image that hosts have now.
    last = last_serial(settings, client, pin, signer) if signer is not None else 0
    digest = _published(settings, client, pin, labels, signer)
    if digest is None:
        _name_licences(labels, name)
        report(Note(f"Pushing {name}"))
        digest = push(settings.engine(), image_id, client, state=settings.state)
    else:
        report(Note(f"{name}: the registry has the image already, as {digest}"))
        client.tag(digest, str(client.reference.tag))
    pushed = Pushed(name, digest)
    if signer is None:
        set_pin_tag(client, pin, digest)
        set_operator_tags(client, pin, labels, digest)
        return pushed, None
    by_digest = client.at(client.reference.with_digest(digest))
    published = read_image(by_digest, pin.kernel.architecture)
    # The signature last: what is signed is not pushed again, and would never get these tags.
    set_operator_tags(client, pin, labels, digest)
    try:
        signed = _sign(settings, by_digest, published, signer, last)
    except PinTagConflictError:
        # Another was pushed at the same time, and may be about to be signed. The name must not lead
        # to an image that hosts refuse.
        for _ in range(_MOST_ROUNDS):
            if retag_existing(settings, client, pin, signer) is not None:
                break
            time.sleep(_PAUSE_S)
        raise
    return pushed, signed


def _writable(settings: Settings, name: str, connected: Connect) -> Repository:
    """Return the repository of a name to push to; a folder is made."""
    reference = parse_reference(name)
    if reference.layout is not None:
        writable_layout(reference.layout, reference)
    return connected(settings, reference)


def _published(
    settings: Settings,
    client: Repository,
    pin: Pin,
    labels: Mapping[str, str],
    signer: Signer | None,
) -> str | None:
    """Return the digest of an image that a repository has already; None: it has to be pushed.

    Who may write there can copy the labels of an image, of which one is of its build alone: what
    will be signed is pushed again, unless a trusted key has signed it. It replaces an image without
    a signature.
    """
    digest = find_digest(client, pin_tag(pin.digest))
    if digest is None or (signer is not None and not _has_signature(client, digest)):
        return None
    found = read_image(client.at(client.reference.with_digest(digest)), pin.kernel.architecture)
    is_trusted = signer is None or _is_trusted(settings, client, pin, digest, signer)
    if found.labels == labels and is_trusted:
        return digest
    raise _conflict(client, pin, digest)


def _name_licences(labels: Mapping[str, str], name: str) -> None:
    if licences := _RESTRICTED.findall(labels.get(_LICENCES, "")):
        names = ", ".join(dict.fromkeys(licences))
        report(
            Note(
                f"Warning: {names} may forbid to pass this image on. Read it before others than you"
                f" can pull '{name}'."
            )
        )


def copy_published(settings: Settings, image: ArtifactImage, name: str) -> Pushed:
    """Copy an image, once verified, with its signatures from a registry or folder to another."""
    source, client = image.client, _writable(settings, name, connect)
    digest = str(image.reference.digest)
    report(Note(f"Copying {image.reference} to {name}"))
    # Signatures first: no host sees an unsigned image.
    if find_digest(source, signature_tag(digest)) is not None:
        copy(source, signature_tag(digest), client, signature_tag(digest))
    if find_digest(client, str(client.reference.tag)) != digest:
        copy(source, digest, client, str(client.reference.tag))
    set_pin_tag(client, image.pin, digest, is_signed=image.verified is not None)
    set_operator_tags(client, image.pin, image.labels, digest)
    return Pushed(name, digest)


def _has_signature(client: Repository, digest: str) -> bool:
    return find_digest(client, signature_tag(digest)) is not None


def sign_image(
    settings: Settings,
    reference: Reference,
    signer: Signer,
    *,
    connected: Connect = connect,
) -> SignedImage:
    """Sign an image of a registry, with the facts of its Pin; the Pin's tag then leads to it.

    It is named by its digest if the registry must not decide what is signed.
    """
    client = connected(settings, reference)
    image = read_image(client, machine(settings.root))
    named = client.at(reference.with_tag(tag_of(image.pin).text))
    last = last_serial(settings, named, image.pin, signer)
    return _sign(settings, client, image, signer, last)


def last_serial(settings: Settings, client: Repository, pin: Pin, signer: Signer) -> int:
    """Return the serial of the image that a name leads to now, if a trusted key signed it."""
    digest = find_digest(client, client.reference.tag or "")
    if digest is None:
        return 0
    try:
        keys = _keys(settings, client, pin.driver.name, signer)
        facts = verify_signature(client, digest, keys, {}).facts
    except ProvisionError:
        return 0
    return facts.serial if facts else 0


def next_serial(settings: Settings, last: int = 0) -> int:
    """Return the serial of the next signature: the time, or more than every one before.

    A host takes none that is less than one it has had, such as that of the replaced image, and this
    clock may have been set back, or be behind that of another builder.
    """
    path = settings.state / "last-serial"
    with lock(settings.state / "locks" / "serial"):
        with suppress(FileNotFoundError, ValueError):
            last = max(last, int(path.read_text()))
        now = int(time.time())
        serial = max(now, last + 1)
        if serial > now + MOST_AHEAD_S:
            raise ProvisionError(
                "Nothing is signed: an earlier signature is of more than a day after this machine's"
                " clock, and hosts would refuse a later one.",
                resolution=f"Correct the clock (timedatectl). If it is right now: rm {path}",
                details=f"the earlier one: {last}; the clock: {now} (Unix seconds)",
            )
        write_atomic(path, f"{serial}\n")
    return serial


def _sign(
    settings: Settings, client: Repository, image: ArtifactImage, signer: Signer, last: int
) -> SignedImage:
    facts = facts_of(image.pin, next_serial(settings, last))
    digest = str(image.reference.digest)
    # The tag first: a tag of another image is found before anything is signed.
    tag = set_pin_tag(client, image.pin, digest, is_signed=True)
    name = sign(client, digest, facts, signer)
    if (found := find_digest(client, tag)) != digest:
        # Another image was pushed at the same moment.
        raise _conflict(client, image.pin, found or "another")
    return SignedImage(str(image.reference), name, facts, tag)


def set_pin_tag(client: Repository, pin: Pin, digest: str, *, is_signed: bool = False) -> str:
    """Make the tag of a Pin lead to an image that the registry has; return the tag.

    One that will be signed replaces an image without a signature, which a builder left that ended
    between push and signature, or that signs nothing. No other is replaced
    (``PinTagConflictError``).
    """
    tag = pin_tag(pin.digest)
    found = find_digest(client, tag)
    gives_way = is_signed and found not in {None, digest}
    if found is None or (gives_way and not _has_signature(client, found)):
        client.tag(digest, tag)
        # Another builder may have been first, or last: then both report it.
        found = find_digest(client, tag)
    if found != digest:
        raise _conflict(client, pin, found or "another")
    return tag


def _conflict(client: Repository, pin: Pin, digest: str) -> PinTagConflictError:
    repository = client.reference.name
    return PinTagConflictError(
        f"'{repository}' has another image of the Pin {pin.digest}: its tag leads to {digest}, and"
        " is never moved.",
        resolution="Two builds of a Pin need not have the same bytes; use the one that is there:"
        f" provision registry pull {repository}@{digest}. To put yours in its place, remove the tag"
        f" '{pin_tag(pin.digest)}' from the registry first.",
    )


def set_operator_tags(client: Repository, pin: Pin, labels: Mapping[str, str], digest: str) -> None:
    """Make the tags by which a GPU operator finds an image lead to it.

    That of a branch leads to its newest version. An image without a label for operators has none.
    """
    version = labels.get(OPERATOR_LABEL)
    if version is None:
        return
    own, branch = operator_tags(version, pin.kernel.release, pin.distro.name)
    try:
        branch_client = client.at(client.reference.with_tag(branch))
        before = read_image(branch_client, pin.kernel.architecture).pin.driver.version
    except NotFoundError:
        before = pin.driver.version
    is_newest = newest_first((before, pin.driver.version))[0] == pin.driver.version
    tags = (own, branch) if is_newest else (own,)
    for tag in tags:
        if find_digest(client, tag) != digest:
            client.tag(digest, tag)


def retag_existing(
    settings: Settings, client: Repository, pin: Pin, signer: Signer | None
) -> str | None:
    """Make the tag of a client's reference lead to the image of a Pin; return its digest.

    None: no trusted key has signed it. [trust] counts, and the public half of the key that signs;
    without a signer, nothing is signed here.
    """
    tag = pin_tag(pin.digest)
    content = client.manifest(tag)
    if signer is None:
        parse_manifest(content.data, f"{client.reference.repository}:{tag}")
    elif not _is_trusted(settings, client, pin, content.digest, signer):
        return None
    if client.reference.tag is not None:
        client.tag(content.digest, client.reference.tag)
    return content.digest


def _is_trusted(
    settings: Settings, client: Repository, pin: Pin, digest: str, signer: Signer
) -> bool:
    wanted = facts_of(pin, 0)._asdict()
    del wanted["serial"]
    try:
        keys = _keys(settings, client, pin.driver.name, signer)
        verify_signature(client, digest, keys, wanted)
    except UntrustedError:
        return False
    return True


def _keys(
    settings: Settings, client: Repository, driver: str, signer: Signer
) -> tuple[PublicKey, ...]:
    rule = settings.config.trust.rule(client.reference.name, driver)
    configured = settled_keys(settings.root, rule.keys) if rule.keys else ()
    return (*configured, signer.public) if isinstance(signer, FileSigner) else configured


def configured_signer(settings: Settings, password: Password | None = None) -> Signer:
    """Return the signer of the images that this host builds and pushes.

    Without ``password``, which asks for it, the password is in the file that provision.toml names.
    """
    registry = settings.config.registry
    if registry.sign_key is None:
        raise ProvisionError(
            "provision.toml names no key for images.",
            resolution='Set [registry] sign_key = "/etc/provision/fleet.key", or give --key.',
        )
    key = registry.sign_key
    path = key
    if not key.startswith(URI_SCHEME):
        path = str(settled_path(settings.root, key))

    def configured() -> bytes:
        if registry.sign_password_file is None:
            raise ProvisionError(
                f"The key '{key}' takes a password, and provision.toml does not say where it is.",
                resolution="Write it into a file that only root reads, and name that: [registry]"
                ' sign_password_file = "/etc/provision/fleet.password".',
            )
        return read_password(settled_path(settings.root, registry.sign_password_file))

    return open_signer(path, password or configured, root=settings.root)
