"""Takes an artifact of the store into use: its kernel's link, the files of the host, the state.

A run of the agent does so, and so does 'provision install': what that installs is what the next run
finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from provision.agent.actions import activate
from provision.agent.desired import read_inputs, setting_fingerprint
from provision.agent.model import Desired
from provision.catalogue import Catalogue
from provision.catalogue.suitability import AUTO, cards_of, require_suitable
from provision.catalogue.upstream import CHANNELS, is_of
from provision.errors import NotFoundError, UsageError
from provision.host.facts import pci_devices
from provision.host.kernels import kernel_release
from provision.kmod.loader import Options, try_write_loader
from provision.kmod.verify import files_fingerprint, stored_manifest
from provision.manifest import Manifest
from provision.pin import DriverPin, Pin
from provision.store.activate import plan
from provision.store.entries import link_kernel, linked_kernels
from provision.store.layout import Layout, changing, switching
from provision.store.managed_files import Change
from provision.store.state import KernelState, load_state, refuse_newer, store_state

_SETTINGS = "/etc/provision/provision.toml"
# What stands for versions that may change.
_MOVING = {*CHANNELS, "latest"}


def refuse_reverted(desired: Desired, driver: DriverPin) -> None:
    """Refuse what the next run of the agent would take out of use or replace."""
    setting = desired.drivers.get(driver.name)
    if setting is None:
        if desired.is_configured:
            raise UsageError(
                f"provision.toml does not name {driver.name}: the next run of the agent would take"
                " it out of use.",
                resolution=f'Name it in {_SETTINGS}: [drivers.{driver.name}] version = "'
                f'{driver.version}"; then run this command again.',
            )
        return
    wanted = {}
    if setting.version not in _MOVING and not is_of(driver.version, setting.version):
        wanted["version"] = (setting.version, driver.version)
    if setting.flavour not in {None, AUTO, driver.flavour}:
        wanted["flavour"] = (setting.flavour, driver.flavour)
    for key, (has, needs) in wanted.items():
        raise UsageError(
            f"provision.toml asks for {key} {has} of {driver.name}, and this is {needs}: the next"
            " run of the agent would go back.",
            resolution=f'Set [drivers.{driver.name}] {key} = "{needs}" in {_SETTINGS}; then run'
            " this command again.",
        )


def refuse_unsuitable(root: Path, desired: Desired, pin: Pin) -> None:
    """Refuse an artifact that this host must not use, by its recipe and what the store has of it.

    Raises:
        NotFoundError: As ``require_suitable``.
    """
    try:
        recipe = Catalogue(desired.catalogue).entry(pin.driver.name).recipe
    except NotFoundError:
        # What it is for is not known here.
        return
    stored = stored_manifest(Layout(root, pin.driver.name).entry(pin.short_digest))
    cards = cards_of(recipe, pci_devices(root))
    listed = stored.cards if stored else ()
    require_suitable(recipe, cards, desired.config.policy.untried, pin, listed)


def link(
    layout: Layout,
    desired: Desired,
    kernel: str,
    entry: Path,
    manifest: Manifest,
    *,
    inputs: str | None,
    made: Callable[[KernelState], Mapping[str, object]] = lambda _known: {},
    force: bool = False,
) -> None:
    """Point a kernel's link to an artifact; the caller holds the driver's lock.

    Every artifact that a kernel begins to use comes by here.

    Args:
        inputs: Fingerprint of what decided it; None: nobody asked for it.
        made: Returns what else is new in the state of the kernel, given the one before.
        force: Whether to use it even where ``refuse_unsuitable`` refuses it.
    """
    if not force:
        refuse_unsuitable(layout.root, desired, manifest.pin)
    state = load_state(layout)
    known = state.of(kernel)
    now = linked_kernels(layout).get(kernel)
    previous = known.previous if now in {None, entry.name} else now
    # If the run is killed here, the next one repeats this, with the previous artifact.
    known = known.model_copy(update={"previous": previous, "inputs": None})
    store_state(layout, state.updated(kernel, known))
    setting = desired.drivers.get(layout.driver)
    options: Options = setting.options if setting else {}
    try_write_loader(entry, options, root=layout.root)
    link_kernel(layout, kernel, entry.name)
    after = KernelState(
        inputs=inputs,
        wanted=setting_fingerprint(layout.driver, setting) if setting else None,
        version=manifest.pin.driver.version,
        previous=previous,
        fingerprint=files_fingerprint(entry, manifest),
        prepared=int(time.time()),
        rejected=tuple(digest for digest in known.rejected if digest != entry.name),
        announced=known.announced,
        checked=known.checked,
        **(known.model_extra or {}),
    )
    store_state(layout, state.updated(kernel, after.model_copy(update=made(known))))


def use(
    root: Path,
    desired: Desired,
    entry: Path,
    manifest: Manifest,
    *,
    replace: bool = False,
    force: bool = False,
) -> tuple[Change, ...]:
    """Let the kernel of an artifact use it, now or at its next boot; return what has changed."""
    driver, kernel = manifest.pin.driver, manifest.pin.kernel.release
    refuse_reverted(desired, driver)
    layout = Layout(root, driver.name)
    setting = desired.drivers.get(driver.name)
    inputs = read_inputs(root, desired).of(driver.name, kernel) if setting else None
    changes: tuple[Change, ...] = ()
    # Of a root without a kernel, it is the one that will be there.
    is_running = kernel_release(root) in {None, kernel}
    with switching(root):
        refuse_newer(layout)
        if is_running:
            # Foreign files are refused before anything changes.
            plan(layout, manifest, replace=replace)
        with changing(layout):
            used = (linked_kernels(layout).get(kernel), load_state(layout).of(kernel).inputs)
            if used != (entry.name, inputs):
                link(layout, desired, kernel, entry, manifest, inputs=inputs, force=force)
                changes = (Change("switch", layout.kernel_link(kernel), entry.name),)
        if is_running:
            changes += activate(layout, entry, replace=replace)
    return changes
