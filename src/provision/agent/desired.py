"""What provision.toml asks for, in models that load fast, and fingerprints of all inputs.

As long as a fingerprint is the same, resolving would give the artifact that is there, or a newer
one that no one asked for. So a run with nothing to do asks neither the archive nor an engine.

Reading and validating the file takes longer than all else that a run with nothing to do does; so
what came out of it is kept beside the store, under a fingerprint of what went in.
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
from provision.errors import InUseError
from provision.files import in_root, remove_drafts, write_atomic
from provision.host.kernels import machine
from provision.store.entries import linked_kernels
from provision.store.layout import STORE, Layout
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
# As provision.documents has it, which loads pydantic.
_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the artifacts of all drivers of a host are decided from.

    Attributes:
        shared: Fingerprint of host, templates, configuration and program.
        catalogue: The catalogue's folders.
    """

    shared: str
    catalogue: tuple[Path, ...]

    def of(self, driver: DesiredDriver, release: str) -> str:
        """Return the fingerprint of a driver's artifact for a kernel."""
        return _digest(
            [self.shared, wanted_fingerprint(driver), self._recipe(driver.name), release]
        )

    def _recipe(self, name: str) -> str:
        folder = next((f / name for f in reversed(self.catalogue) if (f / name).is_dir()), None)
        return "none" if folder is None else _files(folder, sorted(folder.rglob("*")))


def wanted_fingerprint(driver: DesiredDriver) -> str:
    """Return a fingerprint of what provision.toml asks for; options change no artifact."""
    return _digest([driver.name, driver.version, driver.flavour or ""])


def read_inputs(root: Path, desired: Desired) -> Inputs:
    """Read what the artifacts of a host's drivers are decided from."""
    templates = Path(desired.templates)
    # The folder holds other things too: units, configuration.
    mains = sorted(templates.glob("Dockerfile.*.j2"))
    families = [templates / path.name.split(".")[1] for path in mains]
    sources = [p for f in [templates / "macros", *families] for p in sorted(f.rglob("*"))]
    shared = [
        provision.__version__,
        desired.settings,
        _certificate(root, desired),
        machine(root),
        json.dumps(_distro(root), sort_keys=True),
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


def _distro(root: Path) -> Mapping[str, str]:
    """Return what of os-release decides which archive and templates are taken.

    Its other lines change with every point release, which changes no artifact.
    """
    for name in _OS_RELEASES:
        try:
            lines = in_root(root, name).read_text().splitlines()
        except OSError:
            continue
        fields = dict(line.split("=", 1) for line in lines if "=" in line)
        return {key: fields.get(key, "").strip("\"'") for key in ("ID", "VERSION_ID")}
    return {}


def _files(folder: Path, paths: Iterable[Path]) -> str:
    """Return a fingerprint of files' names and contents; a missing one counts too."""
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
    """Return what the host under ``root`` should have.

    Args:
        root: Root of the host.
        catalogues: Further folders of drivers.
        keep: Whether to keep what was read, for the next time.

    Raises:
        ConfigError: provision.toml has mistakes; all of them are named.
        NotFoundError: provision's own catalogue or templates are missing.
    """
    key = _key(root, catalogues)
    kept = _kept(root)
    if kept is not None and kept["key"] == key:
        return _from_json(kept["desired"])
    desired = _read(root, catalogues)
    if keep:
        # A store that can't be written fails where more is written into it.
        with suppress(OSError, InUseError), switching(root):
            path = in_root(root, _KEPT, follow=False)
            remove_drafts(path)
            write_atomic(path, json.dumps({"key": key, "desired": asdict(desired)}) + "\n")
    return desired


def _read(root: Path, catalogues: Sequence[Path]) -> Desired:
    """Read provision.toml; errors as ``load_desired``."""
    # A run with nothing to do would wait for these models.
    from provision.catalogue import catalogue_folders, templates_dir  # noqa: PLC0415 - as above
    from provision.config import load  # noqa: PLC0415 - as above

    config = load(root)
    folders = [*catalogue_folders(config.catalogue, root=root), *catalogues]
    return Desired(
        drivers=tuple(
            DesiredDriver(name, wanted.version, wanted.flavour, wanted.options)
            for name, wanted in config.drivers.items()
        ),
        # A file that is empty was cut off by a crash or an editor: no one wrote that down.
        is_configured=bool(_content(root).strip()),
        unload=config.policy.unload,
        prebuild=config.policy.prebuild,
        keep=config.policy.keep,
        update=config.policy.update,
        textfile=config.metrics.textfile,
        settings=_settings_fingerprint(config),
        certificate=config.signing.certificate,
        catalogue=tuple(map(str, folders)),
        templates=str(templates_dir()),
    )


def _settings_fingerprint(config: Config) -> str:
    """Return a fingerprint of what changes the artifacts of all drivers.

    Mirrors do not: they have the same packages, or their checksums differ.
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

    Versions stay until another or a newer one is asked for: also for new kernels, and where what
    was remembered is lost. Then what kernels use is what was chosen.
    """
    layout = Layout(root, driver.name)
    known = load_state(layout)
    candidates = [known.of(release), *known.kernels.values()]
    mine = wanted_fingerprint(driver)
    found = next((k.version for k in candidates if k.wanted == mine and k.version), None)
    if found is not None or any(kernel.wanted is not None for kernel in candidates):
        return found
    links = linked_kernels(layout)
    digests = [links.pop(release, None), *links.values()]
    used = (read_contents(layout.entry(digest)) for digest in digests if digest)
    return next((contents.version for contents in used if contents), None)


def last_desired(root: Path) -> Desired | None:
    """Return what the host should have had when provision.toml was last understood."""
    kept = _kept(root)
    return None if kept is None else _from_json(kept["desired"])


def _kept(root: Path) -> Mapping[str, Any] | None:
    try:
        kept = json.loads(in_root(root, _KEPT).read_text())
        return {"key": kept["key"], "desired": kept["desired"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _key(root: Path, catalogues: Sequence[Path]) -> str:
    """Return a fingerprint of the file, and of the program that reads it."""
    text = _content(root)
    # Where the program lies decides which catalogue and templates are its own.
    program = (provision.__version__, provision.__file__, sys.prefix, sys.version, str(root))
    parts = [*program, *map(str, catalogues)]
    return hashlib.sha256("\0".join(parts).encode() + b"\0" + text).hexdigest()


def _content(root: Path) -> bytes:
    """Return what provision.toml has, as far as a file that is no mistake goes.

    What is no regular file reads as a text that no TOML is, so that nothing is kept for it.
    """
    path = in_root(root, CONFIG)
    if not path.exists():
        return b""
    if not path.is_file():
        return b"\0"
    with path.open("rb") as stream:
        return stream.read(_MAX_BYTES + 1)


def _from_json(kept: Mapping[str, Any]) -> Desired:
    # Hosts have files from when the fingerprint of the settings had another name.
    data = {("settings" if name == "basis" else name): value for name, value in kept.items()}
    drivers = tuple(DesiredDriver(**driver) for driver in data["drivers"])
    return Desired(**{**data, "drivers": drivers, "catalogue": tuple(data["catalogue"])})
