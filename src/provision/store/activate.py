"""Activates a store entry, and writes the configuration that is made from its manifest.

Every step can be repeated, and each run decides on all steps again. So the next run completes what
a killed run left.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from provision.errors import NotFoundError, ProvisionError
from provision.files import glob_in_root, in_root, is_writable, switch_symlink
from provision.host import STORE
from provision.host.boot import IF_IT_COMES_BACK, in_tree, make_again
from provision.manifest import FileKind, ForeignRoot, Manifest, load_manifest
from provision.progress import Note, report
from provision.run import run
from provision.store.entries import linked_kernels, remove_leftovers, unlink_kernel
from provision.store.layout import (
    DRACUT_CONFIGS,
    ENGINES,
    PROGRAMS,
    UNITS,
    Layout,
    changing,
    switching,
)
from provision.store.managed_files import Change, ManagedFiles, Record, refuse_foreign
from provision.store.state import refuse_newer

# The vendor config's lists, and the kind of file that each holds.
_LISTS: dict[str, FileKind] = {
    "binaries": "binary",
    "libraries": "library",
    "miscellaneous": "miscellaneous",
}
# Of all architectures that a Pin may name.
_NATIVE_CLASS = 64
BOOT_UNIT = "provision-boot.service"
# Begins the line of modprobe.d's file with the driver's own modules.
OWN_MODULES = "# its own: "
_FOREIGN = (
    "Move your file to another name, or run 'provision install IMAGE --replace', which keeps a"
    " copy of it in the driver's part of the store (saved/)."
)


def vendor_config(layout: Layout, manifest: Manifest) -> str | None:
    """Return the text of the vendor config, which says what a container gets.

    It is made from the manifest, which lists what was really built. None for a driver that no
    container asks for.
    """
    container = manifest.container
    if container.activation_flag is None:
        return None
    return container.vendor_file(
        manifest.pin.driver.version,
        {name: _feature(manifest, name) for name in container.features},
        root=str(layout.driver_root),
        sonames=_sonames(manifest),
    )


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


def modprobe_config(
    driver: str, *, conflicts: Iterable[str], own: Iterable[str] = ()
) -> str | None:
    """Return the text of a modprobe.d file; None if it would keep no module from being loaded.

    udev would load copies of the driver's modules in /lib/modules before the ones in the store, and
    modules that conflict with them.
    Source: modprobe.d(5); a blacklisted module is not loaded for a device, only by its name.

    Args:
        own: Its own modules. Where a kernel has no artifact, the boot unit loads the copies: it
            finds their names in the second line.
    """
    lines = [f"blacklist {name}" for name in (*own, *conflicts)]
    if not lines:
        return None
    head = f"# Not for udev: provision loads {driver} from its store. Written by provision."
    return "\n".join([head, f"{OWN_MODULES}{' '.join(own)}", *lines, ""])


def dracut_config(layout: Layout, hidden: Sequence[str]) -> str | None:
    """Return the text of the host's dracut.conf.d file; None where there is no dracut.

    An initramfs that is not for one host only has nothing of /etc/modprobe.d.
    Source: dracut.conf(5), ``omit_drivers``.
    """
    if not hidden or not in_root(layout.root, DRACUT_CONFIGS).is_dir():
        return None
    head = f"# Not for udev: provision loads {layout.driver} from its store. Written by provision."
    names = " ".join(hidden)
    return f'{head}\nomit_drivers+=" {names} "\n'


def root_mount(layout: Layout, root: ForeignRoot) -> str:
    """Return the text of the unit that offers the driver's root to other systems.

    systemd mounts it, because the agent's own units may not: it would last only as long as they do.
    Source: systemd.mount(5).
    """
    source = layout.driver_root
    wants = f"Wants={layout.ready_unit.name}\n" if root.ready_file else ""
    return f"""\
# Where other systems look for {layout.driver}. Written by provision.
[Unit]
Description=Root filesystem of the driver {layout.driver}
ConditionPathIsDirectory={source}
RequiresMountsFor=/{STORE}
After={BOOT_UNIT}
Before={" ".join(ENGINES)}
{wants}
[Mount]
What={source}
Where={root.path}
Type=none
Options=bind,ro,nosuid,nodev
LazyUnmount=yes

[Install]
WantedBy=multi-user.target
"""


def ready_service(layout: Layout, root: ForeignRoot) -> str:
    """Return the text of the unit that writes a root's ``ready_file``, and removes it with it."""
    mount = layout.mount_unit(root.path).name
    lines = " ".join(f'"{line}"' for line in root.ready_lines)
    file = root.ready_file
    write = f'mkdir -p "$(dirname {file})" && printf "%%s\\\\n" {lines} >{file}'
    return f"""\
# Tells other systems that {layout.driver} is at {root.path}. Written by provision.
[Unit]
Description=Readiness of the driver {layout.driver}
After={mount} {BOOT_UNIT}
PartOf={mount}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c '{write}'
ExecStop=/bin/rm -f {file}
"""


def _root_texts(layout: Layout, root: ForeignRoot | None) -> dict[Path, str]:
    if root is None:
        return {}
    texts = {layout.mount_unit(root.path): root_mount(layout, root)}
    if root.ready_file:
        texts[layout.ready_unit] = ready_service(layout, root)
    return texts


def _root_changes(
    layout: Layout, managed: ManagedFiles, record: Record, manifest: Manifest | None
) -> list[Change]:
    """Return the changes that offer the driver's root to other systems, or no longer do.

    They come after the switch to the entry, from which it is mounted.
    """
    wanted = manifest.host.root if manifest else None
    texts = _root_texts(layout, wanted)
    earlier = [
        path
        for path in (layout.root / name[1:] for name in record.files)
        if path.suffix == ".mount" or path == layout.ready_unit
    ]
    changes: list[Change] = []
    for path in (*texts, *(path for path in earlier if path not in texts)):
        found = managed.file_changes(record, path, texts.get(path))
        if path not in texts and any(change.kind == "save" for change in found):
            continue
        changes += found
        if path.suffix != ".mount":
            continue
        link = in_root(layout.root, UNITS / "multi-user.target.wants", follow=False) / path.name
        if path in texts and not link.is_symlink():
            changes.append(Change("switch", link, f"../{path.name}"))
        elif path not in texts and link.is_symlink():
            changes.append(Change("remove", link))
    short = manifest.pin.short_digest if manifest and wanted else None
    runs_systemd = _is_running_host(layout) and Path("/run/systemd/system").is_dir()
    mounts = [path for path in (*texts, *earlier) if path.suffix == ".mount"]
    if runs_systemd and mounts and (changes or record.mounted != short):
        change = Change("mount", mounts[0], short or "")
        # What a unit does at its end is known only as long as its file is there.
        changes = [*changes, change] if short else [change, *changes]
    return changes


def _mount(managed: ManagedFiles, change: Change) -> None:
    """Mount the root again from the entry in use, or no longer.

    Without waiting: at boot the mount comes after the unit in which this runs.
    """
    why = "offer the driver's root to other systems"
    run(["systemctl", "daemon-reload"], why=why)
    verb = "restart" if change.value else "stop"
    run(["systemctl", "--no-block", verb, change.path.name], why=why)
    managed.store(managed.load().model_copy(update={"mounted": change.value or None}))


def loads_at_boot(root: Path) -> bool:
    """Return whether a host has the unit that loads drivers at boot, enabled."""
    folders = ("etc/systemd/system", "usr/lib/systemd/system")
    return any(glob_in_root(root, f"{folder}/*.wants/{BOOT_UNIT}") for folder in folders)


def _sonames(manifest: Manifest) -> dict[str, str]:
    """Return the sonames of 64-bit libraries, so that a container's start need not read them."""
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


def _program_changes(layout: Layout, manifest: Manifest | None) -> list[Change]:
    """Return the changes that offer a driver's programs to the host's shells, or no longer do.

    A link into the store is ours. Another file of the same name stays, and so does a folder that
    can't be written.
    """
    programs = () if manifest is None else _programs(manifest)
    folders = [in_root(layout.root, name) for name in PROGRAMS]
    folders = [folder for folder in folders if is_writable(folder)]
    changes = []
    for number, folder in enumerate(folders):
        wanted = {
            path.name: _relative(layout, folder, path) for path in (programs if number == 0 else ())
        }
        present = {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}
        ours = {name: link for name, path in present.items() if (link := _link(layout, path))}
        changes += [Change("remove", folder / name) for name in sorted(ours) if name not in wanted]
        changes += [
            Change("switch", folder / name, target)
            for name, target in sorted(wanted.items())
            if name not in present or (name in ours and ours[name] != target)
        ]
    return changes


def _programs(manifest: Manifest) -> list[PurePosixPath]:
    return [PurePosixPath(file.path) for file in manifest.files if file.kind == "binary"]


def _relative(layout: Layout, folder: Path, program: PurePosixPath) -> str:
    """Return the target of a link that holds wherever the host's root is mounted.

    NVIDIA's device plugin and the DRA driver have it at ``/driver-root``.
    """
    target = layout.driver_root / program.relative_to("/")
    return os.path.relpath(target, _on_host(layout, folder))


def _link(layout: Layout, path: Path) -> str | None:
    if not path.is_symlink():
        return None
    target = str(path.readlink())
    leads_to = os.path.normpath(_on_host(layout, path.parent) / target)
    return target if leads_to.startswith(f"{layout.driver_root}/") else None


def _on_host(layout: Layout, folder: Path) -> Path:
    return Path("/") / folder.relative_to(layout.root)


def plan(layout: Layout, manifest: Manifest, *, replace: bool = False) -> list[Change]:
    """Return the changes that put an entry of the store to use; none if it is in use already."""
    managed = _managed_files(layout)
    record = managed.load()
    short = manifest.pin.short_digest
    own = _own(layout, manifest)
    texts = _texts(layout, manifest, own)
    files = [c for path, text in texts.items() for c in managed.file_changes(record, path, text)]
    root = _root_changes(layout, managed, record, manifest)
    if not replace:
        refuse_foreign((*files, *root), _FOREIGN)
    changes = [change for change in files if change.kind == "save"]
    changes += _link_changes(layout, short)
    changes += [change for change in files if change.kind != "save"]
    changes += _program_changes(layout, manifest)
    changes += root
    has_libraries = texts[layout.loader_config] is not None
    is_known = record.library_cache == short and all(c.path != layout.loader_config for c in files)
    is_stale = (has_libraries or record.library_cache) and not is_known
    if is_stale and _is_running_host(layout):
        changes.append(Change("ldconfig", Path("/etc/ld.so.cache"), short))
    return changes + _initramfs(layout, (*own, *manifest.host.conflicts), record)


def _own(layout: Layout, manifest: Manifest) -> Sequence[str]:
    """Return the modules that only the boot unit loads.

    Without it, nothing would load a driver whose in-tree copy may serve the network.
    """
    return sorted(m.name for m in manifest.modules) if loads_at_boot(layout.root) else ()


def _texts(layout: Layout, manifest: Manifest, own: Sequence[str]) -> dict[Path, str | None]:
    conflicts = manifest.host.conflicts
    return {
        layout.vendor_config: vendor_config(layout, manifest),
        layout.loader_config: loader_config(layout, manifest),
        layout.modprobe_config: modprobe_config(layout.driver, conflicts=conflicts, own=own),
        layout.dracut_config: dracut_config(layout, (*own, *conflicts)),
    }


class HostFiles(NamedTuple):
    """What became of the files of an entry in use outside of the store."""

    # Missing or emptied: an activation writes them again.
    lost: tuple[Path, ...] = ()
    # Written by someone else since, and never replaced unasked.
    foreign: tuple[Path, ...] = ()


def host_files(layout: Layout, manifest: Manifest) -> HostFiles:
    """Compare the files of an entry in use with their record."""
    managed = _managed_files(layout)
    try:
        record = managed.load()
    except (OSError, ProvisionError):
        record = None
    texts = _texts(layout, manifest, _own(layout, manifest))
    texts |= _root_texts(layout, manifest.host.root)
    # The others came with later versions, or with the units.
    needed = {layout.vendor_config}
    if manifest.host.conflicts:
        needed.add(layout.modprobe_config)
    wanted = [path for path, text in texts.items() if text is not None]
    known = record or Record()
    found = {path: managed.standing(known, path) for path in wanted}
    lost = [
        path
        for path in wanted
        if found[path] == "lost" and (path in needed or managed.has_written(known, path))
    ]
    folders = [in_root(layout.root, name) for name in PROGRAMS]
    present = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir()}
    folder = next(filter(is_writable, folders), None)
    programs = _programs(manifest) if folder else []
    lost += [folder / path.name for path in programs if folder and path.name not in present]
    foreign = [path for path in wanted if found[path] == "foreign"] if record else []
    return HostFiles(tuple(lost), tuple(foreign))


def plan_removal(layout: Layout) -> list[Change]:
    """Return the changes after which no entry is in use: managed files and links are removed.

    A managed file that someone else has changed stays: it is a foreign file now.
    """
    managed = _managed_files(layout)
    record = managed.load()
    changes: list[Change] = []
    for path in layout.managed:
        found = managed.file_changes(record, path, None)
        changes += found if all(change.kind == "remove" for change in found) else []
    changes += _program_changes(layout, None)
    changes += _root_changes(layout, managed, record, None)
    links = [link for link in (layout.current, layout.previous) if link.is_symlink()]
    changes += [Change("remove", link) for link in links]
    if record.library_cache is not None and _is_running_host(layout):
        changes.append(Change("ldconfig", Path("/etc/ld.so.cache"), ""))
    return changes + _initramfs(layout, (), record)


def _initramfs(layout: Layout, blacklisted: Iterable[str], record: Record) -> list[Change]:
    """Return the change that makes the initramfs without modules, unless that is done."""
    if not _is_running_host(layout):
        return []
    kernels = in_tree(layout.root, blacklisted)
    names = " ".join(sorted(frozenset().union(*kernels.values())))
    is_made = names == record.initramfs and record.initramfs_problem is None
    return [] if is_made else [Change("initramfs", Path("/boot"), names)]


def activate_entry(layout: Layout, entry: Path, *, replace: bool = False) -> tuple[Change, ...]:
    """Activate an artifact of the store: links, vendor file, loader configuration.

    Returns:
        The changes; none if it was in use already.
    """
    with _switched(layout):
        changes = plan(layout, load_manifest(entry), replace=replace)
        apply(layout, changes)
    return tuple(changes)


def deactivate(layout: Layout) -> None:
    """Deactivate a driver: remove its files outside of the store, and the links in the store.

    The links of its kernels go last, so that the next run completes one that was killed.
    """
    with _switched(layout):
        refuse_newer(layout)
        apply(layout, plan_removal(layout))
        layout.state.unlink(missing_ok=True)
        for release in linked_kernels(layout):
            unlink_kernel(layout, release)


@contextmanager
def _switched(layout: Layout) -> Iterator[None]:
    """Hold the locks under which a driver is switched, and remove leftovers of killed runs."""
    with switching(layout.root), changing(layout):
        for path in remove_leftovers(layout):
            report(Note(f"Removed what an interrupted run left behind: {path}"))
        yield


def apply(layout: Layout, changes: Iterable[Change]) -> None:
    """Make changes in order; the caller holds the driver's lock."""
    managed = _managed_files(layout)
    for change in changes:
        report(Note(str(change)))
        match change.kind:
            case "switch":
                switch_symlink(change.path, change.value)
            case "ldconfig":
                run(["ldconfig"], why="let the host's programs find the driver's libraries")
                record = managed.load()
                managed.store(record.model_copy(update={"library_cache": change.value or None}))
            case "initramfs":
                _make_initramfs(managed, change, layout.root)
            case "mount":
                _mount(managed, change)
            case _:
                managed.make(change)


def _make_initramfs(managed: ManagedFiles, change: Change, root: Path) -> None:
    """Make the initramfs of each kernel again that has the modules.

    The driver works until the next boot however that ends, so a failure is recorded for its status.
    """
    record = managed.load()
    now, before = change.value.split(), record.initramfs.split()
    # What is no longer blacklisted is missing there, so there is nothing to look for.
    kernels = in_tree(root, {*now, *before})
    problem = None
    try:
        make_again(sorted(kernels), now if set(before) <= {*now} else ())
    except NotFoundError:
        # What is loaded in spite of it is reported with what to do.
        pass
    except ProvisionError as error:
        problem = f"{error.message} {IF_IT_COMES_BACK}"
    done = {"initramfs": change.value, "initramfs_problem": problem}
    managed.store(record.model_copy(update=done))


def initramfs_problem(layout: Layout) -> str | None:
    """Return why the initramfs could not be made without a driver's modules."""
    with suppress(OSError, ProvisionError):
        return _managed_files(layout).load().initramfs_problem
    return None


def _is_running_host(layout: Layout) -> bool:
    """Return whether the root is that of this machine: ldconfig serves no other root."""
    return layout.root.resolve() == Path("/")


def _link_changes(layout: Layout, short: str) -> list[Change]:
    before = str(layout.current.readlink()) if layout.current.is_symlink() else None
    if before == short:
        return []
    changes = [Change("switch", layout.current, short)]
    if before is not None and layout.entry(before).is_dir():
        changes.insert(0, Change("switch", layout.previous, before))
    return changes


def _managed_files(layout: Layout) -> ManagedFiles:
    return ManagedFiles(layout.root, layout.record, layout.saved)
