"""``provision load``, ``unload``, ``devices`` and ``vendor-file``: modules and their devices."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import click

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
from provision.pipeline.host_modules import (
    Moved,
    load_driver,
    refresh,
    stored_drivers,
    unload_driver,
)
from provision.pipeline.workspace import Settings, load_settings
from provision.progress import Progress
from provision.store.foreign_driver import foreign_vendor_file


class Mover(Protocol):
    """Loads or unloads the modules of one driver."""

    def __call__(
        self, settings: Settings, driver: str, *, dry_run: bool, progress: Progress
    ) -> Moved:
        """Do it."""


class SeveralDriversError(ProvisionError):
    """More than one driver failed.

    Args:
        verb: What could not be done with them.
        failed: What each of them said.
    """

    def __init__(self, verb: str, failed: dict[str, ProvisionError]) -> None:
        super().__init__(
            f"{len(failed)} drivers could not be {verb}.",
            resolution="Name one driver only to read what to do about it.",
            details="\n".join(f"{name}: {error.message}" for name, error in failed.items()),
        )
        codes = {error.exit_code for error in failed.values()}
        self.exit_code = codes.pop() if len(codes) == 1 else ExitCode.FAILED
        self._failed = failed

    def members(self) -> dict[str, object]:
        """Return what each driver said."""
        return {
            "drivers": {
                name: {"message": error.message, "exit_code": int(error.exit_code)}
                for name, error in self._failed.items()
            }
        }


def move(
    mover: Mover, verb: str, drivers: Sequence[str], root: Path, *, dry_run: bool, as_json: bool
) -> None:
    """Load or unload drivers one after the other, whichever of them fail, and print the result.

    Args:
        mover: What is done with each.
        verb: ``loaded`` or ``unloaded``.
        drivers: Which; none: all in the store.
        root: Root of the host.
        dry_run: Only say what would be done.
        as_json: Print one JSON document.

    Raises:
        ProvisionError: It failed with one driver, or with several.
    """
    settings = load_settings(root)
    results: list[Moved] = []
    failed: dict[str, ProvisionError] = {}
    with shown(verbose=False) as progress:
        for driver in drivers or stored_drivers(settings.root):
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
@click.argument("drivers", nargs=-1, metavar="[DRIVER]…")
@options.root
@options.dry_run
@options.as_json
def load_command(*, drivers: tuple[str, ...], root: Path, dry_run: bool, as_json: bool) -> None:
    """Load the modules of drivers from the store into the running kernel; all drivers by default.

    What is in their way is unloaded if no one uses it, what they need of the kernel's own is loaded
    first, and missing device nodes are made. Nothing is built or downloaded.
    """
    move(load_driver, "loaded", drivers, root, dry_run=dry_run, as_json=as_json)


@click.command("unload")
@click.argument("drivers", nargs=-1, metavar="[DRIVER]…")
@options.root
@options.dry_run
@options.as_json
def unload_command(*, drivers: tuple[str, ...], root: Path, dry_run: bool, as_json: bool) -> None:
    """Unload the modules of drivers from the running kernel; all drivers by default.

    Never by force: a module that someone uses stays, with all of its driver's, and the exit code
    is 4. The driver stays in the store.
    """
    move(unload_driver, "unloaded", drivers, root, dry_run=dry_run, as_json=as_json)


_REFRESH = "refresh"
_COLUMNS = ("vendor", "index", "node", "PCI address", "UUID", "name", "arch", "MIG")


@click.command("devices")
@click.argument("words", nargs=-1, metavar="[refresh] [VENDOR]")
@options.root
@options.as_json
def devices_command(*, words: tuple[str, ...], root: Path, as_json: bool) -> int:
    """Show the devices that containers can ask for by index or UUID.

    They are what /run/oci-decorator/devices says, which is written when a driver is loaded. With
    'refresh' they are looked at again: do so after GPUs were divided (nvidia-smi mig).

    VENDOR is the name of a driver, or nvidia, amd or intel; all by default.
    """
    root = root.resolve()
    again = words[:1] == (_REFRESH,)
    names = words[1:] if again else words
    if len(names) > 1:
        raise UsageError(
            f"'{names[1]}' is one vendor too many.",
            resolution="Give one vendor, or none for all: provision devices.",
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
    """Return what is written down, by vendor.

    Raises:
        NotFoundError: Nothing is of the vendor that was named.
        ConfigError: A file is damaged.
    """
    if vendor is None:
        names = recorded(root)
    else:
        names = [vendor] if vendor in recorded(root) else []
        if not names and not again:
            raise NotFoundError(
                f"Nothing is known of devices of '{vendor}'.",
                resolution=f"Look for them: provision devices refresh {vendor}",
            )
    try:
        return {name: read_facts_file(root, name) for name in names}
    except ConfigError as error:
        raise ConfigError(
            error.file, error.mistakes, resolution="Write it again: provision devices refresh"
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
        click.echo("No devices are known. 'provision devices refresh' looks for them.")


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
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it here.  [standard output]",
)
@options.catalogue
@options.root
@options.as_json
def vendor_file_command(
    *, driver: str, output: Path | None, catalogues: tuple[Path, ...], root: Path, as_json: bool
) -> None:
    """Write the vendor file of a driver that this host has from its distro or its maker.

    It lists the driver's libraries, programs and other files, which are looked for below --root.
    Write it again after the driver was updated. Drivers that 'provision install' put into the store
    have one already.
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
