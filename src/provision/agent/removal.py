"""The removal of all that provision owns on a host, and the one list of what that is.

Foreign files stay: a key beside provision.toml, or the copy of a file that was replaced on request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

from provision.agent import garbage
from provision.agent.desired import KEPT
from provision.agent.hold import RECORD as HOLD
from provision.agent.model import Desired, Mode, Run
from provision.agent.run import apply
from provision.agent.status import EXPORTER_FOLDERS, FEATURES, METRICS, MOTD
from provision.build.workspace import default_cache, load_settings
from provision.config import PATH as CONFIG
from provision.config import Config, load
from provision.errors import ExitCode, ProvisionError
from provision.files import glob_in_root, in_root, remove_tree
from provision.fleet.results import matrix_folder
from provision.host import STORE
from provision.progress import Note, report
from provision.run import find_program, run
from provision.store.activate import deactivate, plan_removal
from provision.store.entries import entries, leftovers
from provision.store.layout import UNITS, VENDOR_CONFIGS, Layout, switching
from provision.store.state import copies_of, refuse_newer
from provision.store.units import KERNEL_HOOKS, UNITS_STORE, change_units, plan_units

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


@dataclass(frozen=True, slots=True)
class Removal:
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
    planned = _planned(root, config, images=images, replace=replace)
    if dry_run:
        return planned
    specifications = _remove_specifications(root)
    if not planned.paths and not planned.images:
        return dataclasses.replace(planned, paths=specifications)
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
            garbage.Removed(layout.driver, digest, None, "provision is removed")
            for layout in _layouts(root)
            for digest in entries(layout)
        ]
        gone = garbage.remove_toolchains(settings, is_everything=True, dry_run=dry_run)
        return gone + garbage.remove_images(settings, artifacts, dry_run=dry_run)
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


def _planned(root: Path, config: Config, *, images: bool, replace: bool) -> Removal:
    layouts = _layouts(root)
    changes = [*plan_units(root, [], replace=replace)]
    changes += [change for layout in layouts for change in plan_removal(layout)]
    changed = [change.path for change in changes if change.kind == "remove"]
    gone = _images(root, config, dry_run=True) if images else []
    ours = owned(root, config)
    return Removal((*changed, *ours), tuple(gone), _foreign(root, ours), needs_reboot=False)
