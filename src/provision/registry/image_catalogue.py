"""What a repository has, in one signed document: an OCI index under the tag ``catalogue``.

One entry an image, with what its signature says as annotations. Hosts learn from it in one request
what there is; it decides nothing about an image, whose own signature still counts. Why writers
lose none of each other's entries: docs/decisions/21.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import Field

from provision.documents import refusing
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.registry.attached_signatures import sign, verify, verify_catalogue
from provision.registry.client import Client
from provision.registry.image_signature import (
    CATALOGUE_FACT,
    Facts,
    PublicKey,
    Signer,
    UntrustedError,
)
from provision.registry.manifests import (
    ARCHITECTURES,
    LONGEST_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    Foreign,
)
from provision.registry.names import CATALOGUE, pin_of_tag, pin_tag
from provision.registry.repository import Repository
from provision.registry.tokens import DeniedError
from provision.registry.transport import content_digest

# Some 560 bytes each, in a manifest of no more than 4 MiB.
_MOST_ENTRIES = 6000
_ROUNDS = 12
# Seconds between two rounds, so that writers who met once do not meet again.
_PAUSE = 0.3
_LONGEST_SERIAL = 15
# In a second: what serials of catalogues count in, which several writers may replace in one.
MILLISECONDS = 1000
_PREFIX = "provision."
_OF = f"{_PREFIX}catalogue"
_SERIAL = f"{_PREFIX}serial"
_WRITE_AGAIN = "Have it written again by those who sign your artifacts: provision catalogue DRIVER"


@dataclass(frozen=True, slots=True)
class Listed:
    """An image of a catalogue.

    Attributes:
        digest: Of its manifest.
        size: Bytes of that manifest.
        media_type: Of that manifest.
        facts: What its signature said when the entry was written.
    """

    digest: str
    size: int
    media_type: str
    facts: Facts


@dataclass(frozen=True, slots=True)
class ImageCatalogue:
    """What a repository has of one driver.

    Attributes:
        driver: The driver.
        serial: Unix milliseconds of its writing, or more: the greater of two is the newer.
        entries: The images, one a Pin.
        signed_by: The name of the key that signed it.
    """

    driver: str
    serial: int
    entries: tuple[Listed, ...]
    signed_by: str = ""

    def of(self, wanted: Mapping[str, str]) -> tuple[Listed, ...]:
        """Return the images with these facts, that which was signed last first."""
        fitting = [
            one
            for one in self.entries
            if all(getattr(one.facts, name) == value for name, value in wanted.items())
        ]
        return tuple(sorted(fitting, key=lambda one: one.facts.serial, reverse=True))


class _Document(Foreign):
    schema_version: Literal[2] = Field(alias="schemaVersion")
    manifests: tuple[Descriptor, ...] = Field(max_length=_MOST_ENTRIES)
    annotations: Mapping[str, str]


def read_catalogue(
    client: Repository, driver: str, keys: Sequence[PublicKey]
) -> ImageCatalogue | None:
    """Return the catalogue of a repository once its signature was verified; None: it has none.

    Args:
        client: The repository.
        driver: The driver that it has to be of.
        keys: Those that are trusted.

    Raises:
        UntrustedError: It is not signed as it has to be.
        UnreachableError: The registry kept failing.
        ProvisionError: It is not one.
    """
    try:
        content = client.manifest(CATALOGUE)
    except NotFoundError:
        return None
    verified = verify_catalogue(client, content.digest, keys, driver)
    name = f"{client.reference.registry}/{client.reference.repository}:{CATALOGUE}"
    return parse_catalogue(content.data, driver, name, verified.key)


def parse_catalogue(data: bytes, driver: str, name: str, key: str) -> ImageCatalogue:
    """Return what a catalogue's bytes say, whose signature was verified before.

    Args:
        data: The bytes.
        driver: The driver that it has to be of.
        name: What messages call it.
        key: The name of the key that signed it.

    Raises:
        ProvisionError: It is not one.
    """
    with refusing(f"'{name}' is refused: it is no catalogue of images.", resolution=_WRITE_AGAIN):
        document = _Document.model_validate_json(data)
    serial = _number(document.annotations.get(_SERIAL, ""))
    entries = [_entry(one, driver) for one in document.manifests]
    complete = tuple(one for one in entries if one is not None)
    if serial is None or document.annotations.get(_OF) != driver or len(complete) < len(entries):
        raise ProvisionError(
            f"'{name}' is refused: it is no catalogue of the images of {driver}.",
            resolution=_WRITE_AGAIN,
        )
    return ImageCatalogue(driver, serial, complete, key)


def _entry(one: Descriptor, driver: str) -> Listed | None:
    said = {name: one.annotations.get(f"{_PREFIX}{name}", "") for name in Facts.__slots__}
    said["driver"] = driver
    serial = _number(said.pop("serial"))
    if serial is None or not all(said.values()):
        return None
    return Listed(one.digest, one.size, one.media_type, Facts(**said, serial=serial))


def _number(text: str) -> int | None:
    is_good = text.isascii() and text.isdigit() and len(text) <= _LONGEST_SERIAL
    return int(text) if is_good else None


def look_at(client: Client, tag: str, keys: Sequence[PublicKey]) -> Listed | None:
    """Return what a catalogue says of the image of a Pin's tag; None: it may not be listed.

    Args:
        client: The repository.
        tag: The tag of a Pin.
        keys: Those that are trusted.

    Raises:
        UnreachableError: The registry kept failing.
        DeniedError: It does not let this host in.
    """
    try:
        content = client.manifest(tag)
        verified = verify(client, content.digest, keys, {"pin": pin_of_tag(tag) or ""})
    except (UnreachableError, DeniedError):
        raise
    except ProvisionError:
        # It is gone, signed by others, or none at all.
        return None
    if verified.facts is None:
        return None
    kind = json.loads(content.data).get("mediaType") or OCI_MANIFEST
    return Listed(content.digest, len(content.data), kind, verified.facts)


def keep_catalogue(
    client: Client,
    driver: str,
    signer: Signer,
    keys: Sequence[PublicKey],
    *,
    pins: Iterable[str] = (),
    again: bool = False,
    now: Callable[[], float],
) -> ImageCatalogue:
    """Have every signed image of a repository that has the tag of its Pin in the catalogue.

    Registries write no tag on condition. So what was written is read again, together with the tags:
    as long as something is missing that another writer knew, it is written again. What had no
    signature is looked at again, too: its writer may have signed it since, and listed it in a
    catalogue that this one replaced.

    Args:
        client: The repository.
        driver: The driver.
        signer: Signs the catalogue.
        keys: What they signed is listed, and a catalogue that they signed is gone on with.
        pins: Digests of Pins whose images were signed just now.
        again: Begin with none: look at every image, whatever the catalogue says.
        now: Unix seconds.

    Returns:
        The catalogue as it is in the registry then.

    Raises:
        UntrustedError: There is a catalogue that none of the keys signed.
        ProvisionError: The registry refuses, or others write all the time.
    """
    waiting = {pin_tag(pin) for pin in pins}
    gone: set[str] = set()
    for attempt in range(_ROUNDS):
        if attempt:
            client.transport.sleep(_PAUSE * attempt * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
        known = _known(client, driver, keys, again=again)
        # In this order: anyone who had an entry written had set its tag before.
        tags = {tag for tag in client.tags() if pin_of_tag(tag)} | waiting
        before = () if again or known is None else known.entries
        entries = {tag: one for one in before if (tag := pin_tag(one.facts.pin)) in tags}
        for tag in sorted((tags - entries.keys() - gone) | waiting):
            found = look_at(client, tag, keys)
            if found is not None and found.facts.driver == driver:
                entries[tag] = found
        if known is not None and not again and set(known.entries) == set(entries.values()):
            return known
        # Of two writers whose clocks agree, the one that writes last has the greater one, also
        # where it knew nothing of the other.
        serial = max(int(now() * MILLISECONDS), known.serial + 1 if known else 0)
        gone |= _write(client, ImageCatalogue(driver, serial, (*entries.values(),)), signer)
        waiting, again = set(), False
    raise ProvisionError(
        f"The catalogue of '{client.reference.registry}/{client.reference.repository}' was written"
        f" {_ROUNDS} times, and each time another writer had replaced it.",
        resolution=f"The image itself is there. Later: provision catalogue {driver}",
    )


def _known(
    client: Client, driver: str, keys: Sequence[PublicKey], *, again: bool
) -> ImageCatalogue | None:
    try:
        return read_catalogue(client, driver, keys)
    except UntrustedError as error:
        if again:
            return None
        raise UntrustedError(
            f"{error.message} So it is not replaced, and no image was added to it.",
            resolution="If others sign images there too, put their public key into the folder that"
            " [trust] keys names. If it is damaged, have it made of the images that there are:"
            f" provision catalogue {driver} --replace",
            details=error.details,
        ) from error


def _write(client: Client, catalogue: ImageCatalogue, signer: Signer) -> set[str]:
    """Write a catalogue; returns the tags of the entries whose images are gone."""
    try:
        write_catalogue(client, catalogue, signer)
    except (UnreachableError, DeniedError):
        raise
    except ProvisionError:
        # Registries take no index of what they do not have.
        gone = [one for one in catalogue.entries if not _is_there(client, one.digest)]
        if not gone:
            raise
        left = tuple(one for one in catalogue.entries if one not in gone)
        write_catalogue(client, ImageCatalogue(catalogue.driver, catalogue.serial, left), signer)
        return {pin_tag(one.facts.pin) for one in gone}
    return set()


def _is_there(client: Client, digest: str) -> bool:
    try:
        client.manifest(digest)
    except NotFoundError:
        return False
    return True


def write_catalogue(client: Client, catalogue: ImageCatalogue, signer: Signer) -> None:
    """Sign a catalogue and put it into its repository, whatever was there.

    Raises:
        ProvisionError: It is too large, or the registry refuses or can't be reached.
    """
    data = document_of(catalogue)
    if len(data) > LONGEST_MANIFEST or len(catalogue.entries) > _MOST_ENTRIES:
        raise ProvisionError(
            f"The catalogue of {catalogue.driver} would have {len(catalogue.entries)} images, and"
            f" {len(data)} bytes: registries take {LONGEST_MANIFEST}, and hosts {_MOST_ENTRIES}"
            " images.",
            resolution="Remove images that no host needs any more from the registry, or keep those"
            " of old kernels below another prefix; then: provision catalogue"
            f" {catalogue.driver} --replace",
        )
    # Signed first, so that no host ever finds it without a signature.
    sign(client, content_digest(data), {CATALOGUE_FACT: catalogue.driver}, signer)
    client.put_manifest(CATALOGUE, data, OCI_INDEX)


def document_of(catalogue: ImageCatalogue) -> bytes:
    """Return a catalogue as an OCI index.

    Source: https://github.com/opencontainers/image-spec/blob/v1.1.0/image-index.md.
    """
    architectures = {ours: theirs for theirs, ours in ARCHITECTURES.items()}
    entries = sorted(catalogue.entries, key=lambda one: (one.facts.kernel, one.facts.pin))
    manifests = []
    for one in entries:
        said = {name: str(value) for name, value in asdict(one.facts).items() if name != "driver"}
        machine = one.facts.architecture
        manifests.append(
            {
                "mediaType": one.media_type,
                "digest": one.digest,
                "size": one.size,
                "platform": {"architecture": architectures.get(machine, machine), "os": "linux"},
                "annotations": {f"{_PREFIX}{name}": value for name, value in said.items()},
            }
        )
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": manifests,
        "annotations": {_OF: catalogue.driver, _SERIAL: str(catalogue.serial)},
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
