"""Observes a host: its kernels, their artifacts in the store, and the loaded modules."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from provision.agent.desired import read_inputs, setting_fingerprint
from provision.agent.model import (
    Desired,
    DesiredDriver,
    KernelArtifact,
    Loaded,
    Observed,
    ObservedDriver,
)
from provision.files import glob_in_root, in_root
from provision.host.boot_entries import Ask
from provision.host.devices.record import recorded_problems
from provision.host.folders import STORE
from provision.host.initramfs import recorded_problem
from provision.host.kernels import find_kernels, is_running_host
from provision.kmod.load import devices_of
from provision.kmod.loaded import LoadedModule, is_same_build, loaded_modules, users_of
from provision.kmod.verify import files_fingerprint, first_damage, stored_manifest
from provision.manifest import Manifest
from provision.store.entries import linked_kernels, unsigned_reference
from provision.store.layout import Layout
from provision.store.state import (
    DriverState,
    Failure,
    NewerStateError,
    copies_of,
    load_state,
)

# How artifacts are checked: by checksums if the sizes and times of their files have changed; or
# those of their modules in any case.
Look = Literal["files", "modules"]


def observe(
    root: Path,
    desired: Desired,
    *,
    look: Look = "files",
    ask: Ask | None = None,
    coming: Sequence[str] = (),
) -> Observed:
    """Return the observed state of a host, as far as its desired state needs it.

    Args:
        look: How to check artifacts.
        ask: Runs the programs that know the next kernel; None: those of the host.
    """
    kernels = find_kernels(root, ask=ask, coming=coming)
    is_live = is_running_host(root)
    inputs = read_inputs(root, desired)
    loaded = loaded_modules(root) if is_live else None
    drivers = {}
    for driver in desired.drivers:
        layout = Layout(root, driver.name)
        state, links = load_state(layout), linked_kernels(layout)
        artifacts = {
            release: _artifact(
                layout,
                driver,
                state,
                release,
                links.get(release),
                inputs.of(driver, release),
                look,
            )
            for release in kernels.relevant
        }
        mine = artifacts[kernels.running].digest if kernels.running else None
        drivers[driver.name] = _driver(layout, artifacts, mine, loaded)
    for name in sorted(_stored(root) - drivers.keys()):
        layout = Layout(root, name)
        drivers[name] = _driver(layout, {}, _current(layout), loaded)
    return Observed(kernels, is_live, drivers)


def _driver(
    layout: Layout,
    artifacts: Mapping[str, KernelArtifact],
    mine: str | None,
    loaded: Mapping[str, LoadedModule] | None,
) -> ObservedDriver:
    """Return the observed state of a driver.

    Args:
        mine: Short digest of the running kernel's artifact.
        loaded: The loaded modules; None: no kernel runs there.
    """
    current = _current(layout)
    state = load_state(layout)
    # The state of a newer provision can't be updated: there, the links decide.
    is_complete = current is not None and (state.activated == current or state.is_newer)
    is_active = (
        is_complete
        and in_root(layout.root, layout.vendor_config.relative_to(layout.root)).is_file()
    )
    notes = _notes(layout, state)
    driver = ObservedDriver(
        layout.driver, artifacts, current, is_active, serves=is_active, notes=notes
    )
    if loaded is None:
        return driver
    used = {digest: stored_manifest(layout.entry(digest)) for digest in (mine, current) if digest}
    manifests = {digest: manifest for digest, manifest in used.items() if manifest is not None}
    how = {
        digest: _how_loaded(layout.entry(digest), manifest, loaded)
        for digest, manifest in manifests.items()
    }
    return replace(
        driver,
        loaded=how.get(mine or "", "no"),
        serves=is_active and how.get(current or "") == "yes",
        users=_users(manifests.values(), loaded, layout.root),
    )


def _notes(layout: Layout, state: DriverState) -> tuple[str, ...]:
    """Return notes for people about the state of a driver."""
    copies = (
        f"'{path}' could not be read and was set aside; look at it, then remove it"
        for path in copies_of(layout.state)
    )
    remembered = (f"'{layout.state}': {problem}" for problem in state.problems)
    initramfs = recorded_problem(layout.record)
    return (
        *remembered,
        *copies,
        *([initramfs] if initramfs else ()),
        *recorded_problems(layout.root, layout.driver),
    )


def _current(layout: Layout) -> str | None:
    try:
        return layout.current.readlink().name
    except OSError:
        return None


def _stored(root: Path) -> set[str]:
    """Return the drivers that have an artifact for a kernel: those that an apply has installed."""
    return {link.parent.parent.name for link in glob_in_root(root, f"{STORE}/*/kernels/*")}


def _artifact(
    layout: Layout,
    driver: DesiredDriver,
    state: DriverState,
    release: str,
    digest: str | None,
    inputs: str,
    look: Look,
) -> KernelArtifact:
    """Return the artifact for a kernel, whose link names the digest."""
    known = state.of(release)
    if state.is_newer:
        # What a newer provision wrote must not change.
        error = NewerStateError(layout.state, state.schema_version)
        sealed = Failure(
            reason="state",
            message=error.message,
            resolution=error.resolution,
            inputs=inputs,
            time=int(time.time()),
            final=True,
        )
        known = known.model_copy(update={"failure": sealed})
    failure = known.failure
    artifact = KernelArtifact(
        inputs=inputs,
        known=known,
        holds_off=failure is not None
        and failure.inputs == inputs
        and failure.holds(now=time.time()),
        is_wanted=known.wanted == setting_fingerprint(driver),
    )
    if digest is None:
        return artifact
    entry = layout.entry(digest)
    manifest = stored_manifest(entry)
    artifact = replace(artifact, digest=digest, unsigned=unsigned_reference(entry))
    if manifest is None:
        return replace(artifact, damage=f"it is missing in the store: {entry}")
    fingerprint = files_fingerprint(entry, manifest)
    damage = None
    if known.damaged == digest:
        damage = "it was found damaged"
    elif look == "modules" or fingerprint != known.fingerprint:
        damage = first_damage(entry, modules_only=fingerprint == known.fingerprint)
    return replace(
        artifact,
        version=manifest.pin.driver.version,
        damage=damage,
        is_whole=damage is None,
        fingerprint=fingerprint if damage is None else None,
    )


def _how_loaded(entry: Path, manifest: Manifest, loaded: Mapping[str, LoadedModule]) -> Loaded:
    there = [module for module in manifest.modules if module.name in loaded]
    if not there:
        return "no"
    if not all(is_same_build(entry / module.path, loaded[module.name]) for module in there):
        return "other"
    names = {module.name for module in there}
    is_all = all(m.name in names or m.name in manifest.host.optional for m in manifest.modules)
    return "yes" if is_all else "partly"


def _users(
    manifests: Collection[Manifest], loaded: Mapping[str, LoadedModule], root: Path
) -> tuple[str, ...]:
    """Return the users of the modules of a driver's artifacts."""
    names = dict.fromkeys(module.name for manifest in manifests for module in manifest.modules)
    devices = dict.fromkeys(device for manifest in manifests for device in devices_of(manifest))
    return tuple(str(user) for user in users_of(names, loaded, devices=devices, root=root))
