"""The desired state of provision.toml, and fingerprints of all inputs.

While a fingerprint is the same, resolving again would give the existing artifact, or a newer one
that was not requested. So a run with nothing to do needs neither the archive nor an engine.

The last valid provision.toml is kept beside the store: it applies at a boot whose provision.toml
has mistakes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from provision.agent.model import Desired
from provision.catalogue import Catalogue, Recipe
from provision.catalogue.suitability import AUTO, Card, cards_of, chosen_flavour, deciding
from provision.config import PATH as CONFIG
from provision.config import Config, DriverConfig, catalogue_folders, load
from provision.distros.distro import find_distro
from provision.errors import NotFoundError, ProvisionError, as_error
from provision.files import in_root, remove_drafts, state_of, write_atomic
from provision.host import STORE
from provision.host.facts import pci_devices, read_distro
from provision.host.kernels import kernel_release, machine
from provision.kmod.verify import stored_manifest
from provision.pin import FORMAT
from provision.store.entries import linked_kernels
from provision.store.layout import Layout
from provision.store.state import load_state
from provision.trust import open_regular

KEPT = STORE / ".provision.toml"


def load_desired(root: Path, *, catalogues: Sequence[Path] = (), keep: bool = False) -> Desired:
    """Return the desired state of a host.

    Args:
        keep: Whether to keep a copy of provision.toml for ``last_desired``.

    Raises:
        ConfigError: provision.toml has mistakes; the error lists all of them.
    """
    desired = _desired(root, CONFIG, catalogues)
    if keep:
        # If the store can't be written, a later step reports that.
        with suppress(OSError):
            path = in_root(root, KEPT, follow=False)
            remove_drafts(path)
            # It may have passwords that the file itself shows to root only.
            write_atomic(path, _text(root, CONFIG), mode=0o600)
    return desired


def last_desired(root: Path, *, catalogues: Sequence[Path] = ()) -> Desired | None:
    """Return the desired state of the last valid provision.toml; None if none is known."""
    if not in_root(root, KEPT).exists():
        return None
    try:
        return _desired(root, KEPT, catalogues)
    except (OSError, ProvisionError):
        return None


def _desired(root: Path, name: PurePath, catalogues: Sequence[Path]) -> Desired:
    config = load(root, name=name)
    folders = (*catalogue_folders(config.catalogue, root=root), *catalogues)
    return Desired(config, is_configured=bool(_text(root, name).strip()), catalogue=folders)


def _text(root: Path, name: PurePath) -> str:
    path = in_root(root, name)
    return path.read_text() if path.exists() else ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs that decide the artifacts of all drivers of a host."""

    root: Path
    # Fingerprint of configuration and machine, and the format of builds; with the distro's release.
    shared: str
    with_release: str
    desired: Desired
    # The recipe of each driver, or why there is none.
    recipes: Mapping[str, Recipe | ProvisionError]
    # The cards of those with a recipe; their ids decide about the version, and what is refused.
    cards: Mapping[str, tuple[Card, ...]]
    # What modules are built against, by kernel.
    _kernels: dict[str, str | None] = field(default_factory=dict)

    def of(self, driver: str, release: str) -> str:
        """Return the fingerprint of the inputs of a driver's artifact for a kernel."""
        if release not in self._kernels:
            self._kernels[release] = _kernel(self.root, self.desired.config, release)
        kernel = self._kernels[release]
        if kernel is None:
            return self.before_it_came(driver, release)
        return self._of(driver, self.with_release, kernel)

    def before_it_came(self, driver: str, release: str) -> str:
        """Return what the fingerprint was while a kernel was not on this host yet.

        The image or package that brings it may bring another release of the distro, too.
        """
        return self._of(driver, self.shared, release)

    def _of(self, driver: str, shared: str, kernel: str) -> str:
        setting = setting_fingerprint(driver, self.desired.drivers[driver])
        folders = (folder / driver for folder in reversed(self.desired.catalogue))
        folder = next(filter(Path.is_dir, folders), None)
        recipe = _files(folder, sorted(folder.rglob("*"))) if folder else "none"
        cards = {f"{c.device.vendor}:{c.device.device}" for c in self.cards.get(driver, ())}
        return _digest(
            [shared, setting, recipe, kernel, *([",".join(sorted(cards))] if cards else [])]
        )


def setting_fingerprint(driver: str, setting: DriverConfig) -> str:
    """Return a fingerprint of a driver's settings; options of modules change no artifact."""
    flavour = "" if setting.flavour == AUTO else setting.flavour
    return _digest([driver, setting.version, flavour])


def read_inputs(root: Path, desired: Desired) -> Inputs:
    """Read the inputs that decide the artifacts of a host's drivers."""
    config = desired.config
    certificate = config.signing.certificate
    signing = in_root(root, certificate) if certificate else None
    shared = [
        str(FORMAT),
        _settings(config),
        _files(signing.parent, [signing]) if signing else "",
        machine(root),
    ]
    catalogue, devices = Catalogue(desired.catalogue), pci_devices(root)
    recipes: dict[str, Recipe | ProvisionError] = {}
    cards: dict[str, tuple[Card, ...]] = {}
    for driver, setting in desired.drivers.items():
        try:
            recipe = recipes[driver] = catalogue.entry(driver).recipe
            cards[driver] = cards_of(recipe, devices)
            counted = deciding(cards[driver], setting.flavour, setting.version)
            chosen_flavour(recipe, setting.flavour, setting.version, counted)
        except (OSError, ProvisionError) as error:
            recipes[driver] = as_error(error)
    with_release = _digest([*shared, _distro(root)])
    return Inputs(root, _digest(shared), with_release, desired, recipes, cards)


def _kernel(root: Path, config: Config, release: str) -> str | None:
    """Return a fingerprint of what modules for a kernel are built against; None: it is not here.

    A kernel may be built again under the same release.
    """
    tree = config.tree_of(release)
    if tree is not None:
        return _digest([release, tree.model_dump_json(), *_states(root, tree.read_from(release))])
    folder, modules = in_root(root, "/lib/modules"), f"/lib/modules/{release}"
    if folder.is_dir() and not (folder / release).is_dir() and release != kernel_release(root):
        return None
    symvers = (f"{modules}/build/Module.symvers", f"/boot/symvers-{release}.gz")
    paths = [path for name in symvers if (path := in_root(root, name)).is_file()]
    return _digest([release, _files(paths[0].parent, paths[:1]) if paths else ""])


def _states(root: Path, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        try:
            yield state_of(in_root(root, name))
        except OSError:
            yield "none"


def _settings(config: Config) -> str:
    """Return a fingerprint of the settings that change the artifacts of all drivers.

    Mirrors are not part of it: they have the same packages, or their checksums differ. Neither is
    the policy: it says what may be made, and not of what.
    """
    parts: dict[str, object] = {
        "base_images": {
            name: distro.base_images
            for name, distro in config.distros.items()
            if distro.base_images
        },
        "signing": config.signing.model_dump(mode="json"),
    }
    keyrings = {
        name: distro.archive.keyring
        for name, distro in config.distros.items()
        if distro.archive.keyring is not None
    }
    if keyrings:
        parts["keyrings"] = keyrings
    if config.kernel_distro is not None:
        parts["kernel_distro"] = config.kernel_distro
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _distro(root: Path) -> str:
    """Return the host's release as builds know it (9.4 and 9.5 of an EL are both 9), if they do.

    Distros that number their builds may have other kernels of one release in each.
    """
    try:
        distro = read_distro(root)
    except NotFoundError:
        return " "
    named = f"{distro.id}:{distro.version}"
    with suppress(NotFoundError):
        named = find_distro(named).name
    return f"{named} {distro.build_id}"


def _files(folder: Path, paths: Iterable[Path]) -> str:
    """Return a fingerprint of files' names and contents; a missing file is part of it."""
    total = hashlib.sha256()
    for path in paths:
        if path.is_dir():
            continue
        try:
            # In a folder of drivers, a user may have put a pipe.
            with open_regular(path) as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError:
            content = "none"
        total.update(f"{content}  {path.relative_to(folder)}\n".encode())
    return total.hexdigest()


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def settled_version(root: Path, driver: str, setting: DriverConfig, release: str) -> str | None:
    """Return the version that was chosen for the same setting, for this kernel or another.

    A version stays until another or a newer one is requested, also for new kernels. If the state is
    lost, the versions that kernels use count as chosen.
    """
    layout = Layout(root, driver)
    known = load_state(layout)
    candidates = [known.of(release), *known.kernels.values()]
    wanted = setting_fingerprint(driver, setting)
    found = next((k.version for k in candidates if k.wanted == wanted and k.version), None)
    if found is not None or any(kernel.wanted is not None for kernel in candidates):
        return found
    links = linked_kernels(layout)
    digests = [links.pop(release, None), *links.values()]
    used = (stored_manifest(layout.entry(digest)) for digest in digests if digest)
    return next((manifest.pin.driver.version for manifest in used if manifest), None)
