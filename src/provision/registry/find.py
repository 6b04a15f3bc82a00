"""Finds the image that a host needs, in the first of its registries that has it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from provision.build.request import VersionRequest
from provision.build.workspace import Settings
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.pin import Pin
from provision.progress import Note, Progress, silent
from provision.registry.artifact_images import VerifiedImage, facts_of
from provision.registry.manifests import Repository
from provision.registry.names import HostTag, pin_tag, version_of_tag
from provision.registry.registries import (
    Connect,
    TrustOverride,
    connect,
    examine,
    folder_at,
    references,
    trusted_keys,
)
from provision.registry.skopeo import DeniedError
from provision.sources.candidates import newest_first


@dataclass(frozen=True, slots=True)
class ArtifactQuery:
    """A query to registries and the store for an artifact."""

    driver: str
    # Its version; of several, the newest that exists.
    version: VersionRequest
    flavour: str
    kernel: str
    distro: str
    # As ``uname -m`` prints it.
    architecture: str

    def tag(self, version: str) -> HostTag:
        """Return the tag of one version."""
        return HostTag(version, self.flavour, self.kernel, self.distro)

    def facts(self) -> dict[str, str]:
        """Return the facts that a signature must state, without the version."""
        names = ("driver", "flavour", "kernel", "distro", "architecture")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of a search in registries."""

    consent: TrustOverride
    # Raises a ``ProvisionError`` for an image that the host may not install after all, such as an
    # old one of a mirror that lags behind.
    accept: Callable[[VerifiedImage], None] = lambda _: None
    # Called with the error if a registry did not answer and the artifact is built.
    unanswered: Callable[[ProvisionError], None] = lambda _: None
    connected: Connect = connect
    progress: Progress = silent


# Versions that Debian's order can compare.
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~-]*")


def find_in_registries(
    settings: Settings, sought: ArtifactQuery, lookup: SearchOptions
) -> VerifiedImage | None:
    """Return the image of a query from the first of a host's registries that has it.

    Returns:
        The image; None: no registry has it, or none answers and the host may build.

    Raises:
        UntrustedError: Registries have it, but none with a signature that counts.
        UnreachableError: A registry does not answer, and the host never builds.
        DeniedError: A registry refuses this host, and the host never builds.
        ProvisionError: provision.toml does not say whom to trust; a key or image can't be read.
    """

    def look(client: Repository) -> VerifiedImage:
        found = _in_repository(settings, client, sought, lookup)
        return replace(found, request=sought.version)

    return _first(settings, sought.driver, lookup, look)


def find_pin_in_registries(
    settings: Settings, pin: Pin, lookup: SearchOptions
) -> VerifiedImage | None:
    """Return the image of a Pin by the Pin's own tag."""
    signed_facts = asdict(facts_of(pin, 0))
    del signed_facts["serial"]

    def look(client: Repository) -> VerifiedImage:
        named = client.at(client.reference.with_tag(pin_tag(pin.digest)))
        found = examine(settings, named, signed_facts, lookup.consent, driver=pin.driver.name)
        return replace(found, request=VersionRequest(pin.driver.version))

    return _first(settings, pin.driver.name, lookup, look)


def _first(
    settings: Settings,
    driver: str,
    lookup: SearchOptions,
    look: Callable[[Repository], VerifiedImage],
) -> VerifiedImage | None:
    """Return the image of the first registry that has a valid one."""
    progress = lookup.progress
    refused: ProvisionError | None = None
    absent: ProvisionError | None = None
    places = references(settings, driver)
    for reference in places:
        # Mistakes of this host are reported before a registry is asked.
        trusted_keys(settings, reference.name, driver, lookup.consent)
    for reference in places:
        address = reference.name.rpartition("/")[0]
        try:
            found = look(folder_at(settings, reference) or lookup.connected(settings, reference))
            lookup.accept(found)
        except NotFoundError as error:
            progress(Note(f"{address} has no {driver}: {error.details or error.message}"))
            absent = None
        except (UnreachableError, DeniedError) as error:
            progress(Note(f"{error.message} {error.details or ''}".rstrip()))
            absent = error
        except ProvisionError as error:
            if len(places) > 1:
                # Another registry may have a valid image, and then no error reports this one.
                progress(Note(f"{error.message} {error.details or ''}".rstrip()))
            refused = refused or error
        else:
            return found
    if refused is not None:
        raise refused
    # The last registry is not a mirror, so only its failure counts.
    if absent is not None:
        _leave_to_build(settings, absent, lookup)
    return None


def _leave_to_build(settings: Settings, error: ProvisionError, lookup: SearchOptions) -> None:
    """Let the caller build if a registry did not answer; raise if the host never builds."""
    if settings.config.policy.build == "never":
        raise error
    lookup.unanswered(error)


def _in_repository(
    settings: Settings, client: Repository, sought: ArtifactQuery, lookup: SearchOptions
) -> VerifiedImage:
    """Return the image of a repository, with as few requests as possible."""
    consent = lookup.consent
    for version in dict.fromkeys((sought.version.prefer, sought.version.exact)):
        if version is None:
            continue
        with suppress(NotFoundError):
            return _version(settings, client, sought, version, consent)
    for version in _versions(client.tags(), sought):
        return _version(settings, client, sought, version, consent)
    raise NotFoundError(
        f"'{client.reference.name}' has no {sought.tag(sought.version.name or '…').text}.",
        resolution="Build and push it on a machine that builds: provision build"
        f" {sought.driver} --kernel {sought.kernel} --distro {sought.distro} --push … --sign",
    )


def _version(
    settings: Settings,
    client: Repository,
    sought: ArtifactQuery,
    version: str,
    consent: TrustOverride,
) -> VerifiedImage:
    named = client.reference.with_tag(sought.tag(version).text)
    signed_facts = sought.facts()
    return examine(settings, client.at(named), signed_facts, consent, driver=sought.driver)


def _versions(tags: tuple[str, ...], sought: ArtifactQuery) -> list[str]:
    """Return the versions that a repository has for a host, as in its tags, newest first."""
    suffix = sought.tag("").suffix
    found = [tag.removesuffix(suffix) for tag in tags if tag.endswith(suffix)]
    # Texts that are no versions can't be compared.
    labels = {version_of_tag(one): one for one in found}
    newest = newest_first(filter(_VERSION.fullmatch, labels))
    return sought.version.accepted(labels[one] for one in newest)
