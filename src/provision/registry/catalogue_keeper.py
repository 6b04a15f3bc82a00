"""Keeps the signed catalogue of a repository's images complete, with several writers.

Why writers lose none of each other's entries: docs/decisions/16-registries.md.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.registry.attached_signatures import sign, verify_signature
from provision.registry.client import Client
from provision.registry.image_catalogue import (
    LARGEST_SERIAL,
    MILLISECONDS,
    MOST_ENTRIES,
    ImageCatalogue,
    Listed,
    document_of,
    read_catalogue,
)
from provision.registry.image_signature import (
    CATALOGUE_FACT,
    PublicKey,
    Signer,
    UntrustedError,
)
from provision.registry.manifests import (
    LONGEST_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
)
from provision.registry.names import CATALOGUE, pin_of_tag, pin_tag
from provision.registry.tokens import DeniedError
from provision.registry.transport import content_digest

_ROUNDS = 12
# Seconds between two rounds.
_PAUSE = 0.3


def look_at(client: Client, tag: str, keys: Sequence[PublicKey]) -> Listed | None:
    """Return the entry for the image of a Pin's tag; None if it must not be listed.

    Args:
        client: The repository.
        tag: The tag of a Pin.
        keys: The trusted keys.

    Raises:
        UnreachableError: The registry kept failing.
        DeniedError: It denies this host access.
    """
    try:
        content = client.manifest(tag)
        verified = verify_signature(client, content.digest, keys, {"pin": pin_of_tag(tag) or ""})
    except (UnreachableError, DeniedError):
        raise
    except ProvisionError:
        # It was removed, is signed by other keys, or is not an image.
        return None
    if verified.facts is None:
        return None
    kind = json.loads(content.data).get("mediaType") or OCI_MANIFEST
    return Listed(content.digest, len(content.data), kind, verified.facts)


@dataclass(frozen=True, slots=True)
class CatalogueKeeper:
    """Keeps the catalogue of a repository complete, also while others write it.

    A registry can't write a tag conditionally. So the catalogue is read again after each write,
    together with the tags. It is written again as long as an entry of another writer is missing.
    Images without a signature are examined again too: another writer may have signed them since,
    and listed them in a catalogue that this one replaced.

    Attributes:
        client: The repository.
        driver: The driver.
        signer: Signs the catalogue.
        keys: Images that they signed are listed; a catalogue that they signed is extended.
        now: Unix seconds.
    """

    client: Client
    driver: str
    signer: Signer
    keys: Sequence[PublicKey]
    now: Callable[[], float] = time.time

    def keep(self, pins: Iterable[str] = (), *, again: bool = False) -> ImageCatalogue:
        """Make the catalogue list every signed image that has the tag of its Pin.

        Args:
            pins: Digests of Pins whose images were signed just now.
            again: Whether to ignore the current catalogue and examine every image.

        Returns:
            The catalogue as it is in the registry then.

        Raises:
            UntrustedError: There is a catalogue that none of the keys signed.
            NotFoundError: There is no catalogue, no image was signed just now, and none can be
                listed.
            ProvisionError: The registry refuses, or others write all the time.
        """
        waiting = {pin_tag(pin) for pin in pins}
        gone: set[str] = set()
        for attempt in range(_ROUNDS):
            if attempt:
                # Random pauses keep two writers from colliding again.
                pause = _PAUSE * attempt * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
                self.client.transport.sleep(pause)
            known = self._known(again=again)
            # Tags are read after the catalogue: writers set an image's tag before they list it.
            tags = {tag for tag in self.client.tags() if pin_of_tag(tag)} | waiting
            before = () if again or known is None else known.entries
            entries = self._entries(before, tags, gone, waiting)
            if known is not None and not again and set(known.entries) == set(entries):
                return known
            if known is None and not entries and not waiting:
                raise self._empty()
            # Of two writers whose clocks agree, the one that writes last has the greater serial,
            # even where it knew nothing of the other.
            next_one = known.serial + 1 if known else 0
            if again and next_one > LARGEST_SERIAL:
                next_one = 0
            serial = max(int(self.now() * MILLISECONDS), next_one)
            gone |= self._write(ImageCatalogue(self.driver, serial, entries))
            waiting, again = set(), False
        repository = self.client.reference.name
        raise ProvisionError(
            f"The catalogue of '{repository}' was written {_ROUNDS} times, and each time another"
            " writer had replaced it.",
            resolution=f"The image itself is there. Later: provision catalogue {self.driver}",
        )

    def _entries(
        self, before: Iterable[Listed], tags: set[str], gone: set[str], waiting: set[str]
    ) -> tuple[Listed, ...]:
        """Return the images of tags: as they were listed before, or as they are examined now."""
        entries = {tag: one for one in before if (tag := pin_tag(one.facts.pin)) in tags}
        for tag in sorted((tags - entries.keys() - gone) | waiting):
            found = look_at(self.client, tag, self.keys)
            if found is not None and found.facts.driver == self.driver:
                entries[tag] = found
        return tuple(entries.values())

    def _known(self, *, again: bool) -> ImageCatalogue | None:
        try:
            return read_catalogue(self.client, self.driver, self.keys)
        except UntrustedError as error:
            if again:
                return None
            raise UntrustedError(
                f"{error.message} So it is not replaced, and no image was added to it.",
                resolution="If others sign images there too, put their public key into the folder"
                " that [trust] keys names. If it is damaged, have it made of the images that there"
                f" are: provision catalogue {self.driver} --replace",
                details=error.details,
            ) from error
        except (UnreachableError, DeniedError):
            raise
        except ProvisionError:
            # A trusted key has signed it, but it is not a catalogue.
            if again:
                return None
            raise

    def _empty(self) -> NotFoundError:
        """Return the error for a first catalogue without images, which would hide tagged ones."""
        repository = self.client.reference.name
        return NotFoundError(
            f"'{repository}' has no image to list: none has the tag of its Pin (pin-…) and a"
            " signature that counts here. Its catalogue was not written.",
            resolution="Sign an image with 'provision sign REF', which sets that tag too; or give"
            " it the tag, and sign it with a key of [trust] keys.",
        )

    def _write(self, catalogue: ImageCatalogue) -> set[str]:
        """Write a catalogue; return the tags of the entries whose images are gone."""
        try:
            write_catalogue(self.client, catalogue, self.signer)
        except (UnreachableError, DeniedError):
            raise
        except ProvisionError:
            # Registries refuse an index of missing manifests.
            gone = [one for one in catalogue.entries if not self._is_there(one.digest)]
            if not gone:
                raise
            left = tuple(one for one in catalogue.entries if one not in gone)
            write_catalogue(self.client, replace(catalogue, entries=left), self.signer)
            return {pin_tag(one.facts.pin) for one in gone}
        return set()

    def _is_there(self, digest: str) -> bool:
        try:
            self.client.manifest(digest)
        except NotFoundError:
            return False
        return True


def write_catalogue(client: Client, catalogue: ImageCatalogue, signer: Signer) -> None:
    """Sign a catalogue and put it into its repository, whatever was there.

    Raises:
        ProvisionError: It is too large, or the registry refuses or can't be reached.
    """
    if catalogue.serial > LARGEST_SERIAL:
        raise ProvisionError(
            f"The catalogue of {catalogue.driver} was not written: it would have the serial"
            f" {catalogue.serial}, and hosts read {LARGEST_SERIAL} at most.",
            resolution="Set the clock of the machine that signs, and let the catalogue begin again:"
            f" provision catalogue {catalogue.driver} --replace. Hosts that have used the old one"
            " take the new one with --allow-downgrade.",
        )
    data = document_of(catalogue)
    if len(data) > LONGEST_MANIFEST or len(catalogue.entries) > MOST_ENTRIES:
        raise ProvisionError(
            f"The catalogue of {catalogue.driver} would have {len(catalogue.entries)} images, and"
            f" {len(data)} bytes: registries take {LONGEST_MANIFEST}, and hosts {MOST_ENTRIES}"
            " images.",
            resolution="Remove images that no host needs any more from the registry, or keep those"
            " of old kernels below another prefix; then: provision catalogue"
            f" {catalogue.driver} --replace",
        )
    # It is signed first, so that no host finds it without a signature.
    sign(client, content_digest(data), {CATALOGUE_FACT: catalogue.driver}, signer)
    client.put_manifest(CATALOGUE, data, OCI_INDEX)
