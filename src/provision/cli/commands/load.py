"""``provision load``, ``unload``, ``devices`` and ``vendor-file``: what containers get here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import click

from provision.build.workspace import Settings, load_settings
from provision.catalogue import Catalogue, catalogue_folders
from provision.cli import options
from provision.cli.display import print_table, shown
from provision.cli.options import print_json
from provision.errors import ConfigError, ExitCode, NotFoundError, ProvisionError, UsageError
from provision.files import write_atomic
from provision.host.devices.device_facts import Device, Facts
from provision.host.devices.reading import read_facts_file
from provision.host.devices.record import recorded
from provision.host.facts import read_facts
from provision.kmod.host_modules import (
    Moved,
    load_driver,
    refresh,
    stored_drivers,
    unload_driver,
)
from provision.progress import Progress
from provision.store.foreign_driver import foreign_vendor_file


class Mover(Protocol):
    """Loads or unloads the modules of one driver."""

    def __call__(
        self, settings: Settings, driver: str, *, dry_run: bool, progress: Progress
    ) -> Moved:
        """Load or unload them."""


class SeveralDriversError(ProvisionError):
    """More than one driver failed.

    Args:
        verb: ``loaded`` or ``unloaded``.
        failed: The error of each driver.
    """

    def __init__(self, verb: str, failed: dict[str, ProvisionError]) -> None:
        super().__init__(
            f"{len(failed)} drivers could not be {verb}.",
            resolution="Run the command for one driver to see what to do about it.",
            details="\n".join(f"{name}: {error.message}" for name, error in failed.items()),
        )
        codes = {error.exit_code for error in failed.values()}
        self.exit_code = codes.pop() if len(codes) == 1 else ExitCode.FAILED
        self._failed = failed

    def members(self) -> dict[str, object]:
        """Return the error of each driver."""
        return {
            "drivers": {
                name: {"message": error.message, "exit_code": int(error.exit_code)}
                for name, error in self._failed.items()
            }
        }


@dataclass(frozen=True, slots=True)
class _Selection:
    """The options of ``load`` and ``unload``; without names, they mean all drivers in the store."""

    drivers: tuple[str, ...]
    root: Path
    dry_run: bool
    as_json: bool


_selection = options.option_group(
    "selection",
    _Selection,
    click.argument("drivers", nargs=-1, metavar="[DRIVER]…"),
    options.root,
    options.dry_run,
    options.as_json,
)


def _move(mover: Mover, verb: str, selection: _Selection) -> None:
    """Load or unload drivers one after the other, even if some fail, and print the result.

    Args:
        mover: Loads or unloads one driver.
        verb: ``loaded`` or ``unloaded``.
        selection: The drivers, and how to print the result.

    Raises:
        ProvisionError: One driver failed, or several.
    """
    dry_run, as_json = selection.dry_run, selection.as_json
    settings = load_settings(selection.root)
    results: list[Moved] = []
    failed: dict[str, ProvisionError] = {}
    with shown(verbose=False) as progress:
        for driver in selection.drivers or stored_drivers(settings.root):
            try:
                results.append(mover(settings, driver, dry_run=dry_run, progress=progress))
            except ProvisionError as error:
                failed[driver] = error
    if not (as_json and failed):
        _print_moved(results, verb, dry_run=dry_run, as_json=as_json)
    if len(failed) == 1:
        raise next(iter(failed.values()))
    if failed:
        raise SeveralDriversError(verb, failed)


def _print_moved(results: Iterable[Moved], verb: str, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        drivers = [_moved_document(result, changed=not dry_run) for result in results]
        print_json({"drivers": drivers, "dry_run": dry_run})
        return
    for result in results:
        pin = result.manifest.pin
        what = f"{pin.driver.name} {pin.driver.version}"
        would = "would be " if dry_run else ""
        if result.conflicts:
            click.echo(f"{', '.join(result.conflicts)}: {would}unloaded")
        for problem in result.problems:
            click.echo(f"{what}: warning: {problem}", err=True)
        if result.modules:
            click.echo(f"{what}: {would}{verb}: {', '.join(result.modules)}")
        else:
            click.echo(f"{what}: nothing to do.")


def _moved_document(result: Moved, *, changed: bool) -> dict[str, Any]:
    pin = result.manifest.pin
    return {
        "driver": pin.driver.name,
        "version": pin.driver.version,
        "kernel": pin.kernel.release,
        "digest": pin.digest,
        "entry": str(result.entry),
        "modules": list(result.modules),
        "conflicts": list(result.conflicts),
        "problems": list(result.problems),
        "changed": changed and bool(result.modules or result.conflicts),
    }


@click.command("load")
@_selection
def load_command(*, selection: _Selection) -> None:
    """Load the modules of drivers from the store into the running kernel; all drivers by default.

    The command first unloads conflicting modules that are not in use, and loads the kernel's own
    modules that the drivers need. It makes missing device nodes. It builds and downloads nothing.
    """
    _move(load_driver, "loaded", selection)


@click.command("unload")
@_selection
def unload_command(*, selection: _Selection) -> None:
    """Unload the modules of drivers from the running kernel; all drivers by default.

    If a module of a driver is in use, all modules of that driver stay loaded and the exit code is
    4. The driver stays in the store.
    """
    _move(unload_driver, "unloaded", selection)


_LIST, _REFRESH = "list", "refresh"
_COLUMNS = ("vendor", "index", "node", "PCI address", "UUID", "name", "arch", "MIG")


@click.command("devices")
@click.argument("words", nargs=-1, metavar="[list|refresh] [VENDOR]")
@options.root
@options.as_json
def devices_command(*, words: tuple[str, ...], root: Path, as_json: bool) -> int:
    """Show the devices that containers can request by index or UUID.

    The command reads /run/oci-decorator/devices, which is written when a driver is loaded. With
    'refresh', it reads the devices again and writes these files; use that after GPUs were
    partitioned (nvidia-smi mig).

    VENDOR is the name of a driver, or nvidia, amd or intel; all vendors by default.
    """
    root = root.resolve()
    again = words[:1] == (_REFRESH,)
    names = words[1:] if words[:1] in {(_LIST,), (_REFRESH,)} else words
    if len(names) > 1:
        raise UsageError(
            f"Only one vendor can be named, and '{names[1]}' is a second one.",
            resolution="Name one vendor, or none for all of them: provision devices",
        )
    vendor = names[0] if names else None
    changed = [one.vendor for one in refresh(root, vendor) if one.changed] if again else []
    known = _known(root, vendor, again=again)
    if as_json:
        documents = {name: json.loads(facts.text()) for name, facts in known.items()}
        extra: dict[str, Any] = {"changed": changed} if again else {}
        print_json({"devices": documents, **extra})
    else:
        _show(known)
    return ExitCode.DONE


def _known(root: Path, vendor: str | None, *, again: bool) -> dict[str, Facts]:
    """Return the recorded facts by vendor.

    Raises:
        NotFoundError: The named vendor has none.
        ConfigError: A file is damaged.
    """
    if vendor is None:
        names = recorded(root)
    else:
        names = [vendor] if vendor in recorded(root) else []
        if not names and not again:
            there = f" There are devices of {', '.join(recorded(root))}." if recorded(root) else ""
            raise NotFoundError(
                f"No devices of '{vendor}' are recorded.{there}",
                resolution=f"Look for devices: provision devices refresh {vendor}",
            )
    try:
        return {name: read_facts_file(root, name) for name in names}
    except ConfigError as error:
        raise ConfigError(
            error.file, error.mistakes, resolution="Write the file again: provision devices refresh"
        ) from error


def _show(known: Mapping[str, Facts]) -> None:
    for name, facts in known.items():
        versions = [f"driver {facts.driver_version}"] if facts.driver_version else []
        versions += [f"CUDA {facts.cuda_version}"] if facts.cuda_version else []
        source = f"from {facts.source}" if facts.source else ""
        click.echo(f"{name}: {', '.join([*versions, source]).strip(', ')}")
        for problem in facts.problems:
            click.echo(f"{name}: warning: {problem}", err=True)
    rows = [
        row
        for name, facts in known.items()
        for device in facts.devices
        for row in _rows(name, device)
    ]
    if rows:
        print_table(_COLUMNS, rows)
    else:
        click.echo("No devices are recorded. Look for them: provision devices refresh")


def _rows(vendor: str, device: Device) -> list[tuple[object, ...]]:
    """Return the table's rows of a device: its own, and one for each of its parts."""
    parts = device.mig or ()
    divided = None if device.mig is None else f"{len(parts)} parts"
    own = (device.index, device.minor, device.pci, device.uuid, device.name, device.arch, divided)
    rows: list[tuple[object, ...]] = [(vendor, *own)]
    for number, part in enumerate(parts):
        index = number if part.index is None else part.index
        where = f"instance {part.gpu_instance}, compute {part.compute_instance}"
        rows.append((vendor, f"{device.index}:{index}", None, None, part.uuid, None, None, where))
    return rows


@click.command("vendor-file")
@click.argument("driver")
@click.option(
    "--output",
    type=options.OUTPUT_FILE,
    metavar="FILE",
    help="File to write.  [standard output]",
)
@options.catalogue
@options.root
@options.as_json
def vendor_file_command(
    *, driver: str, output: Path | None, catalogues: tuple[Path, ...], root: Path, as_json: bool
) -> None:
    """Write the vendor file of a driver that came from the distro or the vendor.

    The file lists the libraries, programs and other files of the driver that the command finds
    below --root. Write it again after an update of the driver. Drivers that 'provision install' put
    into the store have a vendor file already.
    """
    root = root.resolve()
    entry = Catalogue([*catalogue_folders(), *catalogues]).entry(driver)
    text = foreign_vendor_file(entry.recipe, root=root, machine=read_facts(root).arch)
    changed = write_atomic(output, text) if output is not None else False
    if as_json:
        document = {"vendor_file": json.loads(text), "output": str(output) if output else None}
        print_json({**document, "changed": changed})
    elif output is None:
        click.echo(text, nl=False)
    else:
        click.echo(f"{output}: {'written' if changed else 'nothing to do'}.")
