"""The loader: a shell script that loads one artifact's modules, at boot and for every command.

It needs sh, kmod, awk and coreutils, and no Python. In a store entry it lies beside what it loads,
so that the one rename that switches a kernel to another artifact switches the loader too. System
extensions have the same script.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path, PurePosixPath

from provision.documents import load_json
from provision.errors import ProvisionError, UsageError
from provision.files import remove_drafts, sha256_file, write_atomic
from provision.kmod.device_setup import firmware_names
from provision.kmod.module_file import content_digest, read_identity, read_signature
from provision.manifest import Manifest, Module
from provision.shipped import templates_dir

# Module parameters: by module, then by name.
Parameter = str | int | bool
Options = Mapping[str, Mapping[str, Parameter]]
# Files of an entry that a host adds and no manifest names: the script, and links by which builds
# of kmod that read DIR/usr/lib/modules find the modules, too.
LOADER = PurePosixPath("load")
MODULES_LINKS = (PurePosixPath("usr/lib/modules"), PurePosixPath("host/usr/lib/modules"))
_TEMPLATE = PurePosixPath("loader/load.sh.j2")
# Increased when this module puts other values into the same template.
_FORMAT = 2
# Characters that a shell would not take literally in a file name or pattern.
_NO_PATTERN = re.compile(r"[^A-Za-z0-9._/*?\[\]!-]")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a loader and its artifact are.

    Attributes:
        entry: The artifact's folder, as a path of the host.
        vendor_file: A vendor file that comes and goes with the modules; None: something else
            writes it.
        has_firmware: Whether the firmware lies where the kernel looks for it anyway.
    """

    entry: PurePosixPath
    vendor_file: PurePosixPath | None = None
    has_firmware: bool = False


def write_loader(entry: Path, options: Options, *, root: Path = Path("/")) -> bool:
    """Write the loader of a store entry, unless it is there already.

    Args:
        entry: The entry's folder.
        options: Parameters of its modules.
        root: Root of the host.

    Returns:
        Whether anything changed.

    Raises:
        ProvisionError: Its manifest can't be read, or it has no module with options.
        OSError: The store can't be written.
    """
    linked = link_modules(entry)
    if is_written(entry, options, root=root):
        return linked
    remove_drafts(entry / LOADER)
    manifest = load_json(entry / "driver/manifest.json", Manifest)
    return (
        write_atomic(entry / LOADER, loader_script(entry, manifest, _place(entry, root), options))
        or linked
    )


def _place(entry: Path, root: Path) -> Place:
    return Place(PurePosixPath("/", entry.resolve().relative_to(root.resolve())))


def is_written(entry: Path, options: Options, *, root: Path = Path("/")) -> bool:
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
        manifest: Its manifest.
        place: Where it is when the loader runs.
        options: Parameters of its modules.

    Raises:
        UsageError: Options name a module that it does not have; or a value can't stand in a script.
    """
    options = options or {}
    parameters = parameters_of(manifest, options)
    own = {module.name for module in manifest.modules}
    optional = manifest.host.optional
    order = load_order(manifest)
    needed = [n for m in order if m.name not in optional for n in m.depends if n not in own]
    nice = [n for m in order for n in m.depends if n not in own and n not in needed]
    wanted = [
        {
            "name": module.name,
            "words": " ".join(
                _shell_word(word)
                for word in (
                    module.name,
                    "optional" if module.name in optional else "required",
                    *_identity(folder / module.path),
                    module.path,
                    _checksum(folder / module.path, module),
                    *parameters.get(module.name, []),
                )
            ),
        }
        for module in order
    ]
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - a boot finds the loader in place

    environment = Environment(
        loader=FileSystemLoader(templates_dir()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - a script, not HTML
    )
    environment.filters["shell"] = _shell_word
    environment.filters["shell_pattern"] = _shell_pattern
    return environment.get_template(str(_TEMPLATE)).render(
        tag=_tag(place, options),
        driver=manifest.pin.driver.name,
        version=manifest.pin.driver.version,
        kernel=manifest.pin.kernel.release,
        entry=str(place.entry),
        modules="" if manifest.kmm is None else "/host",
        conflicts=manifest.host.conflicts,
        needed=sorted(set(needed)),
        nice_to_have=sorted(set(nice)),
        wanted=wanted,
        firmware=[] if place.has_firmware else sorted(firmware_names(manifest).items()),
        nodes=manifest.host.nodes,
        vendor_file=str(place.vendor_file) if place.vendor_file else "",
    )


def load_order(manifest: Manifest) -> list[Module]:
    """Return the modules of an artifact, each after those of them that it depends on."""
    modules = {module.name: module for module in manifest.modules}
    depends = {name: [d for d in m.depends if d in modules] for name, m in modules.items()}
    return [modules[name] for name in TopologicalSorter(depends).static_order()]


def parameters_of(manifest: Manifest, options: Options) -> dict[str, list[str]]:
    """Return each module's parameters as arguments of modprobe.

    Raises:
        UsageError: The artifact has no such module.
    """
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
    total.update(json.dumps([_FORMAT, str(place), given], sort_keys=True).encode())
    return f"loader {total.hexdigest()[:16]}"


def _identity(path: Path) -> tuple[str, str, str]:
    """Return a module's build id, checksum of the source, and version, as a loaded one has them."""
    try:
        build_id, info = read_identity(path)
    except (ProvisionError, OSError):
        # It is damaged, and the loader refuses it for its checksum.
        return "", "", ""
    srcversion, version = (next(iter(info.get(key, [])), "") for key in ("srcversion", "version"))
    return build_id.hex() if build_id else "", srcversion, version


def _checksum(path: Path, module: Module) -> str:
    """Return the sha256 that a module's file should have: the host may have signed it."""
    try:
        signature = read_signature(path)
        if signature is not None and content_digest(path, signature) == module.sha256:
            return sha256_file(path)
    except (OSError, ValueError):
        pass
    return module.sha256


def _shell_word(text: str) -> str:
    """Return a text as one word of a shell line.

    Raises:
        UsageError: It holds a control character, such as a line's end.
    """
    if not text.isprintable():
        raise UsageError(
            f"{text!r} can't stand in the loader's script: it holds a control character.",
            resolution="Correct the driver's options in provision.toml, or its recipe.",
        )
    return shlex.quote(text)


def _shell_pattern(text: str) -> str:
    """Return a glob as one word, in which only the glob's characters are special."""
    _shell_word(text)
    return _NO_PATTERN.sub(r"\\\g<0>", text)
