"""The contents of a store entry, read without slow models for the decisions of every boot.

The manifest was validated when the entry was made; here it is only read, without the models that
take longer to load than everything else. What can't be read is a damaged entry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provision.files import sha256_file
from provision.kmod.module_file import content_digest, read_signature

MANIFEST = "driver/manifest.json"


@dataclass(frozen=True, slots=True)
class File:
    """A regular file of an entry: path relative to it, bytes, and sha256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ModuleFile(File):
    """A kernel module, by the name under which the kernel lists it."""

    name: str


@dataclass(frozen=True, slots=True)
class Contents:
    """What an entry holds, as its manifest says.

    Attributes:
        driver: The driver's name.
        version: Its version.
        flavour: Its flavour.
        kernel: Release of the kernel that the modules are for.
        modules: The modules.
        files: The regular files of the user space.
        devices: Globs below ``/dev`` of what the modules serve.
        optional: Names of modules that need not be loaded.
        may_be_signed: Whether the modules may carry a signature besides what was built.
        is_for_kmm: Whether it has a module for Kubernetes' KMM, which hosts are led past.
    """

    driver: str
    version: str
    flavour: str
    kernel: str
    modules: tuple[ModuleFile, ...]
    files: tuple[File, ...]
    devices: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    may_be_signed: bool = False
    is_for_kmm: bool = False


def read_contents(entry: Path) -> Contents | None:
    """Return what an entry holds; None if it is missing or its manifest can't be understood."""
    try:
        manifest = json.loads((entry / MANIFEST).read_bytes())
        pin = manifest["pin"]
        return Contents(
            driver=_text(pin["driver"]["name"]),
            version=_text(pin["driver"]["version"]),
            flavour=_text(pin["driver"]["flavour"]),
            kernel=_text(pin["kernel"]["release"]),
            modules=tuple(
                ModuleFile(_text(m["path"]), m["size"], m["sha256"], _text(m["name"]))
                for m in manifest["modules"]
            ),
            files=tuple(
                File(f"driver{_text(f['path'])}", f["size"], f["sha256"])
                for f in manifest["files"]
                if f.get("sha256") is not None
            ),
            devices=tuple(
                _text(device)
                for feature in manifest["container"]["features"].values()
                for device in feature.get("devices", ())
            ),
            may_be_signed=pin.get("signing_key") is not None
            or not {"closure", "tree"}.isdisjoint(pin),
            optional=frozenset(manifest.get("host", {}).get("optional", ())),
            is_for_kmm=manifest.get("kmm") is not None,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _text(value: object) -> str:
    """Take a string that can stand in a path and in a file.

    Raises:
        ValueError: It is not one.
    """
    if not isinstance(value, str) or "\0" in value:
        raise ValueError
    value.encode()
    return value


def files_fingerprint(entry: Path, contents: Contents) -> str:
    """Return a fingerprint of the files' sizes, modes and times.

    As long as it stays the same, no one has written to them, and comparing checksums again can
    only find a defective disk.
    """
    total = hashlib.sha256()
    for path in [MANIFEST, *(file.path for file in (*contents.modules, *contents.files))]:
        try:
            status = (entry / path).lstat()
        except OSError:
            total.update(b"missing\n")
            continue
        facts = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        total.update(f"{facts}\n".encode())
    return total.hexdigest()


def damages(entry: Path, contents: Contents, *, all_checksums: bool) -> Iterator[str]:
    """Yield what is wrong with an entry: missing files, wrong sizes, wrong checksums.

    Args:
        entry: Its folder.
        contents: What it should hold.
        all_checksums: Whether to read the user space too, or only the modules.
    """
    for module in contents.modules:
        path = entry / module.path
        if not (contents.may_be_signed and _is_signed(path, module)):
            yield from _damage(entry, module, checksum=True)
    for file in contents.files:
        yield from _damage(entry, file, checksum=all_checksums)
    # What modprobe is shown: docs/decisions/24-kubernetes.md.
    shown = "host/" if contents.is_for_kmm else ""
    needed = [f"lib/modules/{contents.kernel}/modules.dep"]
    needed += [module.path for module in contents.modules if shown]
    for name in needed:
        if not (entry / f"{shown}{name}").is_file():
            yield f"{shown}{name} is missing"


def _is_signed(path: Path, module: ModuleFile) -> bool:
    """Return whether a file is the module with a signature behind it."""
    try:
        appended = read_signature(path)
    except (OSError, ValueError):
        return False
    return (
        appended is not None
        and appended.content_size == module.size
        and content_digest(path, appended) == module.sha256
    )


def _damage(entry: Path, file: File, *, checksum: bool) -> Iterator[str]:
    path = entry / file.path
    try:
        size = path.stat().st_size
        if size != file.size:
            yield f"{file.path} has {size} bytes, not {file.size}"
        elif checksum and sha256_file(path) != file.sha256:
            yield f"{file.path} has another sha256"
    except OSError:
        yield f"{file.path} is missing"
