"""A registry's catalogue of images, as far as a host trusts it.

It only says where to look: each image is examined separately. But an old catalogue would keep a
host from new images, so its serial is remembered as that of images is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.errors import NotFoundError
from provision.pipeline.workspace import Settings
from provision.progress import Note, Progress, silent
from provision.registry.image_catalogue import (
    MILLISECONDS,
    ImageCatalogue,
    Listed,
    read_catalogue,
)
from provision.registry.image_signature import PublicKey, UntrustedError
from provision.registry.manifests import Repository
from provision.registry.names import CATALOGUE, HostTag
from provision.sources.kind import newest_first
from provision.sources.version_request import VersionRequest
from provision.store.entries import newest_serial
from provision.store.layout import Layout


@dataclass(frozen=True, slots=True)
class CatalogueTrust:
    """What decides whether a catalogue is trusted.

    Attributes:
        keys: Those that are trusted.
        oldest: Unix seconds; what was signed before does not count.
        allow_downgrade: Whether it may be older than one that was used before.
    """

    keys: Sequence[PublicKey]
    oldest: int = 0
    allow_downgrade: bool = False


def target_of(settings: Settings, client: Repository) -> str:
    """Return what the serial of a catalogue is remembered by.

    Mirrors have the catalogue of the registry that they mirror, so they share one.
    """
    registry = settings.config.registry
    address = f"{client.reference.registry}/{client.reference.repository}".rpartition("/")[0]
    known = registry.address if address in registry.addresses else address
    return f"catalogue of {known}"


def read_trusted(
    settings: Settings,
    client: Repository,
    driver: str,
    trust: CatalogueTrust,
    *,
    progress: Progress = silent,
) -> ImageCatalogue | None:
    """Return a repository's catalogue; None: it is missing or does not count, and tags are read.

    Args:
        settings: The host.
        client: The repository.
        driver: The driver.
        trust: What decides whether it is trusted.
        progress: Receives why a catalogue does not count.

    Raises:
        UntrustedError: It is older than one that this host has used, or gone; or it is not signed
            as it has to be, and one that was has been used here.
        NotFoundError: A mirror has none, and the host knows that there is one.
        UnreachableError: The registry kept failing.
        ProvisionError: It is not one.
    """
    target = target_of(settings, client)
    seen = 0
    if not trust.allow_downgrade:
        seen = newest_serial(Layout(settings.root, driver), target)
    name = f"{client.reference.registry}/{client.reference.repository}:{CATALOGUE}"
    try:
        found = read_catalogue(client, driver, trust.keys)
    except UntrustedError as error:
        if seen:
            raise
        progress(Note(f"{error.message} {error.details or ''} Its tags are read instead."))
        return None
    if found is None:
        if seen:
            raise _gone(settings, client, name)
        return None
    if found.serial < trust.oldest * MILLISECONDS:
        progress(Note(f"'{name}' is older than not_before allows. The tags are read instead."))
        return None
    if found.serial < seen:
        raise _outdated(name, found.serial, seen)
    return found


def _outdated(name: str, serial: int, seen: int) -> UntrustedError:
    return UntrustedError(
        f"'{name}' is refused: it is older than the catalogue that this host has used"
        f" ({serial}, and {seen}, in Unix milliseconds).",
        resolution="If nothing was restored from a backup on purpose, the registry serves what is"
        " out of date: look into it. To use it: the same command with --allow-downgrade.",
    )


def _gone(settings: Settings, client: Repository, name: str) -> UntrustedError | NotFoundError:
    message = f"'{name}' is gone: this host has used it before."
    registry = settings.config.registry
    if any(name.startswith(f"{mirror}/") for mirror in registry.mirrors):
        return NotFoundError(message)
    return UntrustedError(
        message,
        resolution="Check the registry. To have it written again, by those who sign your"
        f" artifacts: provision catalogue {client.reference.repository.rpartition('/')[2]}. To go"
        " on without it: the same command with --allow-downgrade.",
    )


def suitable(
    catalogue: ImageCatalogue,
    wanted: Mapping[str, str],
    version: VersionRequest,
) -> list[Listed]:
    """Return the images that a host may take, in the order in which it asks for them.

    Args:
        catalogue: What there is.
        wanted: What their signatures have to say.
        version: Which versions count. The one to stay with comes first, and then the one of
            exactly the name that is asked for.
    """
    fitting = catalogue.of(wanted)
    newest = newest_first(one.facts.version for one in fitting)
    # A version may have been read from a tag, where '+' and '~' can't stand.
    there = {_in_tag(version): version for version in newest}
    first = (version.prefer, version.exact)
    order = [there[_in_tag(v)] for v in first if v is not None and _in_tag(v) in there]
    order += version.accepted(newest)
    return [one for v in dict.fromkeys(order) for one in fitting if one.facts.version == v]


def _in_tag(version: str) -> str:
    return HostTag(version, "f", "1.0", "d").text
