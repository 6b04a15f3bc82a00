"""A registry's catalogue of images, if a host trusts it.

The catalogue only tells a host which images to examine. But an old catalogue would hide new images,
so the host records its serial, like that of images.
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
from provision.sources.market import VersionRequest, newest_first
from provision.store.entries import newest_serial
from provision.store.layout import Layout


@dataclass(frozen=True, slots=True)
class CatalogueTrust:
    """The conditions under which a catalogue is trusted.

    Attributes:
        keys: The trusted keys.
        oldest: Unix seconds; older signatures do not count.
        allow_downgrade: Whether it may be older than one that was used before.
    """

    keys: Sequence[PublicKey]
    oldest: int = 0
    allow_downgrade: bool = False


def target_of(settings: Settings, client: Repository) -> str:
    """Return the name under which the serial of a catalogue is recorded.

    Mirrors have the catalogue of the registry that they mirror, so they share its name.
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
    """Return a repository's catalogue; None: it is missing or not trusted, so tags are read.

    Args:
        settings: The host.
        client: The repository.
        driver: The driver.
        trust: The conditions of trust.
        progress: Receives the reason if a catalogue does not count.

    Raises:
        UntrustedError: It is missing, older or without a valid signature, although this host has
            used a valid one.
        NotFoundError: A mirror lacks the catalogue that the host has used.
        UnreachableError: The registry kept failing.
        ProvisionError: Its content is no catalogue.
    """
    layout = Layout(settings.root, driver)
    seen = 0 if trust.allow_downgrade else newest_serial(layout, target_of(settings, client))
    name = f"{client.reference.registry}/{client.reference.repository}:{CATALOGUE}"
    try:
        found = read_catalogue(client, driver, trust.keys)
    except UntrustedError as error:
        if seen:
            raise
        progress(Note(f"{error.message} {error.details or ''} Its tags are read instead."))
        return None
    if found is None and seen:
        raise _gone(settings, client, name)
    if found is None:
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
        return NotFoundError(
            message,
            resolution="Fill the mirror again from the registry that it copies: provision mirror",
        )
    return UntrustedError(
        message,
        resolution="Check the registry. To have it written again, by those who sign your"
        f" artifacts: provision catalogue {client.reference.repository.rpartition('/')[2]}. To go"
        " on without it: the same command with --allow-downgrade.",
    )


def suitable(
    catalogue: ImageCatalogue,
    facts: Mapping[str, str],
    version: VersionRequest,
) -> list[Listed]:
    """Return the images that a host may install, in the order in which it tries them.

    Args:
        catalogue: The catalogue.
        facts: The facts that their signatures must state.
        version: The versions that count: first the preferred one, then the one of exactly the
            requested name.
    """
    fitting = catalogue.of(facts)
    newest = newest_first(one.facts.version for one in fitting)
    # A version may have been read from a tag, where '+' and '~' can't stand.
    there = {_in_tag(version): version for version in newest}
    first = (version.prefer, version.exact)
    order = [there[_in_tag(v)] for v in first if v is not None and _in_tag(v) in there]
    order += version.accepted(newest)
    return [one for v in dict.fromkeys(order) for one in fitting if one.facts.version == v]


def _in_tag(version: str) -> str:
    return HostTag(version, "f", "1.0", "d").text
