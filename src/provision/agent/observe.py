"""Observes a host: its kernels, their artifacts in the store, and the loaded modules."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from provision.agent.desired import Inputs, read_inputs, setting_fingerprint
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
    KernelState,
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
        root: Root of the host.
        desired: Its desired state.
        look: How to check artifacts.
        ask: Runs the programs that know the next kernel; None: those of the host.
        coming: Kernels that may boot next, in addition to those that are found.
    """
    kernels = find_kernels(root, ask=ask, coming=coming)
    is_live = is_running_host(root)
    inputs = read_inputs(root, desired)
    loaded = loaded_modules(root) if is_live else None
    drivers = {}
    for driver in desired.drivers:
        layout = Layout(root, driver.name)
        artifacts = _artifacts(layout, driver, inputs, kernels.relevant, look)
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
        layout: Its paths.
        artifacts: Its artifact for each kernel.
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


def _artifacts(
    layout: Layout, driver: DesiredDriver, inputs: Inputs, releases: Iterable[str], look: Look
) -> dict[str, KernelArtifact]:
    """Return the artifact for each kernel."""
    state = load_state(layout)
    links = linked_kernels(layout)
    artifacts: dict[str, KernelArtifact] = {}
    for release in releases:
        digest = links.get(release)
        manifest = stored_manifest(layout.entry(digest)) if digest else None
        known = state.of(release)
        damage = _damage(layout, digest, manifest, known, look) if digest else None
        artifact = replace(
            _artifact(inputs.of(driver, release), known, digest, manifest),
            is_wanted=known.wanted == setting_fingerprint(driver),
        )
        if state.is_newer:
            artifact = _sealed(artifact, NewerStateError(layout.state, state.schema_version))
        if digest and manifest and damage is None:
            artifact = replace(
                artifact,
                is_whole=True,
                fingerprint=files_fingerprint(layout.entry(digest), manifest),
            )
        if digest:
            artifact = replace(artifact, unsigned=unsigned_reference(layout.entry(digest)))
        artifacts[release] = replace(artifact, damage=damage)
    return artifacts


def _artifact(
    inputs: str, known: KernelState, digest: str | None, manifest: Manifest | None
) -> KernelArtifact:
    failure = known.failure
    return KernelArtifact(
        inputs=inputs,
        known=known,
        digest=digest,
        version=manifest.pin.driver.version if manifest else None,
        holds_off=failure is not None
        and failure.inputs == inputs
        and failure.holds(now=time.time()),
    )


def _sealed(artifact: KernelArtifact, error: NewerStateError) -> KernelArtifact:
    """Return the artifact of a driver whose state a newer provision wrote: it must not change."""
    now = int(time.time())
    failure = Failure(
        reason="state",
        message=error.message,
        resolution=error.resolution,
        inputs=artifact.inputs,
        time=now,
        final=True,
    )
    known = artifact.known.model_copy(update={"failure": failure})
    return replace(artifact, known=known, holds_off=True)


def _damage(
    layout: Layout, digest: str, manifest: Manifest | None, known: KernelState, look: Look
) -> str | None:
    """Return the first damage of an artifact; None if it is whole."""
    entry = layout.entry(digest)
    if manifest is None:
        return f"it is missing in the store: {entry}"
    if known.damaged == digest:
        return "it was found damaged"
    has_changed = files_fingerprint(entry, manifest) != known.fingerprint
    if look == "files" and not has_changed:
        return None
    return first_damage(entry, modules_only=not has_changed)


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
