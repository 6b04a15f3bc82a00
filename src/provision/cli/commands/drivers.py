"""``provision drivers`` and ``import``: the recipes of the catalogue."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from provision.build.dkms_import import Imported, ImportRequest, import_dkms
from provision.build.workspace import load_settings
from provision.catalogue import Entry, Recipe, RecipeSource
from provision.cli import options
from provision.cli.display import print_table
from provision.cli.job import job
from provision.cli.options import print_fields, print_json
from provision.distros import Distro, Proof, all_distros
from provision.errors import ConfigError, UsageError


@click.command("drivers")
@click.argument("driver", required=False)
@click.option(
    "--distros",
    "of_distros",
    is_flag=True,
    help="List the distros that drivers are built for, and what was tested on each.",
)
@options.catalogue
@options.root
@options.as_json
def drivers_command(
    *,
    driver: str | None,
    of_distros: bool,
    catalogues: tuple[Path, ...],
    root: Path,
    as_json: bool,
) -> None:
    """List the drivers of the catalogue, or show one.

    With DRIVER, the command checks and shows its recipe; it reports all mistakes together.
    """
    if of_distros:
        if driver is not None:
            raise UsageError(
                "DRIVER and --distros can't be given together.",
                resolution="'provision kernels DRIVER --distro ID:VERSION' lists the kernels that a"
                " driver builds on ('provision kernels --help').",
            )
        _show_distros(as_json=as_json)
        return
    catalogue = load_settings(root, catalogues=catalogues).catalogue
    if driver is not None:
        _show(catalogue.entry(driver), as_json=as_json)
        return
    _list(*catalogue.entries(), as_json=as_json)


def _list(entries: list[Entry], problems: list[ConfigError], *, as_json: bool) -> None:
    """Show each driver, and the recipes that can't be read."""
    if as_json:
        print_json(
            {
                "drivers": [_document(entry) for entry in entries],
                "problems": [
                    {"file": p.file, "mistakes": [str(mistake) for mistake in p.mistakes]}
                    for p in problems
                ],
            }
        )
        return
    # What fits 80 columns: 'provision drivers DRIVER' shows the rest.
    rows = [(e.recipe.name, e.recipe.summary, ", ".join(e.recipe.flavours)) for e in entries]
    print_table(("driver", "what it is", "flavours"), rows)
    for problem in problems:
        click.echo(f"Left out: {problem.message}\n{problem.details}", err=True)


def _show_distros(*, as_json: bool) -> None:
    distros = all_distros()
    if as_json:
        print_json({"distros": [_distro(distro) for distro in distros]})
        return
    rows = [
        (
            "\n".join(f"{distro.id}:{release.version}" for release in distro.releases),
            distro.family,
            "\n".join(_proof(proof) for proof in distro.proven),
        )
        for distro in distros
    ]
    print_table(("distro", "family", "what was run"), rows)


def _proof(proof: Proof) -> str:
    return proof.what if proof.on is None else f"{proof.what}; on {proof.on}"


def _distro(distro: Distro) -> dict[str, Any]:
    return {
        "id": distro.id,
        "name": distro.name,
        "family": distro.family,
        "releases": [
            release.model_dump(mode="json", include={"version", "codename", "end", "image"})
            for release in distro.releases
        ],
        "flavours": [rule.flavour for rule in distro.headers if rule.refusal is None],
        "proven": [proof.model_dump(mode="json") for proof in distro.proven],
    }


def _show(entry: Entry, *, as_json: bool) -> None:
    document = _document(entry)
    if as_json:
        print_json(document)
        return
    recipe = entry.recipe
    ranges = [f"{row.versions or 'any version'}: {row.kernels}" for row in recipe.kernels]
    print_fields(
        [
            ("driver", recipe.name),
            ("what it is", recipe.summary),
            ("vendor", recipe.vendor),
            ("homepage", recipe.homepage),
            ("what was run", recipe.proven or "its recipe does not say"),
            ("folder", entry.folder),
            ("source", "\n".join(map(_source, recipe.sources))),
            ("flavours", ", ".join(recipe.flavours)),
            ("default", recipe.default_flavour),
            ("kernels", "\n".join(ranges) or "those that its dkms.conf does not exclude"),
            ("patches", ", ".join(patch.file for patch in recipe.patches) or None),
            ("flag", recipe.container.activation_flag),
            ("features", ", ".join(recipe.container.features)),
        ]
    )


def _document(entry: Entry) -> dict[str, Any]:
    recipe = entry.recipe
    return {
        "name": recipe.name,
        "summary": recipe.summary,
        "vendor": recipe.vendor,
        "homepage": recipe.homepage,
        "proven": recipe.proven,
        "folder": str(entry.folder),
        "source": _kinds(recipe),
        "sources": [
            {
                "name": label,
                "kind": source.kind,
                "distros": list(source.distros),
                "versions": source.versions,
            }
            for label, source in zip(recipe.labels, recipe.sources, strict=True)
        ],
        "default_flavour": recipe.default_flavour,
        "flavours": {
            name: {"licences": list(flavour.licences), "modules": _modules(recipe, name)}
            for name, flavour in recipe.flavours.items()
        },
        "kernels": [row.model_dump(mode="json") for row in recipe.kernels],
        "patches": [patch.model_dump(mode="json") for patch in recipe.patches],
        "activation_flag": recipe.container.activation_flag,
        "features": list(recipe.container.features),
    }


def _kinds(recipe: Recipe) -> str:
    return ", ".join(dict.fromkeys(source.kind for source in recipe.sources))


def _source(source: RecipeSource) -> str:
    words: list[str] = [source.kind]
    words += [f"for {', '.join(source.distros)}"] if source.distros else []
    words += [f"versions {source.versions}"] if source.versions else []
    return " ".join(words)


def _modules(recipe: Recipe, flavour: str) -> list[str]:
    """Return the names of a flavour's modules, of all sources, each once."""
    variants = recipe.variants(None, flavour)
    return list(dict.fromkeys(m for variant in variants for m in variant.build.modules))


@click.group("import")
def import_command() -> None:
    """Write a recipe from the build files of a driver."""


@import_command.command("dkms")
@click.argument("what", metavar="PACKAGE|DIR|URL")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of drivers, in which the driver's folder is made.  [print the recipe]",
)
@click.option(
    "--kernel", metavar="RELEASE", help="Kernel to evaluate the dkms.conf for.  [the host's]"
)
@options.distro
@options.root
@options.as_json
def dkms(
    *,
    what: str,
    output: Path | None,
    kernel: str | None,
    distro: str | None,
    root: Path,
    as_json: bool,
) -> None:
    """Write the driver.toml of a source that has a dkms.conf.

    PACKAGE is a package of the distro's archive, such as v4l2loopback-dkms; DIR is a folder with
    the source; URL is the address of an archive of the source. The dkms.conf is evaluated in a
    container without a network.
    """
    request = ImportRequest(what, kernel=kernel, distro=distro, output=output)
    with job(root) as work:
        made = import_dkms(work.settings, lambda: work.engine, request, progress=work.progress)
    if as_json:
        print_json(_imported_document(made))
        return
    if made.file is None:
        click.echo(made.draft.text, nl=False)
        _notes(made, to_stderr=True)
        return
    print_fields(
        [
            ("wrote", made.file),
            ("modules", ", ".join(module.name for module in made.conf.modules)),
            ("for kernel", made.kernel),
        ]
    )
    _notes(made, to_stderr=False)
    click.echo(f"Try it: provision build {made.draft.name} --catalogue {made.file.parent.parent}")


def _notes(made: Imported, *, to_stderr: bool) -> None:
    click.echo("Complete what the source does not say:", err=to_stderr)
    for line in made.draft.unknown:
        click.echo(f"  {line}", err=to_stderr)
    if made.draft.ignored:
        click.echo("Left out of the build:", err=to_stderr)
    for line in made.draft.ignored:
        click.echo(f"  {line}", err=to_stderr)


def _imported_document(made: Imported) -> dict[str, object]:
    conf = made.conf
    return {
        "name": made.draft.name,
        "version": conf.version,
        "kernel": made.kernel,
        "file": None if made.file is None else str(made.file),
        "recipe": made.draft.text,
        "modules": [asdict(module) for module in conf.modules],
        "exclusive": dict(conf.exclusive or {}),
        "unknown": list(made.draft.unknown),
        "ignored": list(made.draft.ignored),
    }
