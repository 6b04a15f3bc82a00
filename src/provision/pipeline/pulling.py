"""Artifacts of registries, on their way into a host's store.

What is here was examined before: signature, facts and Pin are right. The layers are unpacked beside
the store's entries, compared with their manifest, and become an entry when all of it is right.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from provision.documents import load_json
from provision.errors import NotFoundError
from provision.host import read_facts
from provision.host.kernel import machine
from provision.image.extract import disk_error
from provision.image.scratch import scratch
from provision.image.unpack import Unpacker
from provision.install.layout import Layout
from provision.install.locks import changing
from provision.install.origin import mark_unsigned, newest_serial, note_serial, unsigned_reference
from provision.install.store import adopt, drafted
from provision.manifest import Manifest
from provision.modules.verify import MANIFEST, Report, verify
from provision.pin import DistroPin
from provision.pipeline.artifacts import Stored, finish_draft, verify_path
from provision.pipeline.following import follow
from provision.pipeline.registry import Connect, Consent, Sought, connect, seek
from provision.pipeline.resolution import Wanted, own_kernel
from provision.pipeline.resolving import distro_of_kernel
from provision.pipeline.settings import Settings
from provision.pipeline.signing import is_signed_here
from provision.progress import Note, Progress, silent
from provision.recipe import Recipe
from provision.registry.images import Trusted, unpack_layers
from provision.registry.signature import UntrustedError
from provision.releases import known_branches, today
from provision.upstream import CHANNELS

# What all members of an artifact image's layers lie in.
_FOLDER = "opt"


class DowngradeError(UntrustedError):
    """A signed artifact that is older than one which this host had."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """An artifact of a registry that is in the store.

    Attributes:
        stored: The entry.
        seconds: How long it took; 0, if it was there.
    """

    stored: Stored
    seconds: float


def look_for(
    settings: Settings,
    wanted: Wanted,
    consent: Consent,
    *,
    connected: Connect = connect,
    progress: Progress = silent,
) -> Trusted | None:
    """Return the image of a registry that a host may install in place of building it.

    Args:
        settings: The host.
        wanted: What is asked for.
        consent: What the caller allows.
        connected: Makes clients of registries.
        progress: Told which registry has nothing, and why.

    Returns:
        The image; None: it is to be built.

    Raises:
        NotFoundError: No registry has it, and provision.toml says that nothing is built here; or
            the driver or kernel is unknown.
        UntrustedError: What a registry has is not signed as it has to be.
        ProvisionError: provision.toml does not say whom to trust, or a key is none.
    """
    registry = settings.config.registry
    places = (*registry.folders, *registry.addresses)
    found = None
    if asks_registries(settings):
        sought = _sought(settings, wanted, progress)
        found = seek(
            settings,
            sought,
            consent,
            accept=lambda trusted: check_age(settings, trusted, consent),
            connected=connected,
            progress=progress,
        )
    if found is None and settings.config.policy.build == "never":
        raise NotFoundError(
            f"No registry has {wanted.driver} for {wanted.kernel or 'the kernel that runs'}"
            f' ({", ".join(places) or "none is set"}), and [policy] build = "never".',
            resolution="Build and push it elsewhere: provision build --push … --sign; or allow it"
            ' here: [policy] build = "fallback" in /etc/provision/provision.toml.',
        )
    return found


def asks_registries(settings: Settings) -> bool:
    """Return whether an artifact may come from a registry."""
    registry = settings.config.registry
    is_set = bool(registry.addresses or registry.folders)
    return is_set and settings.config.policy.build != "always"


def _sought(settings: Settings, wanted: Wanted, progress: Progress) -> Sought:
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
    return Sought(
        driver=wanted.driver,
        version=None if wanted.version == "latest" else wanted.version,
        flavour=wanted.flavour or recipe.default_flavour,
        kernel=kernel,
        distro=name,
        architecture=machine(settings.root),
        prefer=wanted.prefer,
        branches=_branches(settings, recipe, wanted, distro, progress),
    )


def _branches(
    settings: Settings,
    recipe: Recipe,
    wanted: Wanted,
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
    chosen, driver = wanted.prefer, wanted.driver
    return follow(
        settings, driver, wanted.version, distro, chosen=chosen, progress=progress
    ).branches


def store_pulled(
    settings: Settings,
    trusted: Trusted,
    consent: Consent,
    *,
    must_replace: bool = False,
    progress: Progress = silent,
) -> Pulled:
    """Put the artifact of an image into the store of a host, beside the one that is in use.

    Until a link names it, garbage collection may take it again.

    Args:
        settings: The host.
        trusted: The image.
        consent: What the caller allows.
        must_replace: Whether an entry that is there is replaced although it would serve.
        progress: Told what is done.

    Raises:
        DowngradeError: It is older than one that was taken before.
        WrongContentError: A layer is not what its digest says.
        UnreachableError: The registry kept failing.
        ProvisionError: The artifact is damaged, or the disk is full. Nothing is left of it.
    """
    begun = time.monotonic()
    pin = trusted.image.pin
    layout = Layout(settings.root, pin.driver.name)
    entry = layout.entry(pin.short_digest)
    check_age(settings, trusted, consent)
    is_there = entry.is_dir()
    if is_there and not must_replace:
        manifest = _entry_that_serves(settings, layout, entry, trusted, progress)
        if manifest is not None:
            with changing(layout, progress):
                # A second pull may have been faster, with a newer one.
                check_age(settings, trusted, consent)
                _write_age(layout, trusted)
            return Pulled(Stored(manifest, entry, added=False), 0.0)

    def fill(draft: Path) -> None:
        _unpack(trusted, draft, progress)
        name = str(trusted.image.reference)
        signs = trusted.verified is not None
        if not signs:
            mark_unsigned(draft, name)
            if settings.config.signing.key is not None:
                progress(Note(f"This host's key does not sign the modules of {name}: unsigned"))
        finish_draft(settings, draft, pin.digest, name, layout, signs=signs, progress=progress)

    with drafted(layout, pin.short_digest, fill) as draft, changing(layout, progress):
        # A second pull may have been faster, with a newer one.
        check_age(settings, trusted, consent)
        added = adopt(layout, entry.name, draft, replace=is_there)
        _write_age(layout, trusted)
    manifest = load_json(entry / MANIFEST, Manifest)
    return Pulled(Stored(manifest, entry, added), time.monotonic() - begun)


def verify_pulled(settings: Settings, trusted: Trusted, *, progress: Progress = silent) -> Report:
    """Download an image's artifact and compare it with its manifest; nothing is kept.

    Raises:
        As ``store_pulled``.
    """
    with scratch(settings.state, "verify", progress=progress) as folder:
        draft = folder / "artifact"
        _unpack(trusted, draft, progress)
        return verify(draft, pin_label=trusted.image.pin.digest)


def check_age(settings: Settings, trusted: Trusted, consent: Consent) -> None:
    """See that a signed artifact is no older than the newest that was taken for the same kernel.

    Raises:
        DowngradeError: It is older, and that was not allowed.
        ProvisionError: What was noted can't be read.
    """
    facts = trusted.facts
    if facts is None or consent.allow_downgrade:
        return
    newest = newest_serial(Layout(settings.root, facts.driver), _target(trusted))
    if facts.serial < newest:
        raise DowngradeError(
            f"'{trusted.image.reference}' is refused: it was signed before the artifact of"
            f" {facts.driver} for {facts.kernel} that this host has had"
            f" ({_day(facts.serial)}, and {_day(newest)}).",
            resolution="If you did not go back on purpose, the registry serves old images: look"
            " into it. To go back on purpose: the same command with --allow-downgrade.",
        )


def _unpack(trusted: Trusted, draft: Path, progress: Progress) -> None:
    """Unpack an image's layers into a new folder; it is gone again if that fails."""
    draft.mkdir()
    try:
        unpacker = Unpacker(draft, strip=_FOLDER, progress=progress)
        unpack_layers(trusted.image, draft.parent, unpacker.unpack, progress=progress)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError):
            raise disk_error(error, draft) from error
        raise


def _entry_that_serves(
    settings: Settings, layout: Layout, entry: Path, trusted: Trusted, progress: Progress
) -> Manifest | None:
    """Return the manifest of an entry that is what would be pulled; None: there is no such one."""
    with changing(layout, progress):
        report = verify_path(entry, progress=progress)
    if report.manifest is None or report.findings:
        progress(Note(f"{entry} is damaged; pulling it again"))
        return None
    if trusted.verified is not None and unsigned_reference(entry) is not None:
        progress(Note(f"{entry} came from an unsigned image; pulling it again"))
        return None
    if trusted.verified is not None and not is_signed_here(settings, entry, report.manifest):
        progress(Note(f"{entry} is not signed with this host's key; pulling it again"))
        return None
    return report.manifest


def _write_age(layout: Layout, trusted: Trusted) -> None:
    if trusted.facts is not None:
        note_serial(layout, _target(trusted), trusted.facts.serial)


def _target(trusted: Trusted) -> str:
    pin = trusted.image.pin
    distro = f"{pin.distro.id}:{pin.distro.version}"
    return f"{distro} {pin.kernel.release} {pin.kernel.architecture}"


def _day(serial: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(serial))
    except (OverflowError, ValueError, OSError):
        return str(serial)
