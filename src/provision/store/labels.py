"""SELinux labels of the store: they decide what containers may use and what the kernel may load.

A container's process (``container_t``) reads files of the type ``container_ro_file_t`` and hardly
any other files of a host. Engines may mount such files into it, and follow links of that type.
Under the reference policy (Debian's), the first program of a container must have the type
``container_file_t``. The types are those of container-selinux, as in Fedora's and Debian 13's
policy. Nothing outside of the store is labelled.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from provision.host.facts import selinux
from provision.manifest import Manifest
from provision.store.layout import Layout

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

    Links that are made in the folder later get the folder's label.
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
