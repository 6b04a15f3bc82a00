"""``provision devices`` and ``provision vendor-file``: what containers can ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from provision.catalogue import Catalogue, catalogue_folders
from provision.cli import options
from provision.cli.options import print_json
from provision.cli.tables import print_table
from provision.errors import ConfigError, ExitCode, NotFoundError, UsageError
from provision.files import write_atomic
from provision.host.devices.device_facts import Device, Facts
from provision.host.devices.reading import read_facts_file
from provision.host.devices.record import recorded
from provision.host.facts import read_facts
from provision.pipeline.host_modules import refresh
from provision.store.foreign_driver import foreign_vendor_file

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
