"""The configuration made from a manifest: oci-decorator's, the host's loader's, modprobe's."""

from __future__ import annotations

import json
from pathlib import PurePosixPath

from provision.manifest import FileKind, Manifest
from provision.store.layout import Layout

# The vendor config's lists, and the kind of file that each holds.
_LISTS: dict[str, FileKind] = {
    "binaries": "binary",
    "libraries": "library",
    "miscellaneous": "miscellaneous",
}
# Of all architectures that a Pin may name.
_NATIVE_CLASS = 64


def vendor_config(layout: Layout, manifest: Manifest) -> str:
    """Return the text of the vendor config: what a container gets, from what was really built."""
    container = manifest.container
    document = {
        "version": manifest.pin.driver.version,
        "log_level": container.log_level,
        "activation_flag": container.activation_flag,
        "driver_feature": list(container.driver_feature),
        "root": str(layout.driver_root),
        **({"interfaces": list(container.interfaces)} if container.interfaces else {}),
        **({"units": container.units} if container.units else {}),
        "inventory": {name: _feature(manifest, name) for name in container.features},
        "sonames": _sonames(manifest),
    }
    return json.dumps(document, indent=2) + "\n"


def loader_config(layout: Layout, manifest: Manifest) -> str | None:
    """Return the text of the host's ld.so.conf.d file; None for a driver without libraries.

    Source: ldconfig(8): one folder a line; ``#`` begins a comment.
    """
    folders = sorted(
        {PurePosixPath(file.path).parent for file in manifest.files if file.kind == "library"}
    )
    if not folders:
        return None
    lines = [str(layout.driver_root / folder.relative_to("/")) for folder in folders]
    return "\n".join([f"# Libraries of {layout.driver}, written by provision.", *lines, ""])


def modprobe_config(layout: Layout, manifest: Manifest) -> str | None:
    """Return the text of the host's modprobe.d file; None where nothing is in the driver's way.

    Source: modprobe.d(5); a blacklisted module is not loaded for a device, only by its name.
    """
    conflicts = manifest.host.conflicts
    if not conflicts:
        return None
    head = f"# They hold the hardware of {layout.driver}. Written by provision."
    return "\n".join([head, *(f"blacklist {name}" for name in conflicts), ""])


def _sonames(manifest: Manifest) -> dict[str, str]:
    """Return the sonames of the architecture's own libraries, which a start needn't read then."""
    named = [file for file in manifest.files if file.features and file.elf_class == _NATIVE_CLASS]
    return {file.path: file.soname for file in named if file.soname is not None}


def _feature(manifest: Manifest, name: str) -> dict[str, list[str]]:
    feature = manifest.container.features[name]
    lists = {
        key: sorted(
            file.path for file in manifest.files if file.kind == kind and name in file.features
        )
        for key, kind in _LISTS.items()
    }
    return {"devices": list(feature.devices), "directories": list(feature.directories), **lists}
