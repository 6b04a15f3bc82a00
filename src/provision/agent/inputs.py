"""Fingerprints of everything that an artifact is decided from, without deciding it.

As long as a fingerprint is the same, resolving would give the artifact that is there, or a newer
one that nobody asked for. So a run with nothing to do asks neither the archive nor an engine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import provision
from provision.agent.model import Desired, DesiredDriver
from provision.host.kernel import machine
from provision.rootfs import in_root

_OS_RELEASES = ("etc/os-release", "usr/lib/os-release")
_PACKAGE = Path(provision.__file__).parent


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
        return _digest([self.shared, wish(driver), self._recipe(driver.name), release])

    def _recipe(self, name: str) -> str:
        folder = next((f / name for f in reversed(self.catalogue) if (f / name).is_dir()), None)
        return "none" if folder is None else _files(folder, sorted(folder.rglob("*")))


def wish(driver: DesiredDriver) -> str:
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
        desired.basis,
        _certificate(root, desired),
        machine(root),
        json.dumps(_distro(root), sort_keys=True),
        _files(templates, [*mains, *sources]),
        _files(_PACKAGE, [_PACKAGE / f"render/{n}.py" for n in ("collect", "kmm", "unpack")]),
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
