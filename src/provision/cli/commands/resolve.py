"""``provision resolve`` and ``provision render``: the Pin, and the build context for it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from provision.build.context_files import downloaded_files
from provision.build.driver_request import RequestOptions
from provision.build.package_pins import render_context
from provision.build.pin_file import pin_document
from provision.cli import options
from provision.cli.job import job, target
from provision.cli.options import megabytes, print_fields, print_json
from provision.errors import UsageError
from provision.files import write_atomic
from provision.pin import Pin, TreePin


@click.command("resolve")
@click.argument("driver")
@target
@click.option(
    "--output",
    type=options.OUTPUT_FILE,
    metavar="FILE",
    help="Write the Pin to a file, for 'provision build --pin' on any machine.",
)
@options.as_json
def resolve_command(
    *,
    driver: str,
    root: Path,
    catalogues: tuple[Path, ...],
    output: Path | None,
    as_json: bool,
    target: RequestOptions,
) -> None:
    """Decide every input of a build of DRIVER: the Pin, whose digest names the image."""
    with job(root, catalogues) as work:
        resolved = work.resolve(target.of(driver))
    document = pin_document(resolved.pin, resolved.urls)
    if output is not None:
        write_atomic(output, json.dumps(document, indent=1) + "\n")
    if as_json:
        print_json(document)
    else:
        print_fields([*_fields(resolved.pin), *([("written", output)] if output else [])])


def _fields(pin: Pin) -> list[tuple[str, object]]:
    packages = [f"{package.name} {package.version}" for package in pin.packages]
    return [
        ("driver", f"{pin.driver.name} {pin.driver.version} ({pin.driver.flavour})"),
        ("kernel", f"{pin.kernel.release} ({pin.kernel.architecture})"),
        ("distro", f"{pin.distro.id} {pin.distro.version} ({pin.distro.codename})"),
        ("base", f"{pin.base.image}\n{pin.base.digest}"),
        ("compiler", f"{pin.compiler.name} {pin.compiler.version}" if pin.compiler else None),
        ("headers", "\n".join(f"{header.name} {header.version}" for header in pin.headers) or None),
        ("kernel tree", _tree(pin.tree) if pin.tree else None),
        ("tools", "\n".join(packages) or None),
        ("closure", _closure(pin)),
        ("sources", "\n".join(source.text for source in pin.sources)),
        ("patches", "\n".join(f"{p.name} {p.sha256}" for p in pin.patches) or None),
        ("recipe", pin.recipe),
        ("template", pin.template),
        ("signing key", pin.signing_key),
        ("digest", pin.digest),
        ("image", pin.image),
    ]


def _tree(tree: TreePin) -> str:
    parts = ("tree", "config", "symvers", "compiler")
    digests = [f"{part} sha256:{value}" for part in parts if (value := getattr(tree, part))]
    toolchain = f"{tree.toolchain.id}:{tree.toolchain.version}" if tree.toolchain else "image"
    return "\n".join([f"{tree.kind}, compiled with {toolchain}", *digests])


def _closure(pin: Pin) -> str | None:
    if not pin.closure:
        return None
    upgrades = [package.name for package in pin.closure if package.action == "upgrade"]
    size = megabytes(sum(package.size for package in pin.closure))
    text = f"{len(pin.closure)} packages, {size}"
    return f"{text}\nupgraded in the base image: {', '.join(upgrades)}" if upgrades else text


@click.command("render")
@click.argument("driver")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Folder to write; it is made if it is missing.",
)
@target
@options.dry_run
@options.as_json
def render_command(
    *,
    driver: str,
    output: Path,
    root: Path,
    catalogues: tuple[Path, ...],
    dry_run: bool,
    as_json: bool,
    target: RequestOptions,
) -> None:
    """Write the Dockerfile and the build context for DRIVER; the same Pin gives the same bytes."""
    if output.is_dir() and any(output.iterdir()) and not (output / "Dockerfile").is_file():
        raise UsageError(
            f"'{output}' has other files.", resolution="Name an empty folder, or a new one."
        )
    with job(root, catalogues) as work:
        resolved = work.resolve(target.of(driver))
        context = render_context(resolved)
        names = sorted([*context.files, *context.downloads, *context.parts, *resolved.attached])
        if not dry_run:
            context.write(output)
            files = downloaded_files(work.settings, resolved, context, progress=work.progress)
            for name, path in files.items():
                write_atomic(output / name, path.read_bytes())
    if as_json:
        print_json(
            {
                "digest": resolved.pin.digest,
                "image": resolved.pin.image,
                "output": str(output),
                "files": names,
                "dry_run": dry_run,
            }
        )
        return
    for name in names:
        click.echo(f"{'would write' if dry_run else 'wrote'} {output / name}")
