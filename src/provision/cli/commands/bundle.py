"""``provision bundle``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from provision.cli import options
from provision.cli.commands.mirror import selecting
from provision.cli.key_options import KeyOptions, signing_key
from provision.cli.options import megabytes, print_fields, print_json
from provision.cli.tables import print_table
from provision.cli.target import Job, believing, gathering, job
from provision.errors import UsageError
from provision.fleet.bundle import check_room, create
from provision.fleet.bundle_contents import Contents, Extras, Order, gather
from provision.fleet.bundle_index import (
    Bundle,
    BundleArtifact,
    BundleIndex,
    check_files,
    open_bundle,
)
from provision.fleet.bundle_load import Loaded, for_host, push_bundle, store_bundle
from provision.fleet.mirror import RegistryAccess, Selection
from provision.pipeline.registries import Consent

_FILES = click.Path(exists=True, dir_okay=False, path_type=Path)
_PLACE = click.Path(exists=True, path_type=Path)


def _bringing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for files that are brought as they are; they arrive as ``extras``."""
    gathered = gathering(command, "extras", Extras)
    texts = {
        "program": ("programs", "The program oci-decorator."),
        "collection": ("collections", "Archive of the Ansible collection."),
        "host-python": ("host_python", "What 'provision host-python' made."),
    }
    for name, (field, text) in texts.items():
        option = click.option(
            f"--{name}", field, type=_FILES, multiple=True, metavar="FILE", help=text
        )
        gathered = option(gathered)
    return click.option(
        "--wheels",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Folder with the Python packages of hosts.",
    )(gathered)


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a bundle goes."""

    registry: str | None
    stores: bool
    all_kernels: bool
    base_images: bool

    def check(self) -> None:
        """See that it goes somewhere."""
        if self.registry is None and not self.stores:
            raise UsageError(
                "It is not said where the bundle goes.",
                resolution="Give --registry HOST, --store, or both.",
            )


def _destination(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for that; they arrive as ``where: _Target``."""
    gathered = gathering(command, "where", _Target)
    decorators = [
        click.option(
            "--registry",
            metavar="HOST[:PORT][/PREFIX]",
            help="Copy the artifacts to this registry in the gap.",
        ),
        click.option(
            "--store",
            "stores",
            is_flag=True,
            help="Put the artifacts for this host's kernels into its store, and packages too.",
        ),
        click.option(
            "--all-kernels", is_flag=True, help="With --store: artifacts for other kernels too."
        ),
        click.option(
            "--base-images", is_flag=True, help="With --store: load them into the engine."
        ),
    ]
    for decorator in reversed(decorators):
        gathered = decorator(gathered)
    return gathered


@click.group("bundle")
def command() -> None:
    """Carry artifacts over an air gap: signed, with what builds and hosts need besides."""


@command.command("create")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR|FILE.tar",
    help="A folder, or one archive.",
)
@click.option(
    "--from",
    "registry",
    metavar="HOST[:PORT][/PREFIX]",
    help="Where the artifacts are.  [[registry] address of provision.toml]",
)
@click.option(
    "--artifacts-only", is_flag=True, help="Leave out what builds need: packages, base images."
)
@_bringing
@click.option("--unsigned", is_flag=True, help="Don't sign it; hosts refuse it then.")
@selecting
@signing_key
@believing
@options.catalogue
@options.root
@options.dry_run
@options.as_json
def create_command(  # noqa: PLR0913 - one for each option
    *,
    output: Path,
    registry: str | None,
    artifacts_only: bool,
    extras: Extras,
    unsigned: bool,
    selection: Selection,
    private: KeyOptions,
    consent: Consent,
    catalogues: tuple[Path, ...],
    root: Path,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write a bundle: artifacts with signatures, packages and base images of their builds.

    Into the same folder again, it goes on where it ended. Which key counts decides the host that
    reads it: a bundle brings no trust.
    """
    private.check(signs=not unsigned)
    with job(root, catalogues) as work:
        address = registry or work.settings.config.registry.address
        if address is None:
            raise UsageError(
                "There is no registry to take artifacts from.",
                resolution="Give --from, or set [registry] address in"
                " /etc/provision/provision.toml.",
            )
        # A key that can't be used is found out before anything is copied.
        signer = None if unsigned or dry_run else private.signer(work.settings)
        order = Order(address, selection, extras, builds=not artifacts_only)
        access = RegistryAccess(work.settings, consent, progress=work.progress)
        contents = gather(access, order, lambda: work.engine)
        if dry_run:
            check_room(output, contents.size)
            _print_planned(contents, output, as_json=as_json)
            return
        if not as_json:
            click.echo(f"The bundle takes some {megabytes(contents.size)}.", err=True)
        index = create(access, order, contents, output, signer)
    document = {"output": str(output), "signed": signer is not None, **_index_document(index)}
    if as_json:
        print_json({**document, "dry_run": False})
        return
    _print_index(index)
    click.echo(f"{output}: {len(index.files)} files, {megabytes(index.size)}")


@command.command("show")
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
    """Verify the signature of a bundle, and say what is in it."""
    with job(root) as work:
        found = open_bundle(work.settings, bundle, Consent(public_key, insecure))
        if checks:
            check_files(found, progress=work.progress)
    if as_json:
        print_json({"signed_by": found.signed_by, **_index_document(found.index)})
        return
    _print_index(found.index)
    print_fields(
        [
            ("signed by", found.signed_by or "no key"),
            ("files", len(found.index.files)),
            ("size", megabytes(found.index.size)),
            ("checked", checks),
        ]
    )


@command.command("load")
@click.argument("bundle", type=_PLACE, metavar="DIR|FILE.tar")
@_destination
@believing
@options.root
@options.dry_run
@options.as_json
def load_command(
    *,
    bundle: Path,
    where: _Target,
    consent: Consent,
    root: Path,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Use a bundle, once its signature and every file were verified."""
    where.check()
    with job(root) as work:
        found = open_bundle(work.settings, bundle, consent)
        if not as_json:
            click.echo(f"{bundle} has {megabytes(found.index.size)}.", err=True)
        check_files(found, progress=work.progress)
        done = Loaded()
        access = RegistryAccess(work.settings, consent, progress=work.progress)
        if where.registry is not None and not dry_run:
            done = push_bundle(access, found, where.registry)
        wanted = _wanted(work, found, where)
        if where.stores and not dry_run:
            engine = (lambda: work.engine) if where.base_images else None
            stored = store_bundle(access, found, wanted, engine=engine)
            stored.pushed, stored.sent = done.pushed, done.sent
            stored.changed |= done.changed
            done = stored
    if as_json:
        planned = [one.digest for one in wanted]
        print_json(
            {"signed_by": found.signed_by, "for_host": planned, **asdict(done), "dry_run": dry_run}
        )
        return
    _print_loaded(found, done, len(wanted), dry_run=dry_run)


def _wanted(work: Job, found: Bundle, where: _Target) -> tuple[BundleArtifact, ...]:
    if not where.stores:
        return ()
    return for_host(work.settings, found, all_kernels=where.all_kernels)


def _index_document(index: BundleIndex) -> dict[str, Any]:
    document = index.model_dump(mode="json", by_alias=True)
    return {**document, "files": len(index.files), "size": index.size}


def _print_planned(contents: Contents, output: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "output": str(output),
                "artifacts": [one.document() for one in contents.chosen],
                "bases": [f"{base.image}@{base.digest}" for base, _image in contents.bases],
                "files": len(contents.copies) + len(contents.texts),
                "size": contents.size,
                "dry_run": True,
            }
        )
        return
    rows = [(one.driver, ", ".join(one.tags), megabytes(one.size)) for one in contents.chosen]
    print_table(("driver", "names", "size>"), rows)
    click.echo(f"{output} would take some {megabytes(contents.size)}.")


def _print_index(index: BundleIndex) -> None:
    columns = ("driver", "version", "flavour", "kernel", "distro", "machine", "size>")
    rows = [
        (o.driver, o.version, o.flavour, o.kernel, o.distro, o.architecture, megabytes(o.size))
        for o in index.artifacts
    ]
    print_table(columns, rows)
    for base in index.bases:
        click.echo(f"base image {base.image}@{base.digest}")
    for key in index.keys:
        click.echo(f"verified with {key.name}, {key.fingerprint}")


def _print_loaded(found: Bundle, done: Loaded, wanted: int, *, dry_run: bool) -> None:
    if dry_run:
        click.echo(f"{found.name} is whole; {wanted} of its artifacts are for this host.")
        return
    for name in (*done.pushed, *done.entries, *done.bases):
        click.echo(name)
    click.echo(
        f"Names in the registry: {len(done.pushed)} ({megabytes(done.sent)} sent). Artifacts in the"
        f" store: {len(done.entries)}. Taken: packages {done.packages}, closures {done.closures},"
        f" base images {len(done.bases)}."
    )
