"""``bundle``: carries artifacts over an air gap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from provision.cli import options
from provision.cli.job import KeyOptions, job, key_options, trust_options
from provision.cli.options import argument, command, option
from provision.cli.output import emit, megabytes, plain, remark, size_of, table, wants_json
from provision.errors import UsageError
from provision.fleet.bundle import (
    Chosen,
    Extras,
    ImageSelection,
    RegistryAccess,
    check_room,
    create,
    gather,
)
from provision.fleet.bundle_load import (
    Loaded,
    artifacts_of,
    check_files,
    for_host,
    open_bundle,
    push_bundle,
    store_bundle,
)
from provision.registry.find import TrustOverride


def _files(name: str, said: str) -> Any:  # noqa: ANN401 - as option
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return option(f"{name} FILE", said, type=kind, multiple=True)


# Files that go into a bundle unchanged.
_extras = options.group(
    Extras,
    wheels=option(
        "--wheels DIR",
        "Folder with the Python packages for hosts.",
        type=options.EXISTING_FOLDER,
    ),
    host_python=_files("--host-python", "Archive that 'provision export host-python' made."),
    collections=_files("--collection", "Archive of the Ansible collection."),
    programs=_files("--program", "The program oci-decorator."),
)
_selection = options.group(
    ImageSelection,
    drivers=option(
        "--driver NAME",
        "Driver; may be given more than once.  [those of the catalogue]",
        multiple=True,
    ),
    kernels=option(
        "--kernel RELEASE",
        "Kernel, or a pattern ('6.1.0-*'); may be given more than once.  [all]",
        multiple=True,
    ),
    distros=option(
        "--distro ID:VERSION",
        "Distro, such as debian:12; may be given more than once.  [all]",
        multiple=True,
    ),
)
# Its artifacts, for people.
_ARTIFACTS = table(
    "artifacts",
    {
        **{name: name for name in ("driver", "version", "flavour", "kernel", "distro")},
        "machine": "architecture",
        "signed by": lambda one: one["signed_by"] or "no key",
        "size>": size_of("size"),
    },
)


@click.group("bundle")
def bundle() -> None:
    """Carry signed artifacts over an air gap, with everything else that builds and hosts need."""


@command("create", bundle)
def create_command(
    *,
    output: Path = option(
        "--output DIR|FILE.tar", "Folder or archive to write.", type=options.OUTPUT, required=True
    ),
    address: str | None = option(
        "--from HOST[:PORT][/PREFIX]",
        "Registry that has the artifacts.  [[registry] address of provision.toml]",
    ),
    artifacts_only: bool = option(
        "--artifacts-only", "Leave out the packages and base images that builds need."
    ),
    unsigned: bool = option("--unsigned", "Don't sign the bundle; hosts refuse unsigned bundles."),
    private: KeyOptions = key_options,
    extras: Extras = _extras,
    selection: ImageSelection = _selection,
    consent: TrustOverride = trust_options,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
    dry_run: bool = options.dry_run,
) -> None:
    """Write a bundle: artifacts with their signatures, and the packages and base images of builds.

    A second run with the same folder continues an interrupted one. A bundle carries no trust: the
    host that reads it decides which keys it accepts.
    """
    private.check(signs=not unsigned)
    with job(root, catalogues) as settings:
        where = address or settings.config.registry.address
        if where is None:
            raise UsageError(
                "No registry is named to take the artifacts from.",
                resolution="Add --from HOST, or set [registry] address in"
                " /etc/provision/provision.toml.",
            )
        # Check the key before the copies.
        signer = None if unsigned or dry_run else private.signer(settings)
        access = RegistryAccess(settings, consent)
        contents = gather(access, where, selection, extras.files(), builds=not artifacts_only)
        document = {
            "output": output,
            "artifacts": _documents(contents.chosen),
            "bases": [f"{base.image}@{base.digest}" for base, _image in contents.bases],
            "files": len(contents.copies) + len(contents.texts),
            "size": contents.size,
            "dry_run": dry_run,
        }
        if dry_run:
            check_room(output, contents.size)
            about = f"{output} would take about {megabytes(contents.size)}."
            emit(document, _ARTIFACTS, about)
            return
        if not wants_json():
            remark(f"The bundle takes about {megabytes(contents.size)}.")
        files = create(access, contents, output, signer)
    size = sum(files.values())
    emit(
        {**document, "signed": signer is not None, "files": len(files), "size": size},
        _ARTIFACTS,
        f"{output}: {len(files)} files, {megabytes(size)}",
    )


def _documents(images: tuple[Chosen, ...]) -> list[dict[str, object]]:
    return [one for each in images for one in each.documents()]


@command("load", bundle)
def load_command(
    *,
    bundle: Path = argument("DIR|FILE.tar", type=click.Path(exists=True, path_type=Path)),
    registry: str | None = option(
        "--registry HOST[:PORT][/PREFIX]", "Copy the artifacts to this registry behind the air gap."
    ),
    stores: bool = option(
        "--store", "Put the artifacts for this host's kernels into its store, with the packages."
    ),
    all_kernels: bool = option(
        "--all-kernels", "With --store: include artifacts for other kernels."
    ),
    base_images: bool = option(
        "--base-images", "With --store: load the base images into the engine."
    ),
    consent: TrustOverride = trust_options,
    root: Path = options.root,
    dry_run: bool = options.dry_run,
) -> None:
    """Verify a bundle completely, then copy its content to a registry or to this host.

    With --dry-run, the command verifies every signature and file, and lists the artifacts.
    """
    if registry is None and not stores and not dry_run:
        raise UsageError(
            "No destination for the bundle is named.",
            resolution="Add --registry HOST, --store, or both; or --dry-run to verify it only.",
        )
    with job(root) as settings:
        found = open_bundle(settings, bundle, consent)
        check_files(found)
        done = Loaded()
        access = RegistryAccess(settings, consent)
        images = artifacts_of(access, found)
        if registry is not None and not dry_run:
            push_bundle(access, found, images, registry, done)
        for_store = for_host(settings, images, all_kernels=all_kernels) if stores else ()
        if stores and not dry_run:
            store_bundle(access, found, for_store, done, with_bases=base_images)
    emit(
        {
            "signed_by": found.signed_by,
            "artifacts": _documents(images),
            "files": len(found.sums),
            "for_host": [one.reference.digest for one in for_store],
            **plain(done),
            "dry_run": dry_run,
        },
        *((_ARTIFACTS,) if dry_run else ()),
        lambda one: _loaded(found.name, one),
    )


def _loaded(name: str, done: Mapping[str, Any]) -> Iterator[str]:
    if done["dry_run"]:
        yield (
            f"{name} is complete: {done['files']} files, signed by {done['signed_by'] or 'no key'};"
            f" {len(done['for_host'])} of its artifacts are for this host."
        )
        return
    yield from (*done["pushed"], *done["entries"], *done["bases"])
    yield (
        f"New names in the registry: {len(done['pushed'])}. Artifacts in the"
        f" store: {len(done['entries'])}. Added: packages {done['packages']}, closures"
        f" {done['closures']}, base images {len(done['bases'])}."
    )
