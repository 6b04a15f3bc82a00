"""The loader: a shell script that loads one artifact's modules, at boot and for every command.

It needs sh, kmod, awk and coreutils, and no Python. In a store entry it lies beside what it loads,
so that the one rename that switches a kernel to another artifact switches the loader too. System
extensions have the same script.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from provision.documents import load_json
from provision.errors import ProvisionError, UsageError
from provision.files import (
    remove_drafts,
    sha256_file,
    templates_dir,
    write_atomic,
)
from provision.kmod.modules import content_digest, read_identity, read_signature
from provision.loader_script import Identity, Place, in_order, loader
from provision.manifest import Manifest, Module
from provision.progress import Note, report

# The firmware of an artifact lies in the store and not below /lib. The kernel looks into one folder
# of our choice before its own: https://docs.kernel.org/driver-api/firmware/fw_search_path.html.
# That folder is made again at each load, on a file system that a reboot empties, and holds links
# into the store.
FIRMWARE_FOLDER = PurePosixPath("run/provision/firmware")
FIRMWARE_PARAMETER = PurePosixPath("sys/module/firmware_class/parameters/path")
_PREFIXES = ("/usr/lib/firmware/", "/lib/firmware/")


def firmware_names(manifest: Manifest) -> dict[str, str]:
    """Return the path in the artifact of each firmware file, by the name that the kernel uses."""
    return {
        file.path.removeprefix(prefix): f"driver{file.path}"
        for file in manifest.files
        for prefix in _PREFIXES
        if file.kind == "firmware" and file.path.startswith(prefix)
    }


# Module parameters: by module, then by name.
Parameter = str | int | bool
Options = Mapping[str, Mapping[str, Parameter]]
# Files of an entry that a host adds and no manifest names: the script, and links by which builds
# of kmod that read DIR/usr/lib/modules find the modules, too.
LOADER = PurePosixPath("load")
MODULES_LINKS = (PurePosixPath("usr/lib/modules"), PurePosixPath("host/usr/lib/modules"))
_TEMPLATE = PurePosixPath("loader/load.sh")
# Increased when this module puts other values into the same template.
_FORMAT = 3


def write_loader(entry: Path, options: Options, *, root: Path) -> bool:
    """Write the loader of a store entry; return whether that changed anything."""
    linked = link_modules(entry)
    if is_written(entry, options, root=root):
        return linked
    remove_drafts(entry / LOADER)
    manifest = load_json(entry / "driver/manifest.json", Manifest)
    place = _place(entry, root)._replace(firmware=firmware_names(manifest))
    return write_atomic(entry / LOADER, loader_script(entry, manifest, place, options)) or linked


def try_write_loader(entry: Path, options: Options, *, root: Path) -> None:
    """Write the loader of a store entry; that it can't be written costs nothing before a boot."""
    try:
        write_loader(entry, options, root=root)
    except (OSError, ProvisionError) as error:
        report(Note(f"The loader of '{entry}' can't be written: {error}"))


def _place(entry: Path, root: Path) -> Place:
    return Place(str(PurePosixPath("/", entry.resolve().relative_to(root.resolve()))))


def is_written(entry: Path, options: Options, *, root: Path) -> bool:
    """Return whether an entry has the loader that ``write_loader`` would write."""
    try:
        with (entry / LOADER).open("rb") as stream:
            return _tag(_place(entry, root), options).encode() in stream.read(256)
    except OSError:
        return False


def link_modules(entry: Path) -> bool:
    """Offer an artifact's modules at ``usr/lib/modules``, too; return whether anything changed.

    Some builds of kmod (SUSE's, Fedora's) look for modules there, below the folder of ``-d``.
    """
    changed = False
    for link in MODULES_LINKS:
        folder = entry / link.parent
        if (entry / link).is_symlink() or not (folder.parent.parent / "lib/modules").is_dir():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        (entry / link).symlink_to("../../lib/modules")
        changed = True
    return changed


def remove_host_files(entry: Path) -> None:
    """Remove what the host has added to a copy of an entry, so that it is as it was built."""
    (entry / LOADER).unlink(missing_ok=True)
    for link in MODULES_LINKS:
        if (entry / link).is_symlink():
            (entry / link).unlink()
            # Nothing else is built there.
            for folder in (link.parent, link.parent.parent):
                (entry / folder).rmdir()


def loader_script(
    folder: Path, manifest: Manifest, place: Place, options: Options | None = None
) -> str:
    """Return the loader of an artifact.

    Args:
        folder: The artifact's folder here, whose modules are read.
    """
    options = options or {}
    identities = {
        module.name: Identity(
            *_identity(folder / module.path), _checksum(folder / module.path, module)
        )
        for module in manifest.modules
    }
    try:
        return loader(
            (templates_dir() / _TEMPLATE).read_text(),
            manifest.model_dump(mode="json"),
            place,
            identities,
            tag=_tag(place, options),
            parameters=parameters_of(manifest, options),
        )
    except ValueError as error:
        raise UsageError(
            str(error),
            resolution="Correct the driver's options in provision.toml, or its recipe.",
        ) from error


def load_order(manifest: Manifest) -> list[Module]:
    """Return the modules of an artifact, each after those of them that it depends on."""
    modules = {module.name: module for module in manifest.modules}
    order = in_order([module.model_dump() for module in manifest.modules])
    return [modules[module["name"]] for module in order]


def parameters_of(manifest: Manifest, options: Options) -> dict[str, list[str]]:
    """Return each module's parameters as arguments of modprobe."""
    known = {module.name for module in manifest.modules}
    given = {module.replace("-", "_"): values for module, values in options.items()}
    if unknown := sorted(set(given) - known):
        raise UsageError(
            f"There are options for the module '{unknown[0]}', which {manifest.pin.driver.name}"
            " does not have.",
            resolution=f"Its modules are {', '.join(sorted(known))}.",
        )
    return {
        module: [f"{name}={_text(value)}" for name, value in values.items()]
        for module, values in given.items()
    }


def _text(value: Parameter) -> str:
    text = str(int(value)) if isinstance(value, bool) else str(value)
    # The kernel splits parameters at blanks outside of quotes: kernel/params.c, lib/cmdline.c.
    return f'"{text}"' if any(character.isspace() for character in text) else text


def _tag(place: Place, options: Mapping[str, Mapping[str, object]]) -> str:
    """Return the line by which a loader that is up to date is recognised."""
    total = hashlib.sha256((templates_dir() / _TEMPLATE).read_bytes())
    given = {module: dict(values) for module, values in options.items()}
    total.update(
        json.dumps([_FORMAT, place.entry, place.vendor_file, given], sort_keys=True).encode()
    )
    return f"loader {total.hexdigest()[:16]}"


def _identity(path: Path) -> tuple[str, str, str]:
    """Return a module's build id, checksum of the source, and version, as a loaded one has them."""
    try:
        build_id, info = read_identity(path)
    except (ProvisionError, OSError):
        # It is damaged, and the loader refuses it for its checksum.
        return "", "", ""
    text = build_id.hex() if build_id else ""
    return text, info.get("srcversion", ""), info.get("version", "")


def _checksum(path: Path, module: Module) -> str:
    """Return the sha256 that a module's file should have: the host may have signed it."""
    try:
        signature = read_signature(path)
        if signature is not None and content_digest(path, signature) == module.sha256:
            return sha256_file(path)
    except (OSError, ValueError):
        pass
    return module.sha256
