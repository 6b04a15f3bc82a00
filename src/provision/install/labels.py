"""SELinux labels of the store's entries: what containers may read, and what the kernel may load.

A container's process (``container_t``) reads and executes files of the type ``container_ro_file_t``
and next to nothing else of a host; a runtime may mount those into it. The types are those of
container-selinux, as in Fedora's and Debian 13's policy. Nothing outside of the store is labelled.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from provision.host.security import selinux

# xattr(7); the value ends with a NUL: setfilecon(3).
_ATTRIBUTE = "security.selinux"
_CONTEXT = "system_u:object_r:{}:s0\0"
# The parts of an entry, and the type of each; manifest.json keeps what its folder gives it.
_TYPES = {"driver": "container_ro_file_t", "lib/modules": "modules_object_t"}
# EINVAL: the policy has no such type, and so no containers that it confines.
_CANNOT = {
    errno.EINVAL: "the policy lacks the type",
    errno.ENOTSUP: "the file system has no labels",
}

log = logging.getLogger(__name__)


def label_entry(entry: Path, root: Path) -> None:
    """Label an entry of the store, where the host has SELinux.

    Args:
        entry: The entry, complete.
        root: Root of the host that it is for.

    Raises:
        OSError: This process may not set labels.
    """
    if selinux(root) not in {"enforcing", "permissive"}:
        return
    for part, kind in _TYPES.items():
        context = _CONTEXT.format(kind).encode()
        try:
            for path in _tree(entry / part):
                os.setxattr(path, _ATTRIBUTE, context, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            reason = _CANNOT[error.errno]
            log.warning("%s is not labelled %s: %s", entry / part, kind, reason)


def _tree(folder: Path) -> Iterator[Path]:
    """Return a folder and everything below it; nothing if it is missing."""
    if folder.is_dir():
        yield folder
    for parent, folders, names in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *names))
