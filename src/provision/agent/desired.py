"""The desired state of provision.toml, in models that load fast, and fingerprints of all inputs.

While a fingerprint is the same, resolving again would give the existing artifact, or a newer one
that was not requested. So a run with nothing to do needs neither the archive nor an engine.

Reading and validating provision.toml takes longer than the rest of such a run. So the desired state
is cached beside the store, with a fingerprint of the file.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import provision
from provision.agent.contents import read_contents
from provision.agent.model import Desired, DesiredDriver
from provision.errors import InUseError, NotFoundError
from provision.files import in_root, remove_drafts, write_atomic
from provision.host.folders import STORE
from provision.host.kernels import machine
from provision.store.entries import linked_kernels
from provision.store.layout import Layout
from provision.store.locks import switching
from provision.store.state import load_state

if TYPE_CHECKING:
    from provision.config import Config

_OS_RELEASES = ("etc/os-release", "usr/lib/os-release")
_PACKAGE = Path(provision.__file__).parent
# Programs of ours that run in build containers.
_IN_BUILDS = ("collector", "kmm", "unpack_source")
CONFIG = Path("etc/provision/provision.toml")
_KEPT = STORE / ".desired.json"
# The limit of provision.documents, which loads pydantic.
_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs that decide the artifacts of all drivers of a host.

    Attributes:
        shared: Fingerprint of host, templates, configuration and program.
        catalogue: The catalogue's folders.
    """

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
    sources = [p for f in [templates / "macros", *families] for p in sorted(f.rglob("*"))]
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
        root: Root of the host.
        catalogues: Additional folders of drivers.
        keep: Whether to cache the result for later runs.

    Raises:
        ConfigError: provision.toml has mistakes; the error lists all of them.
        NotFoundError: provision's own catalogue or templates are missing.
    """
    key = _key(root, catalogues)
    kept = _kept(root)
    if kept is not None and kept["key"] == key:
        return _from_json(kept["desired"])
    desired = _read(root, catalogues)
    if keep:
        # If the store can't be written, a later step reports that.
        with suppress(OSError, InUseError), switching(root):
            path = in_root(root, _KEPT, follow=False)
            remove_drafts(path)
            write_atomic(path, json.dumps({"key": key, "desired": asdict(desired)}) + "\n")
    return desired


def _read(root: Path, catalogues: Sequence[Path]) -> Desired:
    """Read provision.toml; errors as ``load_desired``."""
    # A run with nothing to do does not need these models.
    from provision.catalogue import catalogue_folders  # noqa: PLC0415 - as above
    from provision.config import load  # noqa: PLC0415 - as above
    from provision.shipped import templates_dir  # noqa: PLC0415 - as above

    config = load(root)
    folders = [*catalogue_folders(config.catalogue, root=root), *catalogues]
    return Desired(
        drivers=tuple(
            DesiredDriver(name, driver.version, driver.flavour, driver.options)
            for name, driver in config.drivers.items()
        ),
        # A crash or an editor may leave an empty file, which is no decision to remove drivers.
        is_configured=bool(_content(root).strip()),
        unload=config.policy.unload,
        prebuild=config.policy.prebuild,
        keep=config.policy.keep,
        update=config.policy.update,
        textfile=config.metrics.textfile,
        distro=_distro(root),
        settings=_settings_fingerprint(config),
        certificate=config.signing.certificate,
        catalogue=tuple(map(str, folders)),
        templates=str(templates_dir()),
    )


def _distro(root: Path) -> str:
    """Return the host's release as builds know it: 9.4 and 9.5 of an EL are both 9."""
    from provision.distros import find_distro  # noqa: PLC0415 - as in _read

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
    used = (read_contents(layout.entry(digest)) for digest in digests if digest)
    return next((contents.version for contents in used if contents), None)


def last_desired(root: Path) -> Desired | None:
    """Return the desired state of the last valid provision.toml."""
    kept = _kept(root)
    return None if kept is None else _from_json(kept["desired"])


def _kept(root: Path) -> Mapping[str, Any] | None:
    try:
        kept = json.loads(in_root(root, _KEPT).read_text())
        return {"key": kept["key"], "desired": kept["desired"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _key(root: Path, catalogues: Sequence[Path]) -> str:
    """Return a fingerprint of provision.toml, the distro and the program that reads them."""
    text = _content(root)
    # The place of the program decides its own catalogue and templates.
    program = (provision.__version__, provision.__file__, sys.prefix, sys.version, str(root))
    parts = [*program, _os_release(root), *map(str, catalogues)]
    return hashlib.sha256("\0".join(parts).encode() + b"\0" + text).hexdigest()


def _content(root: Path) -> bytes:
    """Return the content of provision.toml, up to the largest size that is allowed.

    Anything but a regular file gives content that is not TOML, so that nothing is cached for it.
    """
    path = in_root(root, CONFIG)
    if not path.exists():
        return b""
    if not path.is_file():
        return b"\0"
    with path.open("rb") as stream:
        return stream.read(_MAX_BYTES + 1)


def _from_json(kept: Mapping[str, Any]) -> Desired:
    # In older files, the fingerprint of the settings has another name.
    data = {("settings" if name == "basis" else name): value for name, value in kept.items()}
    drivers = tuple(DesiredDriver(**driver) for driver in data["drivers"])
    return Desired(**{**data, "drivers": drivers, "catalogue": tuple(data["catalogue"])})
