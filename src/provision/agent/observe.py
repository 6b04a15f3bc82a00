"""Observes a host: its kernels, their artifacts in the store, and the loaded modules."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from provision.agent.desired import read_inputs, setting_fingerprint
from provision.agent.hold import read_hold
from provision.agent.model import (
    Desired,
    KernelArtifact,
    Loaded,
    Observed,
    ObservedDriver,
    Unnamed,
)
from provision.catalogue.suitability import Card, deciding, undriven, unserved
from provision.errors import ProvisionError
from provision.files import glob_in_root
from provision.host import STORE
from provision.host.boot import Ask
from provision.host.devices import recorded_problems
from provision.host.facts import find_qemu
from provision.host.kernels import boot_id, find_kernels, is_running_host, machine
from provision.kmod.load import devices_of, why_unchecked
from provision.kmod.modules import LoadedModule, is_same_build, loaded_modules, users_of
from provision.kmod.verify import files_fingerprint, first_damage, stored_manifest
from provision.manifest import Manifest
from provision.store.activate import HostFiles, host_files, initramfs_problem
from provision.store.entries import distrust, linked_kernels, unsigned_image
from provision.store.foreign import other_installation
from provision.store.layout import Layout
from provision.store.state import (
    CHECK,
    DOES_NOT_LOAD,
    DriverState,
    Failure,
    KernelState,
    NewerStateError,
    copies_of,
    load_state,
)

_Manifests = Callable[[str | None], Manifest | None]


def observe(
    root: Path,
    desired: Desired,
    *,
    compare_modules: bool = False,
    ask: Ask | None = None,
    extra_kernels: Sequence[str] = (),
) -> Observed:
    """Return the observed state of a host, as far as its desired state needs it.

    Args:
        compare_modules: Compare the checksums of modules in any case; else those of all files, if
            sizes or times have changed.
        ask: Runs the programs that know the next kernel; None: those of the host.
    """
    kernels = find_kernels(root, ask=ask, extra_kernels=extra_kernels)
    is_live = is_running_host(root)
    inputs = read_inputs(root, desired)
    qemu = find_qemu(machine(root)) or ""
    loaded = loaded_modules(root) if is_live else None
    drivers = {}
    for name, setting in desired.drivers.items():
        layout, manifests = Layout(root, name), _manifests(root, name)
        state, links = load_state(layout), linked_kernels(layout)
        artifacts = {}
        for release in kernels.relevant:
            current_inputs = inputs.of(name, release)
            can_try = is_live and qemu != "" and release in kernels.installed
            is_tried = (
                can_try if desired.config.policy.trial is None else desired.config.policy.trial
            )
            remembered = _known(layout, state, release, current_inputs)
            has_changed = remembered.inputs not in {None, current_inputs}
            has_come = has_changed and remembered.inputs == inputs.before_it_came(name, release)
            if has_come:
                remembered = remembered.model_copy(update={"inputs": current_inputs})
            artifact = _artifact(
                layout,
                manifests,
                remembered,
                links.get(release),
                desired,
                current_inputs,
                # Loading shows more than a trial would.
                tried_by=qemu if is_tried and release != kernels.running else None,
                compare_modules=compare_modules,
            )
            artifacts[release] = artifact._replace(has_come=has_come)
        recipe, cards = inputs.recipes[name], inputs.cards.get(name, ())
        # A driver that serves no card at all does not work.
        here = deciding(cards, setting.flavour, setting.version) if is_live else ()
        driver = _driver(layout, manifests, state, artifacts, kernels.running, loaded, here)
        unknown = recipe if isinstance(recipe, ProvisionError) else None
        known = None if isinstance(recipe, ProvisionError) else recipe
        lacks_card = known is not None and bool(known.hardware.pci) and not cards
        drivers[name] = driver._replace(
            other=other_installation(root, name, known, manifests(driver.current)),
            unknown=unknown,
            lacks_card=lacks_card,
            # Without its card, no driver passes a check.
            is_unchecked=driver.is_unchecked and not lacks_card,
        )
    unnamed: list[Unnamed] = []
    for name in sorted(applied_drivers(root) - drivers.keys()):
        layout, manifests = Layout(root, name), _manifests(root, name)
        drivers[name] = _driver(layout, manifests, load_state(layout), {}, None, loaded)
        unnamed += _unnamed(layout, manifests)
    return Observed(kernels, is_live, drivers, read_hold(root, kernels.installed), tuple(unnamed))


def _manifests(root: Path, driver: str) -> _Manifests:
    """Return what reads the manifests of a driver's artifacts, each once."""
    layout = Layout(root, driver)
    return cache(lambda digest: stored_manifest(layout.entry(digest)) if digest else None)


def _unnamed(layout: Layout, manifests: _Manifests) -> Iterator[Unnamed]:
    for release, digest in linked_kernels(layout).items():
        manifest = manifests(digest)
        version = manifest.pin.driver.version if manifest else None
        yield Unnamed(layout.driver, release, digest, version)


def applied_drivers(root: Path) -> set[str]:
    """Return the drivers that have an artifact for a kernel: those that an apply has installed."""
    return {link.parent.parent.name for link in glob_in_root(root, f"{STORE}/*/kernels/*")}


def _known(layout: Layout, state: DriverState, release: str, inputs: str) -> KernelState:
    """Return what is remembered of a kernel; what a newer provision wrote must not change."""
    if not state.is_newer:
        return state.of(release)
    error = NewerStateError(layout.state, state.schema_version)
    failure = Failure(
        reason="state",
        message=error.message,
        resolution=error.resolution,
        inputs=inputs,
        time=int(time.time()),
        final=True,
    )
    return state.of(release).model_copy(update={"failure": failure, "inputs": None})


def _artifact(
    layout: Layout,
    manifests: _Manifests,
    known: KernelState,
    digest: str | None,
    desired: Desired,
    inputs: str,
    *,
    tried_by: str | None,
    compare_modules: bool,
) -> KernelArtifact:
    version = damage = fingerprint = unsigned = why = None
    if digest is not None:
        entry = layout.entry(digest)
        unsigned = unsigned_image(entry)
        why = distrust(desired.config, layout.root, layout.driver, entry)
        manifest = manifests(digest)
        if manifest is None:
            damage = f"it is missing in the store: {entry}"
        else:
            version = manifest.pin.driver.version
            fingerprint = files_fingerprint(entry, manifest)
            is_unchanged = fingerprint == known.fingerprint
            if known.damaged == digest:
                damage = "it was found damaged"
            elif compare_modules or not is_unchanged:
                damage = first_damage(entry, modules_only=is_unchanged)
    failure, untried, now = known.failure, known.untried, time.time()
    return KernelArtifact(
        inputs=inputs,
        known=known,
        digest=digest,
        is_whole=digest is not None and damage is None,
        damage=damage,
        fingerprint=fingerprint if damage is None else None,
        version=version,
        unsigned=unsigned,
        distrust=why,
        in_backoff=failure is not None
        and failure.inputs == inputs
        and failure.holds(now=now)
        # What failed in a trial is used without one.
        and (tried_by is not None or failure.reason != DOES_NOT_LOAD),
        is_wanted=known.wanted
        == setting_fingerprint(layout.driver, desired.drivers[layout.driver]),
        tried_by=tried_by,
        trial_waits=untried is not None and untried.inputs == tried_by and untried.holds(now=now),
    )


def _driver(
    layout: Layout,
    manifests: _Manifests,
    state: DriverState,
    artifacts: Mapping[str, KernelArtifact],
    running: str | None,
    loaded: Mapping[str, LoadedModule] | None,
    cards: Sequence[Card] = (),
) -> ObservedDriver:
    """Return the observed state of a driver; ``loaded`` is None where no kernel runs."""
    try:
        current = layout.current.readlink().name
    except OSError:
        current = None
    # The state of a newer provision can't be updated: there, the links decide.
    is_switched = current is not None and (state.activated == current or state.is_newer)
    active = manifests(current)
    files = host_files(layout, active) if active else HostFiles()
    is_active = is_switched and not files.lost
    # What the running kernel uses; of a driver that provision.toml does not name, what is active.
    artifact = artifacts.get(running or "")
    used = (artifact.digest if artifact else None) if artifacts else current
    # Of the two whose modules may be loaded.
    read = {}
    if loaded is not None:
        read = {one: manifest for one in (used, current) if one and (manifest := manifests(one))}
    how = {
        digest: _how_loaded(layout.entry(digest), manifest, loaded or {})
        for digest, manifest in read.items()
    }
    initramfs = initramfs_problem(layout)
    is_loaded = how.get(current or "") == "yes"
    lacking: tuple[Card, ...] = ()
    if active is not None and is_loaded:
        lacking = unserved(cards, (module.name for module in active.modules))
    unchecked = why_unchecked(active) if active else None
    known = state.of(running or "")
    has_failed = known.load_failure is not None and known.load_failure.reason == CHECK
    return ObservedDriver(
        layout.driver,
        artifacts,
        current,
        is_active,
        lost=tuple(map(str, files.lost)),
        loaded=how.get(used or "", "no"),
        serves=is_active and not lacking and not has_failed and (loaded is None or is_loaded),
        users=_users(read.values(), loaded or {}, layout.root),
        notes=(
            *(f"'{layout.state}': {problem}" for problem in state.problems),
            *(
                f"'{path}' could not be read and was set aside; look at it, then remove it"
                for path in copies_of(layout.state)
            ),
            *(f"'{path}' was changed by someone else, and stays" for path in files.foreign),
            *filter(None, (unchecked, initramfs)),
            *recorded_problems(layout.root, layout.driver),
        ),
        unserved=lacking,
        is_unchecked=active is not None
        and active.check is not None
        and unchecked is None
        and is_loaded
        and known.checked.get(current or "") != boot_id(layout.root),
        undriven=undriven(lacking, active.cards) if active else (),
    )


def _how_loaded(entry: Path, manifest: Manifest, loaded: Mapping[str, LoadedModule]) -> Loaded:
    present = [module for module in manifest.modules if module.name in loaded]
    if not present:
        return "no"
    if not all(is_same_build(entry / module.path, loaded[module.name]) for module in present):
        return "other"
    names = {module.name for module in present}
    is_all = all(m.name in names or m.name in manifest.host.optional for m in manifest.modules)
    return "yes" if is_all else "partly"


def _users(
    manifests: Collection[Manifest], loaded: Mapping[str, LoadedModule], root: Path
) -> tuple[str, ...]:
    names = dict.fromkeys(module.name for manifest in manifests for module in manifest.modules)
    devices = dict.fromkeys(device for manifest in manifests for device in devices_of(manifest))
    return tuple(str(user) for user in users_of(names, loaded, devices=devices, root=root))
