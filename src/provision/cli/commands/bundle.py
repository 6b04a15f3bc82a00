"""``provision bundle``: carries artifacts over an air gap."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import click

from provision.cli import options
from provision.cli.bundle_options import Destination, Making, bringing, destination, to_make
from provision.cli.display import print_table
from provision.cli.job import Job, job, trusting
from provision.cli.options import megabytes, print_fields, print_json
from provision.fleet.bundle import check_room, create
from provision.fleet.bundle_contents import Contents, Extras, gather
from provision.fleet.bundle_load import Loaded, artifacts_of, for_host, push_bundle, store_bundle
from provision.fleet.selection import Chosen, ImageSelection, RegistryAccess
from provision.fleet.signed_files import Bundle, check_files, open_bundle
from provision.registry.artifact_images import Trusted
from provision.registry.registries import Consent

# Options that select artifacts.
selecting = options.option_group(
    "selection",
    ImageSelection,
    click.option(
        "--driver",
        "drivers",
        multiple=True,
        metavar="NAME",
        help="Driver; may be given more than once.  [those of the catalogue]",
    ),
    click.option(
        "--kernel",
        "kernels",
        multiple=True,
        metavar="RELEASE",
        help="Kernel, or a pattern ('6.1.0-*'); may be given more than once.  [all]",
    ),
    click.option(
        "--distro",
        "distros",
        multiple=True,
        metavar="ID:VERSION",
        help="Distro, such as debian:12; may be given more than once.  [all]",
    ),
)


_PLACE = click.Path(exists=True, path_type=Path)


@click.group("bundle")
def bundle_command() -> None:
    """Carry signed artifacts over an air gap, with everything else that builds and hosts need."""


@bundle_command.command("create")
@to_make
@bringing
@selecting
@trusting
@options.catalogue
@options.root
@options.dry_run
@options.as_json
def create_command(
    *,
    making: Making,
    extras: Extras,
    selection: ImageSelection,
    consent: Consent,
    catalogues: tuple[Path, ...],
    root: Path,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write a bundle: artifacts with their signatures, and the packages and base images of builds.

    A second run with the same folder continues an interrupted one. A bundle carries no trust: the
    host that reads it decides which keys it accepts.
    """
    making.check(signs=not making.unsigned)
    output = making.output
    with job(root, catalogues) as work:
        order = making.order(work.settings, selection, extras)
        # Check the key before the copies.
        signer = None if making.unsigned or dry_run else making.signer(work.settings)
        access = RegistryAccess(work.settings, consent, progress=work.progress)
        contents = gather(access, order, lambda: work.engine)
        if dry_run:
            check_room(output, contents.size)
            if as_json:
                print_json(_contents_document(contents, output, dry_run=True))
                return
            _print_images(contents.chosen)
            click.echo(f"{output} would take about {megabytes(contents.size)}.")
            return
        if not as_json:
            click.echo(f"The bundle takes about {megabytes(contents.size)}.", err=True)
        files = create(access, order, contents, output, signer)
    size = sum(files.values())
    if as_json:
        document = _contents_document(contents, output, dry_run=False)
        print_json({**document, "signed": signer is not None, "files": len(files), "size": size})
        return
    _print_images(contents.chosen)
    click.echo(f"{output}: {len(files)} files, {megabytes(size)}")


@bundle_command.command("show")
@click.argument("bundle", type=_PLACE, metavar="DIR|FILE.tar")
@click.option("--check", "checks", is_flag=True, help="Compare every file with its checksum.")
@options.insecure
@options.public_key
@options.root
@options.as_json
def show_command(
    *,
    bundle: Path,
    checks: bool,
    insecure: bool,
    public_key: Path | None,
    root: Path,
    as_json: bool,
) -> None:
    """Verify the signatures of a bundle and of its artifacts, and list the artifacts."""
    consent = Consent(public_key, insecure)
    with job(root) as work:
        found = open_bundle(work.settings, bundle, consent)
        if checks:
            check_files(found, progress=work.progress)
        access = RegistryAccess(work.settings, consent, progress=work.progress)
        images = artifacts_of(access, found)
    if as_json:
        artifacts = [one for each in images for one in each.documents()]
        document = {"signed_by": found.signed_by, "artifacts": artifacts}
        print_json({**document, "files": len(found.sums), "checked": checks})
        return
    _print_images(images)
    print_fields(
        [
            ("signed by", found.signed_by or "no key"),
            ("files", len(found.sums)),
            ("checked", checks),
        ]
    )


@bundle_command.command("load")
@click.argument("bundle", type=_PLACE, metavar="DIR|FILE.tar")
@destination
@trusting
@options.root
@options.dry_run
@options.as_json
def load_command(
    *,
    bundle: Path,
    where: Destination,
    consent: Consent,
    root: Path,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Verify a bundle completely, then copy its content to a registry or to this host."""
    where.check()
    with job(root) as work:
        found = open_bundle(work.settings, bundle, consent)
        check_files(found, progress=work.progress)
        done = Loaded()
        access = RegistryAccess(work.settings, consent, progress=work.progress)
        images = artifacts_of(access, found)
        if where.registry is not None and not dry_run:
            done = push_bundle(access, found, images, where.registry)
        for_store = _for_store(work, images, where)
        if where.stores and not dry_run:
            engine = (lambda: work.engine) if where.base_images else None
            stored = store_bundle(access, found, for_store, engine=engine)
            done = replace(stored, pushed=done.pushed, changed=stored.changed or done.changed)
    if as_json:
        planned = [one.image.reference.digest for one in for_store]
        print_json(
            {"signed_by": found.signed_by, "for_host": planned, **asdict(done), "dry_run": dry_run}
        )
        return
    _print_loaded(found, done, len(for_store), dry_run=dry_run)


def _for_store(work: Job, images: tuple[Chosen, ...], where: Destination) -> tuple[Trusted, ...]:
    if not where.stores:
        return ()
    return for_host(work.settings, images, all_kernels=where.all_kernels)


def _contents_document(contents: Contents, output: Path, *, dry_run: bool) -> dict[str, object]:
    return {
        "output": str(output),
        "artifacts": [one for each in contents.chosen for one in each.documents()],
        "bases": [f"{base.image}@{base.digest}" for base, _image in contents.bases],
        "files": len(contents.copies) + len(contents.texts),
        "size": contents.size,
        "dry_run": dry_run,
    }


def _print_images(images: Iterable[Chosen]) -> None:
    columns = ("driver", "version", "flavour", "kernel", "distro", "machine", "signed by", "size>")
    names = ("driver", "version", "flavour", "kernel", "distro", "architecture")
    rows = []
    for one in (one for each in images for one in each.documents()):
        signer = str(one["signed_by"] or "no key")
        rows.append((*(str(one[name]) for name in names), signer, megabytes(int(str(one["size"])))))
    print_table(columns, rows)


def _print_loaded(found: Bundle, done: Loaded, for_store: int, *, dry_run: bool) -> None:
    if dry_run:
        click.echo(f"{found.name} is complete; {for_store} of its artifacts are for this host.")
        return
    for name in (*done.pushed, *done.entries, *done.bases):
        click.echo(name)
    click.echo(
        f"New names in the registry: {len(done.pushed)}. Artifacts in the"
        f" store: {len(done.entries)}. Added: packages {done.packages}, closures {done.closures},"
        f" base images {len(done.bases)}."
    )
