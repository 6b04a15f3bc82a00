"""``install`` and ``verify``: put an artifact to use, or compare it with its manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provision.build.image import build_image
from provision.build.request import BuildSettings, DriverRequest, RequestOptions
from provision.build.resolve import resolve_pin
from provision.build.workspace import Settings
from provision.cli import options
from provision.cli.job import build_options, examined, job, target_options, trust_options
from provision.cli.options import argument, command, option
from provision.cli.output import emit, fields, size_of, table, text
from provision.engine.docker_api import names_registry
from provision.errors import ProvisionError, UsageError
from provision.kmod.module_signatures import is_signed_for_host
from provision.kmod.trial import TrialFailedError, try_artifact
from provision.kmod.verify import Report, verify_artifact
from provision.manifest import load_manifest
from provision.pin import Pin
from provision.progress import Note, report
from provision.registry.artifact_images import ArtifactImage
from provision.registry.find import SearchOptions, TrustOverride
from provision.registry.image_archives import is_archive_name
from provision.store.admission import distrust
from provision.store.artifact_lookup import check_age, look_for, may_be_in_store, stored_for
from provision.store.entries import kernel_entry
from provision.store.install import (
    activate_entry,
    install_image,
    require_card,
    unpacked_image,
    verify_entry,
)
from provision.store.layout import Layout
from provision.store.managed_files import Change
from provision.store.obtain import store_pulled, unpacked_pull


@dataclass(frozen=True, slots=True)
class _Way:
    """The options of an installation."""

    again: bool
    replace: bool
    dry_run: bool
    any_card: bool = False


_way = options.group(
    _Way,
    again=options.again,
    replace=options.replace_files,
    dry_run=options.dry_run,
)
# The changes that were made, or would be, with their artifact.
_Done = tuple[Pin, Path, tuple[Change, ...]]


@command("install")
def install_command(
    *,
    what: str = argument("IMAGE|FILE.tar|DRIVER"),
    target: RequestOptions = target_options,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root_or_new,
    how: BuildSettings = build_options,
    consent: TrustOverride = trust_options,
    way: _Way = _way,
) -> None:
    """Put an artifact into the host's store and switch to it.

    With DRIVER, the command installs the image that the registry of provision.toml has for this
    host. If there is none, it builds the driver as 'provision build' does. An artifact that is
    installed already stays.

    An IMAGE whose name begins with the host of a registry is pulled from there and must be signed.
    Every other name is an image of the engine, which this user must have built here. FILE.tar, or a
    path that begins with / or ./, is the archive of an image and must be signed too.
    """
    way = replace(way, any_card=target.force)
    with job(root, catalogues, network=target.network) as settings:
        if is_archive_name(what) or names_registry(what):
            pin, entry, changes = _pulled(settings, examined(settings, what, consent), consent, way)
        elif ":" in what or "/" in what:
            pin, entry, changes = _installed(settings, what, consent, way)
        else:
            pin, entry, changes = _driver(settings, target.of(what), how, consent, way)
    emit(
        {
            "driver": pin.driver.name,
            "version": pin.driver.version,
            "kernel": pin.kernel.release,
            "digest": pin.digest,
            "root": root,
            "entry": entry,
            "changed": bool(changes) and not way.dry_run,
            "changes": [{"kind": c.kind, "path": c.path, "what": str(c)} for c in changes],
            "dry_run": way.dry_run,
        },
        _changes,
    )


def _changes(done: Mapping[str, Any]) -> Iterator[str]:
    what = "{driver} {version} for {kernel}".format_map(done)
    if not done["changes"]:
        yield f"{what} is installed already; nothing changed."
    elif done["dry_run"]:
        yield from (f"would {change['what']}" for change in done["changes"])
    else:
        yield f"{what} is installed in {done['entry']}."


def _driver(
    settings: Settings,
    request: DriverRequest,
    how: BuildSettings,
    consent: TrustOverride,
    way: _Way,
) -> _Done:
    # These options ask for a certain build, which no registry has.
    is_build = how.rebuild or request.base or request.refresh or request.force
    if not is_build:
        try:
            trusted = look_for(settings, request, SearchOptions(consent))
        except ProvisionError as error:
            in_store = _in_store(settings, request, way, error)
            if in_store is None:
                raise
            return in_store
        if trusted is not None:
            return _pulled(settings, trusted, consent, way)
    resolved = resolve_pin(settings, request)
    layout = Layout(settings.root, resolved.pin.driver.name)
    entry = layout.entry(resolved.pin.short_digest)
    if entry.is_dir() and not (is_build or way.again):
        in_use = _stored(settings, layout, entry, way)
        if in_use is not None:
            return in_use
    if way.dry_run:
        return _installed(settings, resolved.pin.image, consent, way)
    built = build_image(settings, resolved, how)
    return _installed(settings, built.image_id, consent, way)


def _in_store(
    settings: Settings, request: DriverRequest, way: _Way, error: ProvisionError
) -> _Done | None:
    """Activate an entry of the store where no registry answers and nothing is built here."""
    if way.again or not may_be_in_store(settings, error):
        return None
    entry = stored_for(settings, request)
    if entry is None:
        return None
    report(Note(f"{error.message} The store has the artifact: {entry}"))
    return _stored(settings, Layout(settings.root, request.driver), entry, way)


def _stored(settings: Settings, layout: Layout, entry: Path, way: _Way) -> _Done | None:
    """Activate an entry of the store, without an engine; None: it has to be made again."""
    verify_entry(layout, entry)
    manifest = load_manifest(entry)
    signing, root = settings.config.signing, settings.root
    if why := distrust(settings.config, root, layout.driver, entry):
        report(Note(f"{entry} is not trusted now: {why}; making it again"))
        return None
    if not is_signed_for_host(entry, manifest, signing, root=root):
        return None
    if not way.any_card:
        require_card(settings, manifest)
    done = activate_entry(layout, entry, replace=way.replace, dry_run=way.dry_run)
    return manifest.pin, entry, done.changes


def _pulled(settings: Settings, trusted: ArtifactImage, consent: TrustOverride, way: _Way) -> _Done:
    """Install an image of a registry or an archive."""
    pin = trusted.pin
    layout = Layout(settings.root, pin.driver.name)
    if way.dry_run:
        check_age(settings, trusted, consent)
        entry = layout.entry(pin.short_digest)
        if not entry.is_dir():
            return pin, entry, (Change("unpack", entry),)
        planned = activate_entry(layout, entry, replace=way.replace, dry_run=True)
        return pin, entry, planned.changes
    stored = store_pulled(settings, trusted, consent, replace=way.again)
    if not way.any_card:
        require_card(settings, load_manifest(stored.entry))
    done = activate_entry(layout, stored.entry, replace=way.replace)
    unpacked = (Change("unpack", stored.entry),) if stored.origin == "registry" else ()
    others = tuple(change for change in done.changes if change.kind != "unpack")
    return pin, stored.entry, (*unpacked, *others)


def _installed(settings: Settings, image: str, consent: TrustOverride, way: _Way) -> _Done:
    """Install an image of the engine."""
    done = install_image(
        settings,
        image,
        consent,
        again=way.again,
        replace=way.replace,
        dry_run=way.dry_run,
        any_card=way.any_card,
    )
    return done.manifest.pin, done.entry, done.changes


@command("verify")
def verify_command(
    *,
    what: str = argument("IMAGE|FILE.tar|STORE-ENTRY|DRIVER"),
    boot: bool = option(
        "--boot", "Also boot the kernel in a virtual machine, and load the modules there."
    ),
    kernel: str | None = option(
        "--kernel RELEASE",
        "With --boot, the kernel; of DRIVER, its artifact for that kernel.  [the artifact's]",
    ),
    insecure: bool = options.insecure,
    public_key: Path | None = options.public_key,
    network: str | None = options.network,
    root: Path = options.root,
) -> None:
    """Compare an artifact with its manifest: every module and file, and the kernel.

    The artifact is that of an image, of a folder in a store, or the active one of DRIVER.

    With --boot, QEMU boots the kernel without a disk and a network, and the artifact's own loader
    loads the modules there. This host's kernel is not touched. If the kernel is not installed here,
    its distro's packages are downloaded. Exit code 1: the kernel refuses a module, or crashes. 3:
    it could not be tried.
    """
    if kernel is not None and not boot:
        raise UsageError(
            "--kernel names the kernel to boot, and nothing is booted.",
            resolution=f"Add --boot: provision verify --boot --kernel {kernel} {what}",
        )
    with (
        job(root, network=network) as settings,
        _artifact(settings, what, TrustOverride(public_key, insecure), kernel) as (folder, report),
    ):
        manifest = report.require_whole(f"'{what}'")
        trial = try_artifact(settings, folder, manifest, kernel=kernel) if boot else None
    if trial is not None and not trial.is_passed:
        raise TrialFailedError(f"'{what}'", trial)
    pin = manifest.pin
    emit(
        {
            "target": what,
            "digest": pin.digest,
            "image": pin.image,
            "driver": pin.driver,
            "kernel": pin.kernel.release,
            "modules": manifest.modules,
            "files": len(manifest.files),
            "compared": report.size,
            "findings": [],
            **({"boot": trial} if trial else {}),
        },
        table("modules", {"module": "name", "vermagic": "vermagic", "size>": size_of("size")}),
        fields(
            {
                "driver": lambda one: "{name} {version} ({flavour})".format_map(one["driver"]),
                "kernel": "kernel",
                "files": "files",
                "compared": size_of("compared"),
                "digest": "digest",
                "result": lambda _: "whole",
            }
        ),
        _booted,
    )


def _booted(verified: Mapping[str, Any]) -> Iterator[str]:
    """Yield what became of each module in a trial, if there was one."""
    trial = verified.get("boot")
    if trial is None:
        return
    yield f"{trial['kernel']}, booted with {trial['accelerator']}, {trial['seconds']} s:"
    for one in trial["outcomes"]:
        means = f": {one['reason']}" if one["reason"] else ""
        error = f" ({one['error']})" if one["error"] else ""
        yield f"  {one['module']}: {one['state'].replace('-', ' ')}{error}{means}"
    stayed = text(trial["stayed"]) if trial["stayed"] else "nothing"
    yield f"  after unloading: {stayed} stayed"
    yield from trial["untried"]


@contextmanager
def _artifact(
    settings: Settings, what: str, consent: TrustOverride, kernel: str | None
) -> Iterator[tuple[Path, Report]]:
    """Yield an artifact's folder, and how it compares with its manifest."""
    path = Path(what)
    is_path = path.is_dir() or what.startswith(("/", "./", "../"))
    if (is_archive_name(what) and path.is_file()) or (not is_path and names_registry(what)):
        with unpacked_pull(settings, examined(settings, what, consent)) as unpacked:
            yield unpacked
    elif not is_path and (":" in what or "/" in what):
        with unpacked_image(settings, what) as unpacked:
            yield unpacked
    else:
        layout = Layout(settings.root, what)
        entry = path if is_path else kernel_entry(layout, kernel)
        yield entry, verify_artifact(entry)
