"""Drafts of store entries: completed from the store, verified, signed and labelled.

User space that the store has already is taken from there instead of being pulled.

The manifest of an artifact names the sha256 of each file. It lies in the last layer of the image,
with the modules. The store may have the other files that it names, because the artifacts of a
driver version share their user space for all kernels. Files are linked and not copied, because
entries never change. They are verified with the rest of the artifact before it becomes an entry.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from provision.build.workspace import Settings
from provision.host.facts import selinux
from provision.kmod.loader import link_modules
from provision.kmod.module_signatures import sign_modules
from provision.kmod.verify import stored_manifest, verify_artifact
from provision.manifest import DriverFile, Manifest
from provision.progress import Note, report
from provision.store.entries import entries
from provision.store.layout import Layout
from provision.store.locks import changing

_USERSPACE = "driver"


def finish_draft(
    settings: Settings, draft: Path, name: str, *, pin_label: str, signs: bool
) -> None:
    """Verify, sign and label an unpacked image, before it becomes an entry of the store.

    Args:
        signs: Whether the host's key may sign its modules, because it was built here or its
            signature was verified.
    """
    manifest = verify_and_sign(settings, draft, name, pin_label=pin_label, signs=signs)
    link_modules(draft)
    label_entry(draft, manifest, Layout(settings.root, manifest.pin.driver.name))


def verify_and_sign(
    settings: Settings, folder: Path, name: str, *, pin_label: str, signs: bool
) -> Manifest:
    """Verify an unpacked image, and sign its modules as this host does."""
    manifest = verify_artifact(folder, pin_label=pin_label).require_whole(f"The image '{name}'")
    if signs:
        sign_modules(folder, manifest, settings.config.signing, root=settings.root)
    return manifest


def complete_from_store(layout: Layout, name: str, draft: Path) -> bool:
    """Complete the user space of a draft from the store, if the store has all missing files.

    Args:
        name: The entry that the draft becomes; no file is taken from it.

    Returns:
        Whether the draft has every file of its manifest now; if not, nothing was added.
    """
    manifest = stored_manifest(draft)
    # Else it is in another layer, or damaged; the whole artifact is verified later.
    if not manifest or not all((draft / one.path).is_file() for one in manifest.modules):
        return False
    lacking = [file for file in manifest.files if not os.path.lexists(_place(draft, file))]
    if not lacking:
        return True
    with changing(layout):
        sources = _sources(layout, name, lacking)
        if sources is None:
            return False
        for file in lacking:
            target = _place(draft, file)
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _link(sources[file.path], target)
    size = sum(file.size or 0 for file in lacking)
    report(Note(f"{len(lacking)} files ({size / 1e6:.1f} MB) are in the store, and not pulled"))
    return True


def _place(entry: Path, file: DriverFile) -> Path:
    return entry / _USERSPACE / file.path.lstrip("/")


def _sources(layout: Layout, name: str, lacking: list[DriverFile]) -> dict[str, Path] | None:
    found: dict[str, Path] = {}
    for entry, manifest in _entries(layout, name):
        theirs = {_identity(file) for file in manifest.files}
        for file in lacking:
            if file.path not in found and _identity(file) in theirs and _is_there(entry, file):
                found[file.path] = _place(entry, file)
        if len(found) == len(lacking):
            return found
    return None


def _identity(file: DriverFile) -> tuple[str | None, ...]:
    """Return the fields that a linked file must share; SELinux labels depend on the kind."""
    return (file.path, file.kind, file.sha256, file.mode, file.link)


def _is_there(entry: Path, file: DriverFile) -> bool:
    path = _place(entry, file)
    try:
        if file.link is not None:
            return path.is_symlink() and str(path.readlink()) == file.link
        return not path.is_symlink() and path.stat().st_size == file.size
    except OSError:
        return False


def _entries(layout: Layout, name: str) -> Iterator[tuple[Path, Manifest]]:
    """Yield a driver's entries with their manifests, the one that is in use first."""
    current = layout.linked(layout.current)
    for digest in sorted(entries(layout), key=lambda one: current is None or one != current.name):
        path = layout.entry(digest)
        if digest != name and (manifest := stored_manifest(path)):
            yield path, manifest


def _link(source: Path, target: Path) -> None:
    if source.is_symlink():
        # Its target was checked when it was unpacked: it does not lead out of the artifact.
        target.symlink_to(source.readlink())
        return
    try:
        target.hardlink_to(source)
    except OSError:
        # The file has too many links, or the file system has none.
        shutil.copy2(source, target)


# xattr(7); the value ends with a NUL: setfilecon(3).
_ATTRIBUTE = "security.selinux"
_CONTEXT = "system_u:object_r:{}:s0\0"
_READABLE = "container_ro_file_t"
_PROGRAM = "container_file_t"
_MODULES = "modules_object_t"
# EINVAL: the policy has no such type, and so no containers that it confines.
_CANNOT = {
    errno.EINVAL: "the policy lacks the type",
    errno.ENOTSUP: "the file system has no labels",
}

log = logging.getLogger(__name__)


def label_entry(entry: Path, manifest: Manifest, layout: Layout) -> None:
    """Label an entry of the store and its future folder, where the host has SELinux.

    Labels decide what containers may use and what the kernel may load. A container's process
    (``container_t``) reads files of the type ``container_ro_file_t`` and hardly any other files of
    a host. Engines may mount such files into it, and follow links of that type. Under the reference
    policy (Debian's), the first program of a container must have the type ``container_file_t``. The
    types are those of container-selinux. Links that are made in the folder later get its label.
    """
    if selinux(layout.root) not in {"enforcing", "permissive"}:
        return
    programs = {entry / "driver" / f.path.lstrip("/") for f in manifest.files if f.kind == "binary"}
    modules = (entry / "lib/modules", entry / "host/lib/modules")
    unknown: set[str] = set()
    for path in (layout.folder, *_tree(entry)):
        if path in programs:
            kind = _PROGRAM
        else:
            kind = _MODULES if any(map(path.is_relative_to, modules)) else _READABLE
        if kind in unknown:
            continue
        try:
            context = _CONTEXT.format(kind).encode()
            os.setxattr(path, _ATTRIBUTE, context, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            log.warning("%s is not labelled %s: %s", path, kind, _CANNOT[error.errno])
            unknown.add(kind)


def _tree(folder: Path) -> Iterator[Path]:
    yield folder
    for parent, folders, names in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *names))
