"""The artifact store: entries that are complete once they have their name, and who admitted them.

An entry never changes. A link is set when its artifact is complete and verified, so a boot may
follow it without asking anything else.

An artifact of an image that was not built here has a file with the key that signed the image, or
that none did: a part of the entry, so that it appears and goes with it. Keys are changed, and one
command may have allowed what provision.toml does not. So this is looked at again when an artifact
is chosen. What is in use stays in use: a driver that fails to appear after a reboot would be a
worse answer to a changed key than a status that says so (docs/decisions/06-registries.md).
"""

import errno
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from provision.config import Config, TrustRule
from provision.documents import Frozen, parse_json
from provision.errors import NotFoundError, ProvisionError, choices, did_you_mean
from provision.files import (
    glob_in_root,
    in_root,
    remove_tree,
    switch_symlink,
    sync_directory,
    write_atomic,
)
from provision.host import STORE
from provision.host.facts import selinux
from provision.manifest import ADMISSION, Manifest
from provision.store.layout import Layout, changing
from provision.trust import fingerprints

_DIGITS = 12
_PARTIAL = ".partial-"
_REMOVED = ".removed-"
_REPLACED = ".replaced-"
_ENTRY = "entry"
# Files that are made durable at once.
_SYNCS = 8


def link_kernel(layout: Layout, release: str, short_digest: str) -> bool:
    """Let a kernel use an artifact from now on; return whether that changed anything."""
    return switch_symlink(layout.kernel_link(release), f"../{short_digest}")


def unlink_kernel(layout: Layout, release: str) -> bool:
    """Remove the link from a kernel to its artifact; return whether there was one."""
    link = layout.kernel_link(release)
    if not link.is_symlink():
        return False
    link.unlink()
    sync_directory(layout.kernels)
    return True


def linked_kernels(layout: Layout) -> dict[str, str]:
    """Return the short digest of the artifact of each kernel that has one, by release."""
    try:
        links = sorted(layout.kernels.iterdir())
    except FileNotFoundError:
        return {}
    found = {}
    for link in links:
        # A killed run leaves names that begin with a dot; another process may remove any link.
        with suppress(OSError):
            if link.is_symlink() and not link.name.startswith("."):
                found[link.name] = link.readlink().name
    return found


def entries(layout: Layout) -> tuple[str, ...]:
    """Return the short digests of all artifacts in a driver's part of the store."""
    try:
        folders = sorted(layout.folder.iterdir())
    except FileNotFoundError:
        return ()
    return tuple(path.name for path in folders if is_entry(path))


def is_entry(path: Path) -> bool:
    """Return whether a path has the name of an artifact's folder, and is one."""
    name = path.name
    return (
        len(name) == _DIGITS
        and set(name) <= set("0123456789abcdef")
        and path.is_dir()
        and not path.is_symlink()
    )


@contextmanager
def drafted(layout: Layout, short_digest: str, fill: Callable[[Path], object]) -> Iterator[Path]:
    """Yield a folder that is filled and durable, for ``adopt``; it is removed if it is not adopted.

    Filling takes a while, so the driver's lock is not held. The folder has a lock of its own, which
    ends with this process; it distinguishes the folder from one that a killed run left.
    """
    with changing(layout):
        layout.folder.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{short_digest}-", dir=layout.folder))
        handle = _own(partial)
    draft = partial / _ENTRY
    try:
        fill(draft)
        sync_tree(draft)
        yield draft
    finally:
        try:
            shutil.rmtree(partial, ignore_errors=True)
        finally:
            os.close(handle)


def adopt(layout: Layout, short_digest: str, draft: Path, *, replace: bool) -> bool:
    """Make a draft the entry of its name; the caller holds the driver's lock.

    Returns:
        Whether anything changed: without ``replace``, an existing entry stays.
    """
    entry = layout.entry(short_digest)
    if entry.exists():
        if not replace:
            return False
        # A folder can't be renamed over one that is not empty. If this ends between the two steps,
        # what the entry was is put back by ``remove_leftovers``: it may be all that a boot has.
        remove_leftovers(layout)
        entry.rename(layout.folder / f"{_REPLACED}{short_digest}")
    draft.rename(entry)
    sync_directory(layout.folder)
    remove_leftovers(layout)
    return True


def remove(layout: Layout, short_digest: str) -> int:
    """Remove an entry under the driver's lock; return the bytes that this freed."""
    entry = layout.entry(short_digest)
    found = (path.lstat() for path in entry.rglob("*") if not path.is_dir())
    # Files of the user space may be hard links, which other entries keep.
    size = sum(status.st_size for status in found if status.st_nlink == 1)
    # It is renamed first: a half-removed entry must not look like an entry.
    removed = layout.folder / f"{_REMOVED}{short_digest}"
    entry.rename(removed)
    sync_directory(layout.folder)
    shutil.rmtree(removed)
    return size


def remove_leftovers(layout: Layout) -> list[Path]:
    """Remove what killed runs left behind; the caller holds the driver's lock.

    An entry that was being replaced is put back, unless the new one is there.

    Drafts of entries are filled without that lock; one that a process is filling stays.
    """
    for replaced in sorted(layout.folder.glob(f"{_REPLACED}*")):
        entry = layout.folder / replaced.name.removeprefix(_REPLACED)
        if not entry.exists():
            replaced.rename(entry)
            sync_directory(layout.folder)
    found = leftovers(layout)
    for path in found:
        remove_tree(path)
    return found


def leftovers(layout: Layout) -> list[Path]:
    """Return what killed runs left behind, and no process is filling."""
    patterns = [
        (layout.folder, f"{_PARTIAL}*"),
        (layout.folder, f"{_REPLACED}*"),
        (layout.folder, f"{_REMOVED}*"),
        (layout.folder, f".{layout.current.name}.*"),
        (layout.folder, f".{layout.previous.name}.*"),
        (layout.folder, f".{layout.record.name}.*"),
        (layout.folder, f".{layout.state.name}.*"),
        (layout.folder, f".{layout.serials.name}.*"),
        (layout.kernels, ".*"),
        # Drafts of loaders, in entries that may be in use.
        (layout.folder, f"{'[0-9a-f]' * 12}/.load.*"),
        *(
            (in_root(layout.root, path.parent.relative_to(layout.root)), f".{path.name}.*")
            for path in layout.managed
        ),
    ]
    found = [path for folder, pattern in patterns for path in sorted(folder.glob(pattern))]
    return [path for path in found if not _is_owned(path)]


def stored_drivers(root: Path) -> list[str]:
    """Return the drivers that have an artifact in use in a host's store."""
    links = glob_in_root(root, f"{STORE}/*/current")
    return [link.parent.name for link in links if in_root(root, link, follow=False).is_symlink()]


def not_installed(layout: Layout, named: Iterable[str] = ()) -> NotFoundError:
    """Return the error for a driver without an artifact in use, whose name may be misspelt.

    Args:
        named: The drivers that provision.toml names.
    """
    name, named = layout.driver, tuple(named)
    known = dict.fromkeys((*named, *stored_drivers(layout.root)))
    resolution = choices(name, known)
    if name in known:
        resolution = "Install it: provision apply"
    elif not did_you_mean(name, known):
        naming = "Name it in /etc/provision/provision.toml, and run: provision apply"
        resolution = f"{resolution} {naming}" if known else naming
    return NotFoundError(
        f"The driver '{name}' is not installed under '{layout.root}'.", resolution=resolution
    )


def current_entry(layout: Layout, named: Iterable[str] = ()) -> Path:
    """Return the folder of the artifact in use; arguments as ``not_installed``."""
    entry = layout.linked(layout.current)
    if entry is None:
        raise not_installed(layout, named)
    return entry


def sync_tree(folder: Path) -> None:
    """Make a folder and everything in it durable, before it is renamed."""
    paths = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    # The file system writes its journal once for several files at once.
    with ThreadPoolExecutor(_SYNCS) as pool:
        list(pool.map(_sync_file, (path for path in paths if not path.is_symlink())))
    for parent, _folders, _names in os.walk(folder):
        sync_directory(Path(parent))


def _sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _own(folder: Path) -> int:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def _is_owned(path: Path) -> bool:
    if not path.name.startswith(_PARTIAL) or not path.is_dir():
        return False
    try:
        handle = _own(path)
    except BlockingIOError:
        return True
    os.close(handle)
    return False


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
    for path in (layout.folder, entry, *entry.rglob("*")):
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
            why = _CANNOT[error.errno]
            logging.getLogger(__name__).warning("%s is not labelled %s: %s", path, kind, why)
            unknown.add(kind)


class Admission(Frozen):
    """Who vouches for an artifact that was not built here."""

    # The image that it came from.
    image: str
    # Its repository, which selects the rule of [trust].
    repository: str
    # Name and fingerprint of the key that signed the image; None: nothing was verified.
    key: str | None = None
    fingerprint: str | None = None
    # Unix time of the signature.
    serial: int | None = None
    # Whether an option of one command allowed it: --public-key or --insecure.
    once: bool = False

    @property
    def by(self) -> str:
        """The key, for people."""
        return f"{self.key} ({self.fingerprint})"


class UnreadableAdmissionError(ProvisionError):
    """The record of who admitted an artifact to the store can't be read."""


def record_admission(entry: Path, admission: Admission | None) -> None:
    """Record who admitted an artifact to the store; None: it was built here.

    The entry is not complete yet. What the image has in this place goes.
    """
    if admission is None:
        (entry / ADMISSION).unlink(missing_ok=True)
    else:
        write_atomic(entry / ADMISSION, f"{admission.model_dump_json(indent=2)}\n")


def read_admission(entry: Path) -> Admission | None:
    """Return who admitted an artifact to the store; None: it was built here.

    Raises:
        UnreadableAdmissionError: The record can't be read.
    """
    path = entry / ADMISSION
    try:
        return parse_json(path.read_text(), Admission, name=str(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ProvisionError) as error:
        raise UnreadableAdmissionError(
            f"'{path}' can't be read, which says who admitted the artifact to the store.",
            resolution=f"Make the artifact again: mv {entry} {entry}.unreadable; provision apply",
            details=str(error),
        ) from error


def unsigned_image(entry: Path) -> str | None:
    """Return the image that an artifact came from, if no signature of it was verified."""
    try:
        admission = read_admission(entry)
    except UnreadableAdmissionError:
        return None
    return admission.image if admission and admission.fingerprint is None else None


def distrust(config: Config, root: Path, driver: str, entry: Path) -> str | None:
    """Return why a host would not admit an artifact to its store today; None: it would."""
    try:
        admission = read_admission(entry)
    except UnreadableAdmissionError as error:
        return error.message
    if admission is None:
        return None
    rule = config.trust.rule(admission.repository, driver)
    return None if rule.insecure else _wrong(admission, rule, root)


def _wrong(admission: Admission, rule: TrustRule, root: Path) -> str | None:
    if admission.fingerprint is None:
        how = "--insecure allowed it once" if admission.once else "[trust] allowed it then"
        return f"it came from the unsigned image {admission.image}: {how}"
    trusted = fingerprints(in_root(root, rule.keys)) if rule.keys else frozenset()
    if admission.fingerprint not in trusted:
        how = "--public-key named once" if admission.once else "[trust] no longer has"
        return f"it was signed by {admission.by}, a key that {how}"
    if admission.serial is not None and admission.serial < rule.oldest:
        return f"{admission.by} signed it before the day of [trust] not_before"
    return None
