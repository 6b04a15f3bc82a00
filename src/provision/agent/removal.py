"""Removes what no kernel needs (garbage collection), or all that provision owns on a host.

Packages, logs, locks and images of the engine are kept as long as a kernel of this host may need
them. Of all that provision owns, the one list is here; foreign files stay: a key beside
provision.toml, or the copy of a file that was replaced on request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import NamedTuple

from provision.agent.desired import KEPT
from provision.agent.hold import RECORD as HOLD
from provision.agent.model import Desired, Mode, Run
from provision.agent.run import apply
from provision.agent.status import EXPORTER_FOLDERS, FEATURES, METRICS, MOTD
from provision.build.image import (
    DIGEST_LABEL,
    TOOLCHAIN_KERNEL_LABEL,
    TOOLCHAIN_LABEL,
    built_here,
    days_unused,
    has_built,
    is_built_here,
    remove_records,
    remove_toolchain,
)
from provision.build.package_store import PackageStore
from provision.build.workspace import Settings, default_cache, load_settings
from provision.config import PATH as CONFIG
from provision.config import Config, load
from provision.documents import default
from provision.engine.docker_api import Image
from provision.errors import ExitCode, NotFoundError, ProvisionError
from provision.files import glob_in_root, in_root, remove_lock, remove_tree
from provision.fleet.results import matrix_folder
from provision.host import STORE
from provision.host.kernels import Kernels, find_kernels, is_calm, kernel_order
from provision.kmod.verify import stored_manifest
from provision.progress import Note, report
from provision.run import find_program, run
from provision.store.activate import deactivate, plan_removal
from provision.store.entries import (
    entries,
    leftovers,
    linked_kernels,
    remove,
    remove_leftovers,
    unlink_kernel,
)
from provision.store.layout import UNITS, VENDOR_CONFIGS, Layout, building, changing, switching
from provision.store.state import (
    DriverState,
    NewerStateError,
    copies_of,
    load_state,
    refuse_newer,
    store_state,
)
from provision.store.units import KERNEL_HOOKS, UNITS_STORE, change_units, plan_units


class Stock(NamedTuple):
    """The artifacts of a driver in a store."""

    # Release of the kernel of each artifact, by short digest, the newest first; None: its manifest
    # can't be read.
    entries: Mapping[str, str | None]
    links: Mapping[str, str]
    current: str | None = None
    state: DriverState = default(DriverState)


class Removed(NamedTuple):
    """An artifact that was removed, or would be."""

    driver: str
    digest: str
    # The kernel that it is for; None: unknown.
    kernel: str | None
    reason: str
    # Bytes that were freed; None: it was not removed.
    size: int | None = None


class Collected(NamedTuple):
    """What a collection removed, or would remove."""

    artifacts: list[Removed]
    # Images of the engine, by name.
    images: list[str]
    # Packages, logs and locks, with their sizes in bytes.
    files: list[tuple[str, int]]


def collect(
    root: Path, desired: Desired, *, images: bool = False, dry_run: bool = False
) -> Collected:
    """Remove what no kernel of a host needs.

    Args:
        images: Whether artifact images go, too, and without drivers all toolchains.
    """
    settings = load_settings(root, config=desired.config)
    removed = remove_unneeded(root, desired, dry_run=dry_run)
    is_everything = images and not desired.drivers
    gone = remove_toolchains(settings, is_everything=is_everything, dry_run=dry_run)
    if images:
        gone += remove_images(settings, removed, dry_run=dry_run)
    return Collected(removed, gone, remove_packages(root, dry_run=dry_run))


def unneeded(
    stock: Stock, bootable: Iterable[str], *, keep: int, is_complete: bool = True
) -> dict[str, str]:
    """Return the artifacts that can be removed, each with the reason. Pure.

    The artifacts that bootable kernels use stay, and some older ones of each for a rollback.

    Args:
        keep: How many older artifacts of each kernel stay.
        is_complete: Whether ``bootable`` is complete; otherwise those of other kernels stay.
    """
    kernels = set(bootable)
    needed = {d for release, d in stock.links.items() if release in kernels or not is_complete}
    needed |= {stock.current} if stock.current else set()
    # A driver that is not in use keeps no older artifacts.
    if stock.links or stock.current:
        for release in (
            kernels if is_complete else kernels | set(filter(None, stock.entries.values()))
        ):
            spare = [d for d, of in stock.entries.items() if of == release and d not in needed]
            # The previous artifact comes first, then the newest.
            before = stock.state.of(release).previous
            spare.sort(key=[before].count, reverse=True)
            # A kernel without a link may use an artifact that was installed without the agent.
            is_used = release in stock.links or stock.entries.get(stock.current or "") == release
            needed |= set(spare[: keep if is_used else max(keep, 1)])
    return {
        digest: "its manifest can't be read"
        if kernel is None
        else f"the kernel {kernel} {'has newer ones' if kernel in kernels else 'is gone'}"
        for digest, kernel in stock.entries.items()
        if digest not in needed
    }


def remove_unneeded(root: Path, desired: Desired, *, dry_run: bool = False) -> list[Removed]:
    """Remove the artifacts that no kernel of a host needs."""
    # The decision is made under the locks, so that no installation or rollback gets between.
    with nullcontext() if dry_run else switching(root):
        kernels = _kernels(root)
        removed: list[Removed] = []
        for layout in _stored(root):
            keep = desired.config.policy.keep
            if dry_run:
                removed += _planned(layout, kernels, keep)
                continue
            with changing(layout):
                remove_leftovers(layout)
                found = _planned(layout, kernels, keep)
                _forget(layout, kernels, {one.digest for one in found})
                for one in found:
                    report(Note(f"remove {layout.entry(one.digest)}: {one.reason}"))
                    removed.append(one._replace(size=remove(layout, one.digest)))
    return removed


def _kernels(root: Path) -> Kernels:
    kernels = find_kernels(root)
    if not kernels.installed and kernels.running is None:
        raise NotFoundError(
            f"There is no kernel under '{root}', so the artifacts that are needed are unknown.",
            resolution=f"Check whether /lib/modules exists: ls {root / 'lib/modules'}",
        )
    for warning in kernels.warnings:
        report(Note(f"There may be more kernels, so artifacts of unknown kernels stay: {warning}"))
    if is_calm(root):
        return kernels
    # A kernel that is half unpacked will be complete soon.
    return kernels._replace(others=(*kernels.others, *kernels.incomplete))


def _stored(root: Path) -> list[Layout]:
    layouts = [Layout(root, path.name) for path in glob_in_root(root, f"{STORE}/*")]
    return [layout for layout in layouts if entries(layout) or linked_kernels(layout)]


def _planned(layout: Layout, kernels: Kernels, keep: int) -> list[Removed]:
    state = load_state(layout)
    if state.is_newer:
        report(Note(NewerStateError(layout.state, state.schema_version).message))
        return []
    spare = sorted(
        entries(layout), key=lambda digest: layout.entry(digest).stat().st_ctime_ns, reverse=True
    )
    manifests = {digest: stored_manifest(layout.entry(digest)) for digest in spare}
    stock = Stock(
        entries={d: m.pin.kernel.release if m else None for d, m in manifests.items()},
        links=linked_kernels(layout),
        current=layout.current.readlink().name if layout.current.is_symlink() else None,
        state=state,
    )
    bootable = {*kernels.bootable, *_awaited(state, kernels)}
    found = unneeded(stock, bootable, keep=keep, is_complete=not kernels.warnings)
    return [
        Removed(layout.driver, digest, stock.entries[digest], reason)
        for digest, reason in found.items()
    ]


def _awaited(state: DriverState, kernels: Kernels) -> frozenset[str]:
    """Return the kernels that were announced and may still come. Pure.

    An installed kernel no longer needs its announcement. The announcement of a kernel that never
    came expires when a newer kernel runs than the announced one, and another than at the
    announcement.
    """
    running = kernels.running or ""
    return frozenset(
        release
        for release, known in state.kernels.items()
        if known.announced is not None
        and release not in kernels.bootable
        and (known.announced == running or kernel_order(running) < kernel_order(release))
    )


def _forget(layout: Layout, kernels: Kernels, gone: set[str]) -> None:
    state = before = load_state(layout)
    if state.is_newer:
        return
    if not kernels.warnings:
        awaited = _awaited(state, kernels)
        bootable = {*kernels.bootable, *awaited}
        for release in linked_kernels(layout).keys() - bootable:
            unlink_kernel(layout, release)
        for release in before.kernels:
            if release not in bootable:
                state = state.without(release)
            elif release not in awaited and state.of(release).announced is not None:
                state = state.changed(release, announced=None)
    if state != before:
        store_state(layout, state)
    if layout.previous.is_symlink() and layout.previous.readlink().name in gone:
        layout.previous.unlink()


# A package that is needed again later is downloaded again.
UNUSED_DAYS = 30.0
_DAY_S = 24 * 3600.0


def remove_packages(
    root: Path, *, state: Path | None = None, dry_run: bool = False
) -> list[tuple[str, int]]:
    """Remove packages, logs and locks that were not used for 30 days and that no kernel needs.

    A lock is removed only if no process holds it.

    Returns:
        Names of the files, and their sizes in bytes.
    """
    folder = state or default_cache()
    kernels = find_kernels(root).bootable
    removed = PackageStore(folder).collect(kernels, days=UNUSED_DAYS, dry_run=dry_run)
    for path, size in _unused(folder / "logs", "*.log"):
        if not dry_run:
            path.unlink(missing_ok=True)
        removed.append((path.name, size))
    for path, size in _unused(folder / "locks", "*"):
        if dry_run or remove_lock(path):
            removed.append((path.name, size))
    return removed


def _unused(folder: Path, pattern: str) -> list[tuple[Path, int]]:
    oldest = time.time() - UNUSED_DAYS * _DAY_S
    found = []
    for path in sorted(folder.glob(pattern)):
        # Another process may remove files here too.
        with suppress(FileNotFoundError):
            status = path.lstat()
            if path.is_file() and not path.is_symlink() and status.st_mtime < oldest:
                found.append((path, status.st_size))
    return found


_PREFIX = "provision/"
_DIGITS = 12


def remove_images(
    settings: Settings, removed: Iterable[Removed], *, dry_run: bool = False
) -> list[str]:
    """Remove artifact images whose artifacts are not in the store, and those without a name.

    The latter were replaced by another build of their Pin.

    Images stay if they also have another name, or if a container uses them. Old records of images
    that are gone go too.
    """
    gone = []
    # An image that was just built may not be in the store yet.
    waiting = nullcontext() if dry_run else building(settings.root)
    with waiting, settings.connected():
        engine = settings.engine()
        kept = {digest for layout in _stored(settings.root) for digest in entries(layout)}
        kept -= {one.digest for one in removed}
        for image in engine.images_with_label(DIGEST_LABEL):
            digest = image.labels[DIGEST_LABEL].removeprefix("sha256:")[:_DIGITS]
            is_ours = len(image.tags) == 1 and image.tags[0].startswith(_PREFIX)
            is_replaced = not image.tags and is_built_here(settings.state, image)
            if not (is_replaced or (is_ours and digest not in kept)):
                continue
            remove = partial(engine.remove, image.id, with_parents=True)
            if dry_run or _is_removed(image, remove):
                gone.append(image.name)
        if not dry_run:
            remove_records(settings.state, engine, days=UNUSED_DAYS)
    return gone


def remove_toolchains(
    settings: Settings, *, is_everything: bool = False, dry_run: bool = False
) -> list[str]:
    """Remove the toolchains of kernels that are gone, and those that were not used for 30 days.

    Args:
        is_everything: Whether all go, because no driver is wanted.

    Returns:
        The names of the images.
    """
    kernels = find_kernels(settings.root)
    if not has_built(settings.state):
        return []
    gone = []
    with settings.connected():
        try:
            engine = settings.engine()
        except ProvisionError as error:
            report(Note(f"Images of compilers and headers stay: {error.message}"))
            return []
        for image in built_here(engine, TOOLCHAIN_LABEL, settings.state):
            is_gone = image.labels.get(TOOLCHAIN_KERNEL_LABEL) not in kernels.bootable
            is_old = days_unused(settings.state, image) > UNUSED_DAYS
            if not (is_everything or is_old or (is_gone and not kernels.warnings)):
                continue
            remove = partial(remove_toolchain, engine, image, settings.state)
            if dry_run or _is_removed(image, remove):
                gone.append(image.tags[0])
    return gone


def _is_removed(image: Image, remove: Callable[[], None]) -> bool:
    try:
        remove()
    except ProvisionError as error:
        report(Note(f"{image.name} stays: {error.details or error.message}"))
        return False
    return True


# Provision's alone, with all that is in them. /run/oci-decorator has the facts of its devices.
_ALONE = (PurePosixPath("run/provision"), PurePosixPath("run/oci-decorator"))
# Made for files of ours, and removed if nothing else is in them.
_SHARED = (
    UNITS / "paths.target.wants",
    *(KERNEL_HOOKS / f"{name}.d" for name in ("header_postinst", "install", "postrm", "postinst")),
    VENDOR_CONFIGS,
    VENDOR_CONFIGS.parent,
    PurePosixPath("etc/provision"),
)
_SPECIFICATIONS = PurePosixPath("run/cdi")
# Where foreign files are expected beside ours.
_REPORTED = (PurePosixPath("etc/provision"), STORE)


class Removal(NamedTuple):
    """What was removed, or would be, and what stays."""

    # In the order of their removal; a folder after what is in it.
    paths: tuple[Path, ...]
    # Artifact images and toolchains of the engine, by name.
    images: tuple[str, ...]
    # Foreign files.
    kept: tuple[Path, ...]
    # Whether modules are in use, and stay loaded until the host is booted again.
    needs_reboot: bool


def uninstall(
    root: Path, *, images: bool = False, replace: bool = False, dry_run: bool = False
) -> Removal:
    """Take every driver out of use, and remove all that provision owns but itself and its settings.

    Drivers whose modules are in use go too: the modules stay loaded, and no file names them.

    Args:
        images: Whether the engine's artifact images and toolchains go.
        replace: Whether units that others changed go; a copy stays.
    """
    config = _config(root)
    planned = _planned_removal(root, config, images=images, replace=replace)
    if dry_run:
        return planned
    specifications = _remove_specifications(root)
    if not planned.paths and not planned.images:
        return planned._replace(paths=specifications)
    for layout in _layouts(root):
        refuse_newer(layout)
    # Units first: none starts on what follows.
    paths = [change.path for change in change_units(root, [], replace=replace)]
    # Without drivers, it gives the boot loader's default back too.
    result = apply(Run(root, Desired(config), Mode()))
    needs_reboot = result.status.exit_code == ExitCode.IN_USE
    if result.status.error is not None and not needs_reboot:
        raise result.status.error
    for layout in _layouts(root):
        paths += [change.path for change in plan_removal(layout)]
        deactivate(layout)
    gone = _images(root, config) if images else []
    with switching(root):
        ours = owned(root, config)
        for path in ours:
            report(Note(f"remove {path}"))
            remove_tree(path)
        paths += ours
    # A lock of this command is taken, so that its folder is left.
    return Removal((*specifications, *paths), tuple(gone), _foreign(root, ours), needs_reboot)


def owned(root: Path, config: Config) -> list[Path]:
    """Return what provision owns on a host besides its program, its settings and what drivers have.

    The files of drivers and units outside of these folders are in their records.
    """
    exporters = [folder / METRICS for folder in EXPORTER_FOLDERS]
    textfile = config.metrics.textfile
    files: list[PurePath] = [*_ALONE, *exporters, FEATURES / "provision", KEPT, HOLD, MOTD]
    files += [PurePath(textfile)] if textfile else []
    named = [in_root(root, path, follow=False) for path in files]
    if root == Path("/"):
        named.append(default_cache())
    named.append(matrix_folder(root))
    named += _drafts(in_root(root, KEPT, follow=False))
    for layout in _layouts(root):
        named += _of_driver(layout)
    units = in_root(root, UNITS_STORE)
    named += [units / "written.json", *_drafts(units / "written.json")]
    ours = [path for path in named if _is_there(path)]
    ours += _emptied(in_root(root, STORE), set(ours))
    for folder in (in_root(root, name) for name in _SHARED):
        if folder.is_dir() and all(path in ours for path in folder.iterdir()):
            ours.append(folder)
    return ours


def _of_driver(layout: Layout) -> Iterator[Path]:
    """Yield what is ours of a driver's part of the store; copies of foreign files are not."""
    yield from leftovers(layout)
    yield from (layout.entry(digest) for digest in entries(layout))
    yield from (layout.current, layout.previous, layout.kernels)
    yield from (layout.state, layout.serials, layout.record)
    yield from copies_of(layout.state)
    yield layout.lock


def _layouts(root: Path) -> list[Layout]:
    """Return the drivers' parts of the store; a folder that someone else made there is none."""
    others = {matrix_folder(root)}
    found = []
    for path in glob_in_root(root, f"{STORE}/*"):
        layout = Layout(root, path.name)
        is_folder = layout.folder.is_dir() and layout.folder not in others
        is_link = in_root(root, path, follow=False).is_symlink()
        if is_folder and not is_link and any(map(_is_there, _of_driver(layout))):
            found.append(layout)
    return found


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _drafts(path: Path) -> list[Path]:
    """Return what a killed run left of a file that it was writing."""
    return sorted(path.parent.glob(f".{path.name}.*"))


def _emptied(folder: Path, gone: set[Path]) -> list[Path]:
    """Return the folders at and below one that have nothing else in them, the innermost first."""
    if folder.is_symlink() or not folder.is_dir() or folder in gone:
        return []
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        found += _emptied(path, gone)
    is_empty = all(path in gone or path in found for path in folder.iterdir())
    return [*found, folder] if is_empty else found


def _foreign(root: Path, gone: Iterable[Path]) -> tuple[Path, ...]:
    """Return the files that stay where ours were, besides provision.toml."""
    known = {*gone, in_root(root, CONFIG)}

    def below(folder: Path) -> Iterator[Path]:
        if folder.is_symlink() or not folder.is_dir():
            return
        for path in sorted(folder.iterdir()):
            if path not in known:
                is_folder = path.is_dir() and not path.is_symlink()
                yield from below(path) if is_folder else (path,)

    return tuple(path for name in _REPORTED for path in below(in_root(root, name)))


def _config(root: Path) -> Config:
    """Return the settings, without drivers; what can't be read keeps nothing on the host."""
    config = Config()
    try:
        config = load(root)
    except ProvisionError as error:
        report(Note(f"Its engine and its metrics are those without settings: {error.message}"))
    return config.model_copy(update={"drivers": {}})


def _images(root: Path, config: Config, *, dry_run: bool = False) -> list[str]:
    host, settings = config.engine.host, load_settings(root, config=config)
    if host is not None and not host.startswith("unix://"):
        report(Note(f"Images of {host} stay: an engine on another machine may serve others"))
        return []
    try:
        artifacts = [
            Removed(layout.driver, digest, None, "provision is removed")
            for layout in _layouts(root)
            for digest in entries(layout)
        ]
        gone = remove_toolchains(settings, is_everything=True, dry_run=dry_run)
        return gone + remove_images(settings, artifacts, dry_run=dry_run)
    except ProvisionError as error:
        report(Note(f"Images of the engine stay: {error.message}"))
        return []


def _remove_specifications(root: Path) -> tuple[Path, ...]:
    """Have oci-decorator remove the CDI specifications that the units had it write."""
    program = find_program("/opt/provision/bin/oci-decorator") or find_program("oci-decorator")
    folder = in_root(root, _SPECIFICATIONS)
    if program is None or not folder.is_dir():
        return ()
    words: list[str | Path] = [program, "cdi", "generate", "--output-dir", folder, "--remove"]
    done = run(words, why="remove CDI specifications", check=False)
    if done.returncode:
        report(Note(f"CDI specifications may stay in {folder}: {done.stderr.strip()}"))
    return tuple(Path(line.removeprefix("removed ")) for line in done.stdout.splitlines())


def _planned_removal(root: Path, config: Config, *, images: bool, replace: bool) -> Removal:
    layouts = _layouts(root)
    changes = [*plan_units(root, [], replace=replace)]
    changes += [change for layout in layouts for change in plan_removal(layout)]
    changed = [change.path for change in changes if change.kind == "remove"]
    gone = _images(root, config, dry_run=True) if images else []
    ours = owned(root, config)
    return Removal((*changed, *ours), tuple(gone), _foreign(root, ours), needs_reboot=False)
