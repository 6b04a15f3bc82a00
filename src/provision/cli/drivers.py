"""``drivers``: the catalogue, kernels and versions to build, and recipes of further drivers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from provision.build.dkms_import import import_dkms, write_recipe
from provision.build.request import DriverRequest
from provision.build.workspace import load_settings
from provision.catalogue import Entry, Recipe
from provision.catalogue.suitability import cards_of
from provision.cli import options
from provision.cli.job import job
from provision.cli.options import argument, command, option
from provision.cli.output import (
    advice,
    each,
    emit,
    fields,
    members,
    remark,
    table,
    wants_json,
)
from provision.distros.distro import all_distros
from provision.errors import ExitCode
from provision.files import write_output
from provision.host.facts import PciDevice, pci_devices
from provision.sources.upstream import UpstreamResult, by_version
from provision.store.availability import Offers, list_kernels, list_offers
from provision.store.foreign import foreign_vendor_file


class _Catalogue(options.Group):
    """A group whose first word is a command or else the name of a driver."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take a command's words for no name of a driver."""
        if args and args[0] in self.commands:
            args = ["", *args]
        else:
            ctx.allow_interspersed_args = True
        return super().parse_args(ctx, args)


class _Name(click.Argument):
    """The name of a driver, which has no place in the usage of the commands below."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the piece for the group's own usage."""
        return super().get_usage_pieces(ctx) if ctx.command.name == "drivers" else []


@command("drivers", cls=_Catalogue, invoke_without_command=True, subcommand_metavar="| COMMAND …")
def drivers(
    *,
    name: str | None = argument("[NAME]", cls=_Name),
    of_distros: bool = option(
        "--distros", "List the distros that drivers are built for, and what was tested on each."
    ),
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
) -> None:
    """List the drivers of the catalogue, or show one.

    With NAME, the command checks and shows its recipe; it reports all mistakes together. Without
    one, it leaves out recipes with mistakes, and the exit code is 2 if there are any.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    if of_distros:
        options.refuse(
            name,
            "NAME and --distros can't be given together.",
            "'provision drivers kernels NAME --distro ID:VERSION' lists the kernels that a driver"
            " builds on ('provision drivers kernels --help').",
        )
        _list_distros()
        return
    catalogue = load_settings(root, catalogues=catalogues).catalogue
    devices = pci_devices(root)
    if name:
        _show(catalogue.entry(name), devices)
        return
    entries, problems = catalogue.entries()
    emit(
        {
            "drivers": [_document(entry, devices) for entry in entries],
            "problems": [
                {"file": p.file, "mistakes": [str(mistake) for mistake in p.mistakes]}
                for p in problems
            ],
        },
        # What fits 80 columns: 'provision drivers NAME' shows the rest.
        table(
            "drivers",
            {
                "driver": "name",
                "what it is": "summary",
                "flavours": lambda driver: ", ".join(driver["flavours"]),
                "cards here": lambda driver: len(driver["cards"]) or None,
            },
        ),
        code=ExitCode.USAGE if problems else ExitCode.DONE,
    )
    for problem in [] if wants_json() else problems:
        remark(f"Left out: {problem.message}\n{problem.details}")


def _list_distros() -> None:
    found = [
        {
            **members(distro, "id", "name", "family", "proven"),
            "releases": [
                members(one, "version", "codename", "end", "image") for one in distro.releases
            ],
            "flavours": [rule.flavour for rule in distro.headers if rule.refusal is None],
        }
        for distro in all_distros()
    ]
    emit(
        {"distros": found},
        table(
            "distros",
            {
                "distro": lambda one: "\n".join(
                    f"{one['id']}:{release['version']}" for release in one["releases"]
                ),
                "family": "family",
                "what was run": lambda one: "\n".join(
                    f"{proof['what']}; on {proof['on']}" if proof["on"] else proof["what"]
                    for proof in one["proven"]
                ),
            },
        ),
    )


def _show(entry: Entry, devices: Iterable[PciDevice]) -> None:
    hardware = entry.recipe.hardware
    emit(
        _document(entry, devices),
        fields(
            {
                "driver": "name",
                "what it is": "summary",
                "vendor": "vendor",
                "homepage": "homepage",
                "what was run": lambda one: one["proven"] or "its recipe does not say",
                "folder": "folder",
                "source": lambda one: "\n".join(map(_source, one["sources"])),
                "flavours": lambda one: ", ".join(one["flavours"]),
                "default": "default_flavour",
                "kernels": lambda one: (
                    "\n".join(_known_kernels(row) for row in one["kernels"])
                    or "nothing is known; a build decides"
                ),
                "cards": lambda _: "\n".join(
                    f"{card.name}: {card.takes} ({hardware.source})" for card in hardware.cards
                ),
                "cards here": lambda one: "\n".join(one["cards"]),
                "patches": lambda one: [patch["file"] for patch in one["patches"]],
                "flag": "activation_flag",
                "features": "features",
            }
        ),
    )


def _known_kernels(row: Mapping[str, Any]) -> str:
    works, by, day = row["works"], row["by"], row["day"]
    kernels = f"works on {works}" if works else f"fails on {row['fails']}: {row['reason']}"
    source = ", ".join(filter(None, (by, day)))
    about = " ".join([row["versions"] or "any version", *row["flavours"]])
    return f"{about}: {kernels}{f' ({source})' if source else ''}"


def _source(source: Mapping[str, Any]) -> str:
    words = [source["kind"]]
    words += [f"for {', '.join(source['distros'])}"] if source["distros"] else []
    words += [f"versions {source['versions']}"] if source["versions"] else []
    return " ".join(words)


def _document(entry: Entry, devices: Iterable[PciDevice]) -> dict[str, Any]:
    recipe = entry.recipe
    return {
        **members(recipe, "name", "summary", "vendor", "homepage", "proven", "default_flavour"),
        **members(recipe, "kernels", "patches"),
        "folder": entry.folder,
        "source": ", ".join(dict.fromkeys(source.kind for source in recipe.sources)),
        "sources": [
            {"name": label, **members(source, "kind", "distros", "versions")}
            for label, source in zip(recipe.labels, recipe.sources, strict=True)
        ],
        "flavours": {
            name: {"licences": flavour.licences, "modules": _modules(recipe, name)}
            for name, flavour in recipe.flavours.items()
        },
        "generations": recipe.hardware.cards,
        "reviewed": recipe.hardware.reviewed,
        "cards": [card.name for card in cards_of(recipe, devices)],
        "activation_flag": recipe.container.activation_flag,
        "features": list(recipe.container.features),
    }


def _modules(recipe: Recipe, flavour: str) -> list[str]:
    variants = recipe.variants(None, flavour)
    return list(dict.fromkeys(m for variant in variants for m in variant.build.modules))


@command("kernels", drivers)
def kernels(
    *,
    driver: str = argument("DRIVER"),
    distro: str | None = options.distro,
    flavour: str | None = options.flavour,
    network: str | None = options.network,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
) -> None:
    """List the packaged kernels, newest first, and what is known of DRIVER on each."""
    request = DriverRequest(driver, distro=distro, flavour=flavour)
    with job(root, catalogues, network=network) as settings:
        chosen, found = list_kernels(settings, request)
    emit(
        {
            "driver": driver,
            "distro": chosen.name,
            "kernels": found,
        },
        table(
            "kernels",
            {
                "kernel": "release",
                "known": "known",
                driver: lambda row: row["version"] or row["reason"],
            },
        ),
    )


@command("versions", drivers)
def versions(
    *,
    driver: str | None = argument("[DRIVER]"),
    check: bool = option(
        "--check", "Show only what needs attention, and exit with 1 if something does."
    ),
    offline: bool = option(
        "--offline", "Use the last answers of vendors, and query only vendors without one."
    ),
    distro: str | None = options.distro,
    flavour: str | None = options.flavour,
    network: str | None = options.network,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
) -> None:
    """Show which versions of DRIVER are installed, offered here, and offered by its vendor.

    Without DRIVER, the command shows the drivers of provision.toml. The exit code is 3 if neither a
    vendor nor the archive of a driver could be read.
    """
    with job(root, catalogues, network=network) as settings:
        names = [driver] if driver else list(settings.config.drivers)
        options.refuse(
            not names,
            "No driver was named, and provision.toml names none.",
            "Name one that 'provision drivers' lists: provision drivers versions nvidia",
        )
        found = [
            list_offers(
                settings,
                DriverRequest(name, distro=distro, flavour=flavour),
                is_offline=offline,
            )
            for name in names
        ]
    documents = [_versions(offers) for offers in found]
    code = ExitCode.DONE if all(offers.is_seen for offers in found) else ExitCode.NOT_FOUND
    if check and any(document["concerns"] for document in documents):
        code = ExitCode.FAILED
    emit({"drivers": documents}, each("drivers", _concerns if check else _offers), code=code)


def _versions(offers: Offers) -> dict[str, Any]:
    return {
        **members(offers, "driver", "flavour", "asked_for", "offered", "chosen"),
        "distro": offers.distro.name,
        "installed": [
            {"kernel": one.kernel, "version": one.version, "running": one.is_running}
            for one in offers.installed
        ],
        "branches": [
            {
                **members(branch, "name", "kind_by", "newest", "released", "end_by"),
                "kind": branch.maturity,
                "end_of_life": branch.last_day.isoformat() if branch.last_day else None,
                "ended": branch.has_ended(offers.day),
            }
            for branch in offers.branches.all
        ],
        "sources": [_vendor_source(reading) for reading in offers.readings],
        "concerns": list(offers.concerns()),
    }


def _vendor_source(reading: UpstreamResult) -> dict[str, Any]:
    answer, trouble = reading.answer, reading.trouble
    return {
        "kind": reading.source.kind,
        "url": reading.url,
        "read": answer.read if answer else None,
        "releases": [
            release.model_dump(mode="json", exclude_none=True)
            for release in by_version(reading.releases)
        ],
        "error": trouble and members(trouble, "message", "details", "resolution"),
    }


def _offers(one: Mapping[str, Any]) -> Iterator[str]:
    installed = [
        f"{i['version']} for {i['kernel']}{', which runs' if i['running'] else ''}"
        for i in one["installed"]
    ]
    chosen = f": {one['chosen']}" if one["chosen"] else ""
    yield from fields(
        {
            "driver": lambda _: f"{one['driver']} ({one['flavour']})",
            "installed": lambda _: "\n".join(installed) or None,
            "asked for": lambda _: f"{one['asked_for']}{chosen}",
            f"offered for {one['distro']}": "offered",
        }
    )(one)
    if one["branches"]:
        yield from table(
            "branches",
            {
                "branch": "name",
                "kind": "kind",
                "newest version": "newest",
                "released": "released",
                "says": "kind_by",
                "supported until": lambda branch: (
                    branch["end_of_life"]
                    and f"{branch['end_of_life']}{' (ended)' if branch['ended'] else ''}"
                    f" by {branch['end_by']}"
                ),
            },
        )(one)
    if one["sources"]:
        yield from table(
            "sources",
            {
                "source": "url",
                "answer": _answer,
                "newest version": lambda source: next(
                    (release["version"] for release in source["releases"]), None
                ),
            },
        )(one)
    errors = [source["error"] for source in one["sources"] if source["error"]]
    # The same advice is printed once.
    for resolution in dict.fromkeys(error["resolution"] for error in errors):
        for error in errors:
            if error["resolution"] == resolution:
                why = (error["details"] or "").partition("\n")[0]
                yield f"{error['message']} {why}".rstrip()
        yield from advice({"resolution": resolution})
    yield from _concerns(one)


def _answer(source: Mapping[str, Any]) -> str:
    if source["read"] is None:
        return "unreachable" if source["error"] else "not asked"
    when = f"{datetime.fromtimestamp(source['read'], tz=UTC):%Y-%m-%d %H:%M} UTC"
    return f"unreachable; the last one is of {when}" if source["error"] else f"of {when}"


def _concerns(one: Mapping[str, Any]) -> Iterator[str]:
    for concern in one["concerns"]:
        yield f"{concern['message']}."
        yield from advice(concern)


@command("import", drivers)
def import_recipe(
    *,
    what: str = argument("PACKAGE|DIR|FILE|URL"),
    output: Path | None = option(
        "--output DIR",
        "Folder of drivers, in which the driver's folder is made.  [print the recipe]",
        type=options.FOLDER,
    ),
    root: Path = options.root,
) -> None:
    """Write the driver.toml of a source that has a dkms.conf.

    PACKAGE is a package of the distro's archive, such as v4l2loopback-dkms; DIR is a folder with
    the source, or a clone; FILE is an archive or a .deb, and URL the address of one. Builds run the
    dkms.conf; this command reads name and version in it.
    """
    with job(root) as settings:
        draft = import_dkms(settings, what)
        file = None if output is None else write_recipe(draft, output)
    notes = ["Complete what the source does not say:", *(f"  {line}" for line in draft.unknown)]
    document = {
        **members(draft, "name", "version", "unknown"),
        "file": file,
        "recipe": draft.text,
    }
    if file is None:
        emit(document, draft.text.removesuffix("\n"))
        if not wants_json():
            remark("\n".join(notes))
        return
    build = ["provision", "build", draft.name, "--catalogue", str(file.parent.parent)]
    emit(
        document,
        fields({"wrote": "file"}),
        lambda _: notes,
        f"Try it: {shlex.join(build)}",
    )


@command("vendor-file", drivers)
def vendor_file(
    *,
    driver: str = argument("DRIVER"),
    output: Path | None = option(
        "--output FILE", "File to write.  [standard output]", type=options.OUTPUT_FILE
    ),
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
) -> None:
    """Write the vendor file of a driver that came from the distro or the vendor.

    The file lists the libraries, programs and other files of the driver that the command finds
    below --root. Write it again after an update of the driver. Drivers that provision put
    into the store have a vendor file already.
    """
    root = root.resolve()
    settings = load_settings(root, catalogues=catalogues)
    entry = settings.catalogue.entry(driver)
    written = foreign_vendor_file(entry.recipe, root=root, machine=settings.facts.arch)
    changed = write_output(output, written) if output is not None else False
    done = f"{output}: {'written' if changed else 'nothing to do'}."
    emit(
        {"vendor_file": json.loads(written), "output": output, "changed": changed},
        written.removesuffix("\n") if output is None else done,
    )
