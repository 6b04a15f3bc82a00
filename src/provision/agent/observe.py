"""Looks at a host: which kernels it has, what the store holds for them, what is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from provision.agent.contents import Contents, damages, read_contents, stamp
from provision.agent.inputs import Inputs, read_inputs
from provision.agent.model import Desired, DesiredDriver, Loaded, Observed, ObservedDriver, Slot
from provision.host.kernels import Ask, find_kernels
from provision.install.kernels import linked_kernels
from provision.install.layout import Layout
from provision.install.state import KernelState, load_state
from provision.modules.loaded import LoadedModule, is_same_build, loaded_modules, users_of

# How closely artifacts are looked at: by their files' sizes and times, unless those changed; or by
# the checksums of their modules.
Look = Literal["stamp", "modules"]


def observe(
    root: Path, desired: Desired, *, look: Look = "stamp", ask: Ask | None = None
) -> Observed:
    """Return what a host has of what it should have.

    Args:
        root: Root of the host.
        desired: What it should have.
        look: How closely to look at artifacts.
        ask: Runs programs that know which kernel boots next, in place of the host's own.
    """
    kernels = find_kernels(root, ask=ask)
    is_live = is_running_host(root)
    inputs = read_inputs(root, desired)
    loaded = loaded_modules(root) if is_live else {}
    drivers = {}
    for driver in desired.drivers:
        layout = Layout(root, driver.name)
        slots, contents = _slots(layout, driver, inputs, kernels.relevant, look)
        mine = contents.get(kernels.running or "")
        current = layout.current.readlink().name if layout.current.is_symlink() else None
        drivers[driver.name] = ObservedDriver(
            name=driver.name,
            slots=slots,
            current=current,
            is_active=layout.vendor_config.is_file(),
            loaded=_how_loaded(layout, slots[kernels.running or ""].digest, mine, loaded)
            if mine
            else "no",
            users=_users(layout, current, mine, loaded, root),
        )
    return Observed(kernels, is_live, drivers)


def is_running_host(root: Path) -> bool:
    """Return whether a root is that of the machine that runs this."""
    return root.resolve() == Path("/")


def _slots(
    layout: Layout,
    driver: DesiredDriver,
    inputs: Inputs,
    releases: Iterable[str],
    look: Look,
) -> tuple[dict[str, Slot], dict[str, Contents]]:
    """Return what there is for each kernel, and what is in those artifacts."""
    state = load_state(layout)
    links = linked_kernels(layout)
    slots: dict[str, Slot] = {}
    found: dict[str, Contents] = {}
    for release in releases:
        digest = links.get(release)
        contents = read_contents(layout.entry(digest)) if digest else None
        if contents is not None:
            found[release] = contents
        known = state.of(release)
        damage = _damage(layout, digest, contents, known, look) if digest else None
        slot = _slot(inputs.of(driver, release), known, digest, contents)
        if digest and contents and damage is None:
            slot = replace(slot, is_whole=True, stamp=stamp(layout.entry(digest), contents))
        slots[release] = replace(slot, damage=damage)
    return slots, found


def _slot(inputs: str, known: KernelState, digest: str | None, contents: Contents | None) -> Slot:
    return Slot(
        inputs=inputs,
        made_from=known.inputs,
        digest=digest,
        version=contents.version if contents else None,
        previous=known.previous,
        rejected=known.rejected,
        failure=known.failure,
        load_failure=known.load_failure,
        prepared=known.prepared,
        seconds=known.seconds,
    )


def _damage(
    layout: Layout, digest: str, contents: Contents | None, known: KernelState, look: Look
) -> str | None:
    """Return the first thing that is wrong with an artifact; None if it is whole."""
    entry = layout.entry(digest)
    if contents is None:
        return f"it is missing in the store: {entry}"
    if known.damaged == digest:
        return "it was found damaged"
    has_changed = stamp(entry, contents) != known.stamp
    if look == "stamp" and not has_changed:
        return None
    found = damages(entry, contents, all_checksums=has_changed and look == "stamp")
    return next(found, None)


def _how_loaded(
    layout: Layout,
    digest: str | None,
    contents: Contents,
    loaded: Mapping[str, LoadedModule],
) -> Loaded:
    there = [module for module in contents.modules if module.name in loaded]
    if not there or digest is None:
        return "no"
    entry = layout.entry(digest)
    if not all(is_same_build(entry / module.path, loaded[module.name]) for module in there):
        return "other"
    names = {module.name for module in there}
    is_all = all(m.name in names or m.name in contents.optional for m in contents.modules)
    return "yes" if is_all else "partly"


def _users(
    layout: Layout,
    current: str | None,
    mine: Contents | None,
    loaded: Mapping[str, LoadedModule],
    root: Path,
) -> tuple[str, ...]:
    """Return who uses the driver's modules, those of the artifact in use among them."""
    if not loaded:
        return ()
    before = read_contents(layout.entry(current)) if current else None
    known = [contents for contents in (mine, before) if contents is not None]
    names = dict.fromkeys(module.name for contents in known for module in contents.modules)
    devices = dict.fromkeys(device for contents in known for device in contents.devices)
    return tuple(str(user) for user in users_of(names, loaded, devices=devices, root=root))
