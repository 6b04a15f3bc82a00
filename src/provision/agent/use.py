"""Which artifact a kernel uses: takes one of the store into use, or goes back to another.

That is the kernel's link, the files of the host, and the state. A run of the agent does so, and so
does 'provision install': what that installs is what the next run finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from provision.agent.desired import read_inputs, setting_fingerprint
from provision.agent.model import Desired
from provision.catalogue import Catalogue
from provision.catalogue.fields import CHANNELS, is_of
from provision.catalogue.suitability import AUTO, cards_of, require_suitable
from provision.config import Config
from provision.errors import NotFoundError, UsageError
from provision.host.facts import pci_devices
from provision.host.kernels import kernel_release
from provision.kmod.loader import Options, try_write_loader
from provision.kmod.verify import files_fingerprint, first_damage, stored_manifest
from provision.manifest import Manifest
from provision.pin import DriverPin, Pin
from provision.store.activate import activate_entry, plan
from provision.store.entries import distrust, entries, link_kernel, linked_kernels
from provision.store.layout import Layout, changing, switching
from provision.store.managed_files import Change
from provision.store.state import (
    Failure,
    KernelState,
    load_state,
    refuse_newer,
    store_state,
    update_state,
)

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


def activate(layout: Layout, entry: Path, *, replace: bool = False) -> tuple[Change, ...]:
    """Activate an artifact and record that this is complete; return what has changed."""
    changes = activate_entry(layout, entry, replace=replace)
    update_state(layout, lambda state: state.model_copy(update={"activated": entry.name}))
    return changes


def begun(layout: Layout, release: str) -> tuple[str, str] | None:
    """Return the artifacts of a rollback that is not complete, as ``choose`` does; None: none is.

    The kernel's link points to the artifact that the rollback chose, and ``current`` to the one
    that it rejected.
    """
    refuse_newer(layout)
    used, chosen = layout.linked(layout.current), linked_kernels(layout).get(release)
    if used is None or chosen is None or used.name == chosen:
        return None
    is_rejected = used.name in load_state(layout).of(release).rejected
    return (used.name, chosen) if is_rejected and layout.entry(chosen).is_dir() else None


def choose(
    layout: Layout, release: str, config: Config, *, undoes: bool = False
) -> tuple[str, str]:
    """Return the artifact that a kernel uses and the one to go back to, by short digest.

    A rollback goes to the previous artifact of the kernel if it is whole, or else to the newest
    other one for this kernel that it did not go back from before. It goes to none that the host
    would not let in today: what one command tried, or a key that is gone has signed.

    Args:
        undoes: Whether what the last rollback left is a choice, too.

    Raises:
        NotFoundError: The kernel has no artifact, or none to go back to.
        NewerStateError: A newer provision wrote the driver's state.
    """
    refuse_newer(layout)
    now = linked_kernels(layout).get(release)
    if now is None:
        raise NotFoundError(
            f"{layout.driver} has no artifact for the kernel {release}.",
            resolution="Make one: provision apply",
        )
    known = load_state(layout).of(release)
    avoided = {now, *known.avoided} - ({known.previous} if undoes else set())
    others = sorted(
        (digest for digest in entries(layout) if digest not in avoided),
        key=lambda digest: (digest == known.previous, layout.entry(digest).stat().st_ctime_ns),
        reverse=True,
    )
    refused = []
    for digest in others:
        if _is_whole_for(layout, digest, release):
            why = distrust(config, layout.root, layout.driver, layout.entry(digest))
            if why is None:
                return now, digest
            refused.append(f"{digest} is not trusted now: {why}")
    raise NotFoundError(
        f"There is no other artifact of {layout.driver} for the kernel {release}.",
        details="\n".join(refused) or None,
        resolution="Set another version in provision.toml ([drivers.…] version), then run"
        " 'provision apply'. [policy] keep sets how many older artifacts stay.",
    )


def _is_whole_for(layout: Layout, digest: str, release: str) -> bool:
    entry = layout.entry(digest)
    manifest = stored_manifest(entry)
    if manifest is None or manifest.pin.kernel.release != release:
        return False
    return first_damage(entry, modules_only=False) is None


def reject(
    layout: Layout, release: str, digest: str, *, inputs: str, failure: Failure | None = None
) -> None:
    """Switch a kernel to another artifact, and reject the present one until its inputs change.

    One that failed for a reason that may pass is only avoided until a later run makes it anew. A
    rollback can be undone until what it goes to has been loaded.

    The caller has held the driver's lock since it chose the artifact.

    Args:
        inputs: Fingerprint of the inputs that give the rejected artifact.
        failure: The failure of the rejected artifact, if there was one.
    """
    state = load_state(layout)
    known = state.of(release)
    now = linked_kernels(layout).get(release)
    is_final = failure is None or failure.final
    candidates = [*known.rejected, now] if is_final else known.rejected
    undoes = failure is not None and digest in known.rejected
    # What there was before a rollback is what the present inputs give.
    is_settled = is_final or undoes
    manifest = stored_manifest(layout.entry(digest))
    version = manifest.pin.driver.version if manifest else None
    fingerprint = known.fingerprint
    if manifest is not None and now != digest:
        # Its files were compared when it was chosen, so no later run has to.
        fingerprint = files_fingerprint(layout.entry(digest), manifest)
    changed = state.changed(
        release,
        inputs=inputs if is_settled else None,
        version=version if is_settled else known.version,
        previous=now if failure is None else None,
        fingerprint=fingerprint,
        rejected=tuple(d for d in dict.fromkeys(candidates) if d and d != digest),
        refused=None if is_settled else now,
        failure=None if undoes else failure,
        load_failure=None,
    )
    # The rejection is written first: if the run is killed here, the user runs it again.
    store_state(layout, changed)
    link_kernel(layout, release, digest)
