"""The desired state of provision.toml, and fingerprints of all inputs.

While a fingerprint is the same, resolving again would give the existing artifact, or a newer one
that was not requested. So a run with nothing to do needs neither the archive nor an engine.

The last valid provision.toml is kept beside the store: it applies at a boot whose provision.toml
has mistakes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

import provision
from provision.agent.model import Desired, DesiredDriver
from provision.catalogue import catalogue_folders
from provision.config import PATH as CONFIG
from provision.config import Config, load
from provision.distros import find_distro
from provision.errors import NotFoundError, ProvisionError
from provision.files import in_root, remove_drafts, write_atomic
from provision.host.folders import STORE
from provision.host.kernels import machine
from provision.kmod.verify import stored_manifest
from provision.shipped import templates_dir
from provision.store.entries import linked_kernels
from provision.store.layout import Layout
from provision.store.state import load_state

_OS_RELEASES = ("etc/os-release", "usr/lib/os-release")
_PACKAGE = Path(provision.__file__).parent
# Programs of ours that run in build containers.
_IN_BUILDS = ("collector", "kmm", "loader_script", "unpack_source")
_KEPT = STORE / ".provision.toml"


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs that decide the artifacts of all drivers of a host."""

    # Fingerprint of host, templates, configuration and program.
    shared: str
    catalogue: tuple[Path, ...]

    def of(self, driver: DesiredDriver, release: str) -> str:
        """Return the fingerprint of the inputs of a driver's artifact for a kernel."""
        return _digest(
            [self.shared, setting_fingerprint(driver), self._recipe(driver.name), release]
        )

    def _recipe(self, name: str) -> str:
        folder = next((f / name for f in reversed(self.catalogue) if (f / name).is_dir()), None)
        return "none" if folder is None else _files(folder, sorted(folder.rglob("*")))


def setting_fingerprint(driver: DesiredDriver) -> str:
    """Return a fingerprint of a driver's settings; options of modules change no artifact."""
    return _digest([driver.name, driver.version, driver.flavour or ""])


def read_inputs(root: Path, desired: Desired) -> Inputs:
    """Read the inputs that decide the artifacts of a host's drivers."""
    templates = Path(desired.templates)
    # The folder also has templates of units and configuration.
    mains = sorted(templates.glob("Dockerfile.*.j2"))
    families = [templates / path.name.split(".")[1] for path in mains]
    shared_folders = [templates / "loader", templates / "macros"]
    sources = [p for f in [*shared_folders, *families] for p in sorted(f.rglob("*"))]
    shared = [
        provision.__version__,
        desired.settings,
        _certificate(root, desired),
        machine(root),
        desired.distro,
        _files(templates, [*mains, *sources]),
        _files(_PACKAGE, [_PACKAGE / f"build/{name}.py" for name in _IN_BUILDS]),
        _files(_PACKAGE, sorted((_PACKAGE / "distros").glob("*.toml"))),
    ]
    return Inputs(_digest(shared), tuple(map(Path, desired.catalogue)))


def _certificate(root: Path, desired: Desired) -> str:
    if desired.certificate is None:
        return ""
    path = in_root(root, desired.certificate)
    return _files(path.parent, [path])


def _files(folder: Path, paths: Iterable[Path]) -> str:
    """Return a fingerprint of files' names and contents; a missing file is part of it."""
    total = hashlib.sha256()
    for path in paths:
        if path.is_dir():
            continue
        try:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            content = "none"
        total.update(f"{content}  {path.relative_to(folder)}\n".encode())
    return total.hexdigest()


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load_desired(
    root: Path = Path("/"), *, catalogues: Sequence[Path] = (), keep: bool = False
) -> Desired:
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
            path = in_root(root, _KEPT, follow=False)
            remove_drafts(path)
            write_atomic(path, _text(root, CONFIG))
    return desired


def last_desired(root: Path, *, catalogues: Sequence[Path] = ()) -> Desired | None:
    """Return the desired state of the last valid provision.toml; None if none is known."""
    if not in_root(root, _KEPT).exists():
        return None
    try:
        return _desired(root, _KEPT, catalogues)
    except (OSError, ProvisionError):
        return None


def _text(root: Path, name: PurePath) -> str:
    path = in_root(root, name)
    return path.read_text() if path.exists() else ""


def _desired(root: Path, name: PurePath, catalogues: Sequence[Path]) -> Desired:
    config = load(root, name=name)
    folders = [*catalogue_folders(config.catalogue, root=root), *catalogues]
    return Desired(
        drivers=tuple(
            DesiredDriver(name, driver.version, driver.flavour, driver.options)
            for name, driver in config.drivers.items()
        ),
        # A crash or an editor may leave an empty file, which is no decision to remove drivers.
        is_configured=bool(_text(root, name).strip()),
        unload=config.policy.unload,
        prebuild=config.policy.prebuild,
        keep=config.policy.keep,
        update=config.policy.update,
        textfile=config.metrics.textfile,
        kubernetes=config.kubernetes,
        distro=_distro(root),
        settings=_settings_fingerprint(config),
        certificate=config.signing.certificate,
        catalogue=tuple(map(str, folders)),
        templates=str(templates_dir()),
    )


def _distro(root: Path) -> str:
    """Return the host's release as builds know it: 9.4 and 9.5 of an EL are both 9."""
    named = _os_release(root)
    try:
        found = find_distro(named)
    except NotFoundError:
        return named
    return f"{found.id}:{found.version}"


def _os_release(root: Path) -> str:
    """Return ``ID:VERSION_ID`` of os-release."""
    for name in _OS_RELEASES:
        try:
            lines = in_root(root, name).read_text().splitlines()
        except OSError:
            continue
        fields = dict(line.split("=", 1) for line in lines if "=" in line)
        return ":".join(fields.get(key, "").strip("\"'") for key in ("ID", "VERSION_ID"))
    return ""


def _settings_fingerprint(config: Config) -> str:
    """Return a fingerprint of the settings that change the artifacts of all drivers.

    Mirrors are not part of it: they have the same packages, or their checksums differ.
    """
    parts: dict[str, object] = {
        "base_images": {name: distro.base_images for name, distro in config.distros.items()},
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


def settled_version(root: Path, driver: DesiredDriver, release: str) -> str | None:
    """Return the version that was chosen for the same setting, for this kernel or another.

    A version stays until another or a newer one is requested, also for new kernels. If the state is
    lost, the versions that kernels use count as chosen.
    """
    layout = Layout(root, driver.name)
    known = load_state(layout)
    candidates = [known.of(release), *known.kernels.values()]
    mine = setting_fingerprint(driver)
    found = next((k.version for k in candidates if k.wanted == mine and k.version), None)
    if found is not None or any(kernel.wanted is not None for kernel in candidates):
        return found
    links = linked_kernels(layout)
    digests = [links.pop(release, None), *links.values()]
    used = (stored_manifest(layout.entry(digest)) for digest in digests if digest)
    return next((manifest.pin.driver.version for manifest in used if manifest), None)
