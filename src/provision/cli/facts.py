"""``facts``: what this host is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.cli import options
from provision.cli.options import command
from provision.cli.output import emit, fields, plain
from provision.host.facts import read_facts

if TYPE_CHECKING:
    from provision.catalogue import Recipe


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
