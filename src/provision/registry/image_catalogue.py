"""The signed list of a repository's images: an OCI index under the tag ``catalogue``.

Each entry is an image, with the facts of its signature as annotations. Hosts get the list in one
request; an image still needs its own signature. Why writers lose
none of each other's entries: docs/decisions/16-registries.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import Field

from provision.documents import refusing
from provision.errors import NotFoundError, ProvisionError
from provision.registry.attached_signatures import verify_catalogue
from provision.registry.image_signature import (
    Facts,
    PublicKey,
)
from provision.registry.manifests import (
    ARCHITECTURES,
    OCI_INDEX,
    Descriptor,
    Foreign,
    Repository,
)
from provision.registry.names import CATALOGUE

# An entry has some 560 bytes, and a manifest 4 MiB at most.
MOST_ENTRIES = 6000
_LONGEST_SERIAL = 15
LARGEST_SERIAL = 10**_LONGEST_SERIAL - 1
# Serials of catalogues count milliseconds: several writers may write one within a second.
MILLISECONDS = 1000
_PREFIX = "provision."
_OF = f"{_PREFIX}catalogue"
_SERIAL = f"{_PREFIX}serial"
_WRITE_AGAIN = "Have it written again by those who sign your artifacts: provision catalogue DRIVER"


@dataclass(frozen=True, slots=True)
class Listed:
    """An image in a catalogue.

    Attributes:
        digest: Digest of its manifest.
        size: Number of bytes of that manifest.
        media_type: Media type of that manifest.
        facts: The facts of its signature when the entry was written.
    """

    digest: str
    size: int
    media_type: str
    facts: Facts


@dataclass(frozen=True, slots=True)
class ImageCatalogue:
    """The images of one driver in a repository.

    Attributes:
        driver: The driver.
        serial: Unix milliseconds when it was written, or more; the newer catalogue has the greater.
        entries: The images, one for each Pin.
        signed_by: The name of the key that signed it.
    """

    driver: str
    serial: int
    entries: tuple[Listed, ...]
    signed_by: str = ""

    def of(self, facts: Mapping[str, str]) -> tuple[Listed, ...]:
        """Return the images with these facts, the last signed one first."""
        fitting = [
            one
            for one in self.entries
            if all(getattr(one.facts, name) == value for name, value in facts.items())
        ]
        return tuple(sorted(fitting, key=lambda one: one.facts.serial, reverse=True))


class _Document(Foreign):
    schema_version: Literal[2] = Field(alias="schemaVersion")
    manifests: tuple[Descriptor, ...] = Field(max_length=MOST_ENTRIES)
    annotations: Mapping[str, str]


def read_catalogue(
    client: Repository, driver: str, keys: Sequence[PublicKey]
) -> ImageCatalogue | None:
    """Return the catalogue of a repository once its signature is verified; None if it has none.

    Args:
        client: The repository.
        driver: The driver that it must be of.
        keys: The trusted keys.

    Raises:
        UntrustedError: It lacks a trusted signature.
        UnreachableError: The registry kept failing.
        ProvisionError: It is not a catalogue.
    """
    try:
        content = client.manifest(CATALOGUE)
    except NotFoundError:
        return None
    verified = verify_catalogue(client, content.digest, keys, driver)
    name = f"{client.reference.name}:{CATALOGUE}"
    return parse_catalogue(content.data, driver, name, verified.key)


def parse_catalogue(data: bytes, driver: str, name: str, key: str) -> ImageCatalogue:
    """Parse a catalogue whose signature was verified before.

    Args:
        data: The bytes.
        driver: The driver that it must be of.
        name: Its name in messages.
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
