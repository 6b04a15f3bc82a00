"""``load``, ``unload``, ``devices`` and ``facts``: the running kernel, and what this host is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.cli import options
from provision.cli.options import argument, command, option
from provision.cli.output import (
    each,
    emit,
    fields,
    members,
    of_pin,
    progress,
    remark,
    table,
    text,
    wants_json,
)
from provision.config import load
from provision.errors import ConfigError, ExitCode, NotFoundError, ProvisionError, plain
from provision.host.devices import read_facts_file, recorded
from provision.host.facts import read_facts
from provision.kmod.load import (
    LoadResult,
    load_driver,
    refresh,
    required_drivers,
    unload_driver,
)

if TYPE_CHECKING:
    from provision.catalogue import Recipe


class SeveralDriversError(ProvisionError):
    """More than one driver failed.

    Args:
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


_drivers = argument("[DRIVER]…")


@command("load")
def load_command(
    *,
    drivers: tuple[str, ...] = _drivers,
    root: Path = options.root,
    dry_run: bool = options.dry_run,
) -> None:
    """Load the modules of drivers from the store into the running kernel; all drivers by default.

    The command first unloads conflicting modules that are not in use, and loads the kernel's own
    modules that the drivers need. It makes missing device nodes. It builds and downloads nothing.
    """
    _move(load_driver, "loaded", drivers, root, dry_run=dry_run)


@command("unload")
def unload_command(
    *,
    drivers: tuple[str, ...] = _drivers,
    root: Path = options.root,
    dry_run: bool = options.dry_run,
) -> None:
    """Unload the modules of drivers from the running kernel; all drivers by default.

    If a module of a driver is in use, all modules of that driver stay loaded and the exit code is
    4. The driver stays in the store.
    """
    _move(unload_driver, "unloaded", drivers, root, dry_run=dry_run)


def _move(
    mover: Callable[..., LoadResult],
    verb: str,
    drivers: tuple[str, ...],
    root: Path,
    *,
    dry_run: bool,
) -> None:
    """Load or unload drivers one after the other, even if some fail, and print the result."""
    root = root.resolve()
    config = load(root)
    results: list[dict[str, Any]] = []
    failed: dict[str, ProvisionError] = {}
    with progress():
        for driver in drivers or required_drivers(root):
            try:
                moved = mover(root, config, driver, dry_run=dry_run)
            except ProvisionError as error:
                failed[driver] = error
                continue
            results.append(
                {
                    **of_pin(moved.manifest.pin),
                    **members(moved, "entry", "modules", "conflicts", "problems"),
                    "changed": not dry_run and bool(moved.modules or moved.conflicts),
                }
            )
    if not failed or not wants_json():
        emit(
            {"drivers": results, "dry_run": dry_run}, each("drivers", _moved(verb, dry_run=dry_run))
        )
    if failed:
        raise failed.popitem()[1] if len(failed) == 1 else SeveralDriversError(verb, failed)


def _moved(verb: str, *, dry_run: bool) -> Callable[[Any], Iterator[str]]:
    done = f"would be {verb}" if dry_run else verb

    def view(driver: Mapping[str, Any]) -> Iterator[str]:
        what = f"{driver['driver']} {driver['version']}"
        if driver["conflicts"]:
            yield f"{text(driver['conflicts'])}: {'would be ' if dry_run else ''}unloaded"
        for problem in driver["problems"]:
            remark(f"{what}: warning: {problem}")
        names = text(driver["modules"])
        yield f"{what}: {done}: {names}" if driver["modules"] else f"{what}: nothing to do."

    return view


@command("devices")
def devices_command(
    *,
    vendor: str | None = argument("[VENDOR]"),
    again: bool = option(
        "--rescan", "Read the devices again, as after GPUs were partitioned (nvidia-smi mig)."
    ),
    root: Path = options.root,
) -> None:
    """Show the devices that containers can request by index or UUID.

    The command reads /run/oci-decorator/devices, which is written when a driver is loaded. VENDOR
    is the name of a driver, or nvidia, amd or intel; all vendors by default. The exit code is 3 if
    none are recorded.
    """
    root = root.resolve()
    changed = [one.vendor for one in refresh(root, vendor) if one.changed] if again else []
    names = [name for name in recorded(root) if vendor in {None, name}]
    if vendor is not None and not names and not again:
        recorded_ones = (
            f" There are devices of {', '.join(recorded(root))}." if recorded(root) else ""
        )
        raise NotFoundError(
            f"No devices of '{vendor}' are recorded.{recorded_ones}",
            resolution=f"Look for devices: provision devices {vendor} --rescan",
        )
    try:
        known = {name: json.loads(read_facts_file(root, name).text()) for name in names}
    except ConfigError as error:
        raise ConfigError(
            error.file,
            error.mistakes,
            resolution="Write the file again: provision devices --rescan",
        ) from error
    # What was never recorded was not looked at.
    is_known = bool(known) or again
    emit(
        {"devices": known, **({"changed": changed} if again else {})},
        each(lambda document: document["devices"].items(), lambda item: _vendor(*item)),
        table(
            lambda document: list(_rows(document["devices"])),
            {
                "vendor": "vendor",
                "index": "index",
                "node": "minor",
                "PCI address": "pci",
                "UUID": "uuid",
                "name": "name",
                "arch": "arch",
                "MIG": "parts",
            },
            otherwise="No devices are recorded. Look for them: provision devices --rescan",
        ),
        code=ExitCode.DONE if is_known else ExitCode.NOT_FOUND,
    )


def _vendor(name: str, facts: Mapping[str, Any]) -> Iterator[str]:
    words = [
        f"{what}{facts[member]}"
        for what, member in (("driver ", "driver_version"), ("CUDA ", "cuda_version"))
        if facts.get(member)
    ]
    words += [f"from {facts['source']}"] if facts.get("source") else []
    yield f"{name}: {', '.join(words)}"
    for problem in facts.get("problems", ()):
        remark(f"{name}: warning: {problem}")


def _rows(known: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for vendor, facts in known.items():
        for device in facts["devices"]:
            parts = device.get("mig")
            yield {
                **device,
                "vendor": vendor,
                "parts": None if parts is None else f"{len(parts)} parts",
            }
            for number, part in enumerate(parts or ()):
                where = f"instance {part['gpu_instance']}, compute {part['compute_instance']}"
                yield {
                    "vendor": vendor,
                    "index": f"{device['index']}:{part.get('index', number)}",
                    "uuid": part.get("uuid"),
                    "parts": where,
                }


@command("facts")
def facts_command(
    *,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
) -> None:
    """Show facts about this host, and the PCI devices that the catalogue has drivers for."""
    document = plain(read_facts(root))
    recipes = _recipes(root, catalogues) if document["pci"] else ()
    for shown in document["pci"]:
        identity = {key: shown[key] for key in ("vendor", "device", "device_class")}
        fitting = [recipe for recipe in recipes if recipe.hardware.matches(**identity)]
        known = (recipe.hardware.generation(shown["device"]) for recipe in fitting)
        shown["catalogue"] = [recipe.name for recipe in fitting]
        shown["generation"] = next((one.name for one in known if one), None)
    emit(
        document,
        fields(
            {
                "distro": lambda facts: "{id} {version} ({name})".format_map(facts["distro"]),
                "kernel": "kernel",
                "architecture": "arch",
                "engines": lambda facts: ", ".join(map(_engine, facts["engines"])) or "none",
                "Secure Boot": "secure_boot",
                "lockdown": "lockdown",
                "SELinux": "selinux",
                "immutable": "immutable",
                "PCI devices": lambda facts: (
                    f"{len(facts['pci'])}, {len(_known(facts))} known to the catalogue"
                ),
                "?": lambda facts: "\n".join(_known(facts)) or None,
            }
        ),
    )


def _recipes(root: Path, catalogues: tuple[Path, ...]) -> list[Recipe]:
    from provision.build.workspace import load_settings  # noqa: PLC0415 - loads the models

    entries, _problems = load_settings(root, catalogues=catalogues).catalogue.entries()
    return [entry.recipe for entry in entries]


def _engine(engine: Mapping[str, Any]) -> str:
    return f"{engine['name']} ({'runs' if engine['socket'] else 'does not run'})"


def _known(facts: Mapping[str, Any]) -> list[str]:
    return [
        " ".join(filter(None, (one["address"], f"{one['vendor']}:{one['device']}", one["name"])))
        + f"{' (' + one['generation'] + ')' if one['generation'] else ''}:"
        f" {', '.join(one['catalogue'])} (driven by {one['driver'] or 'nothing'})"
        for one in facts["pci"]
        if one["catalogue"]
    ]
