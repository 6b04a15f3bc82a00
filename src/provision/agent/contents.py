"""The contents of a store entry, read without pydantic for the decisions at every boot.

The manifest was validated when the entry was made. Loading its models would take longer than the
rest of a boot's run, so it is only read here. An entry whose manifest can't be read is damaged.
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
    """A kernel module, with the name under which the kernel lists it."""

    name: str


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of an entry according to its manifest.

    Attributes:
        driver: The driver's name.
        version: Its version.
        flavour: Its flavour.
        kernel: Release of the kernel that the modules are for.
        modules: The modules.
        files: The regular files of the user space.
        devices: Globs below ``/dev`` for the devices of the modules.
        optional: Names of modules that need not be loaded.
        may_be_signed: Whether a signature may have been appended to the built modules.
        is_for_kmm: Whether the entry is laid out for Kubernetes' KMM, with a folder for hosts.
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
    """Return the contents of an entry; None if it is missing or has no valid manifest."""
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
    """Return a string that is valid in a path and in a file.

    Raises:
        ValueError: The value is not such a string.
    """
    if not isinstance(value, str) or "\0" in value:
        raise ValueError
    value.encode()
    return value


def files_fingerprint(entry: Path, contents: Contents) -> str:
    """Return a fingerprint of the files' sizes, modes and times.

    While it stays the same, nothing has written to the files, and another comparison of checksums
    could only find a defective disk.
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
    """Yield the damages of an entry: missing files, wrong sizes, wrong checksums.

    Args:
        entry: Its folder.
        contents: Its contents according to the manifest.
        all_checksums: Whether to read the user space too; otherwise only the modules are read.
    """
    for module in contents.modules:
        path = entry / module.path
        if not (contents.may_be_signed and _is_signed(path, module)):
            yield from _damage(entry, module, checksum=True)
    for file in contents.files:
        yield from _damage(entry, file, checksum=all_checksums)
    # The folder that modprobe gets: docs/decisions/24-kubernetes.md.
    shown = "host/" if contents.is_for_kmm else ""
    needed = [f"lib/modules/{contents.kernel}/modules.dep"]
    needed += [module.path for module in contents.modules if shown]
    for name in needed:
        if not (entry / f"{shown}{name}").is_file():
            yield f"{shown}{name} is missing"


def _is_signed(path: Path, module: ModuleFile) -> bool:
    """Return whether a file is the module with an appended signature."""
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
