"""Looks for the artifact that a host needs: in its registries, and in its store where none answers.

Nothing that builds is loaded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from provision.catalogue import Recipe
from provision.catalogue.upstream import CHANNELS
from provision.documents import load_json
from provision.errors import ConfigError, NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.host.facts import read_facts
from provision.host.kernels import machine
from provision.kmod.verify import MANIFEST
from provision.manifest import Manifest
from provision.pin import DistroPin, Pin
from provision.pipeline.driver_request import DriverRequest, distro_of_kernel, own_kernel
from provision.pipeline.pulling import check_age
from provision.pipeline.registries import trust_rule
from provision.pipeline.registry_search import ArtifactQuery, Lookup, seek, seek_pin
from provision.pipeline.upstream_branches import follow
from provision.pipeline.workspace import Settings
from provision.progress import Progress, silent
from provision.registry.artifact_images import Trusted
from provision.registry.names import parse_reference
from provision.registry.tokens import DeniedError
from provision.sources.kind import newest_first
from provision.sources.upstream import known_branches, today
from provision.store.entries import entries, unsigned_reference
from provision.store.layout import Layout


class MissingArtifactError(NotFoundError):
    """No registry has an artifact, and nothing is built here.

    Attributes:
        sought: What was looked for; None: no registry was asked.
    """

    sought: ArtifactQuery | None = None


def look_for(settings: Settings, wanted: DriverRequest, lookup: Lookup) -> Trusted | None:
    """Return the image of a registry that a host may install in place of building it.

    Args:
        settings: The host.
        wanted: What is asked for.
        lookup: How registries are asked.

    Returns:
        The image; None: it is to be built.

    Raises:
        MissingArtifactError: No registry has it, and nothing is built here.
        NotFoundError: The driver or kernel is unknown.
        UntrustedError: What a registry has is not signed as it has to be.
        ProvisionError: provision.toml does not say whom to trust, or a key can't be read.
    """
    registry = settings.config.registry
    places = (*registry.folders, *registry.addresses)
    found, sought = None, None
    if asks_registries(settings):
        sought = artifact_query(settings, wanted, progress=lookup.progress)
        found = seek(settings, sought, _refusing_old(settings, lookup))
    if found is None and settings.config.policy.build == "never":
        error = MissingArtifactError(
            f"No registry has {wanted.driver} for {wanted.kernel or 'the kernel that runs'}"
            f' ({", ".join(places) or "none is set"}), and [policy] build = "never".',
            resolution="Build and push it elsewhere: provision build --push … --sign; or allow it"
            ' here: [policy] build = "fallback" in /etc/provision/provision.toml.',
        )
        error.sought = sought
        raise error
    return found


def look_for_pin(settings: Settings, pin: Pin, lookup: Lookup) -> Trusted | None:
    """Return the image of a Pin from a registry; None: none has it, or none is to be asked.

    Arguments and errors as ``look_for``.
    """
    if not asks_registries(settings):
        return None
    return seek_pin(settings, pin, _refusing_old(settings, lookup))


def _refusing_old(settings: Settings, lookup: Lookup) -> Lookup:
    return replace(lookup, accept=lambda trusted: check_age(settings, trusted, lookup.consent))


def asks_registries(settings: Settings) -> bool:
    """Return whether an artifact may come from a registry."""
    registry = settings.config.registry
    is_set = bool(registry.addresses or registry.folders)
    return is_set and settings.config.policy.build != "always"


def artifact_query(
    settings: Settings, wanted: DriverRequest, *, progress: Progress = silent
) -> ArtifactQuery:
    """Return what registries and the store are asked, where a host wants a driver for a kernel.

    Raises:
        NotFoundError: The driver or kernel is unknown.
    """
    facts = read_facts(settings.root)
    kernel = wanted.kernel or own_kernel(settings, facts)
    recipe = settings.catalogue.entry(wanted.driver).recipe
    distro = None
    try:
        distro = distro_of_kernel(settings, kernel, wanted.distro)
        name = f"{distro.id}:{distro.version}"
    except NotFoundError:
        # One that nothing can be built for here; others may have.
        name = wanted.distro or f"{facts.distro.id}:{facts.distro.version}"
    return ArtifactQuery(
        driver=wanted.driver,
        version=wanted.version_request(_branches(settings, recipe, wanted, distro, progress)),
        flavour=wanted.flavour or recipe.default_flavour,
        kernel=kernel,
        distro=name,
        architecture=machine(settings.root),
    )


def _branches(
    settings: Settings,
    recipe: Recipe,
    wanted: DriverRequest,
    distro: DistroPin | None,
    progress: Progress,
) -> tuple[str, ...] | None:
    """Return the branches of the kind that is asked for (``lts``); None: no kind is.

    A host that builds nothing asks no vendor: it has what the recipe says.
    """
    if wanted.version is None or wanted.version not in CHANNELS:
        return None
    if distro is None or settings.config.policy.build == "never":
        return known_branches(recipe.upstream, ()).followed(wanted.version, today())
    return follow(settings, wanted, distro, progress=progress).branches


def stored_for(settings: Settings, wanted: DriverRequest) -> Path | None:
    """Return the entry of the store that is what is asked for; None: there is no such one.

    Of several versions the newest counts, or the one to stay with. What came from an unsigned image
    counts only where such images do.

    Raises:
        NotFoundError: The driver or kernel is unknown.
    """
    sought = artifact_query(settings, wanted)
    layout = Layout(settings.root, wanted.driver)
    found: dict[str, Path] = {}
    takes_unsigned = _takes_unsigned(settings, wanted.driver)
    for digest in entries(layout):
        if not takes_unsigned and unsigned_reference(layout.entry(digest)) is not None:
            # Without its registry, a host must not go back to an unsigned artifact.
            continue
        try:
            pin = load_json(layout.entry(digest) / MANIFEST, Manifest).pin
        except (ConfigError, NotFoundError, OSError):
            continue
        if _is_of(pin, sought):
            found[pin.driver.version] = layout.entry(digest)
    order = [v for v in (sought.version.prefer, *newest_first(found)) if v in found]
    return found[order[0]] if order else None


def _takes_unsigned(settings: Settings, driver: str) -> bool:
    address = settings.config.registry.address
    if address is None:
        return settings.config.trust.insecure
    return trust_rule(settings, parse_reference(f"{address}/{driver}"), driver).insecure


def _is_of(pin: Pin, sought: ArtifactQuery) -> bool:
    if (pin.driver.flavour, pin.kernel.release) != (sought.flavour, sought.kernel):
        return False
    if pin.kernel.architecture != sought.architecture:
        return False
    return sought.version.accepts(pin.driver.version)


def may_be_in_store(settings: Settings, error: ProvisionError) -> bool:
    """Whether a host that never builds makes do with its store: no registry lets it ask."""
    is_silent = isinstance(error, UnreachableError | DeniedError)
    return is_silent and settings.config.policy.build == "never"
