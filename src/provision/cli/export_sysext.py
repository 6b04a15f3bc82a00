"""The options and the command of ``provision export sysext``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from provision.build.driver_request import DriverRequest
from provision.cli import options
from provision.cli.job import job, trusting
from provision.cli.options import megabytes, print_fields, print_json
from provision.engine.scratch import scratch
from provision.errors import UsageError
from provision.export.artifact_source import ArtifactSource, check_driver
from provision.export.sysext import (
    Artifact,
    Hosts,
    extension_name,
    make_extension,
    need_mksquashfs,
)
from provision.export.yaml_files import check_output
from provision.files import copy, sha256_file
from provision.registry.registries import Consent

_FOLDER = click.Path(file_okay=False, path_type=Path)

kernels = click.option(
    "--kernel",
    "kernels",
    multiple=True,
    metavar="RELEASE",
    help="Kernel; may be given more than once.",
)
version = click.option("--version", metavar="VERSION", help="Version of the driver.  [the newest]")


@dataclass(frozen=True, slots=True)
class _Extension:
    """The options of ``sysext`` about the image."""

    images: tuple[str, ...]
    id: str
    version_id: str | None


_extension = options.option_group(
    "extension",
    _Extension,
    click.option(
        "--image",
        "images",
        multiple=True,
        metavar="IMAGE",
        help="Artifact image, in place of --kernel; may be given more than once.",
    ),
    click.option(
        "--id",
        default="_any",
        show_default=True,
        metavar="ID",
        help="ID in os-release of the systems that it merges with.",
    ),
    click.option(
        "--version-id", metavar="ID", help="VERSION_ID in os-release of these systems.  [any]"
    ),
)


@dataclass(frozen=True, slots=True)
class _Builds:
    """The options of ``sysext`` about artifacts."""

    kernels: tuple[str, ...]
    version: str | None
    flavour: str | None
    distro: str | None

    def of(self, driver: str) -> list[DriverRequest]:
        """Return a request for each kernel."""
        kernels = tuple(dict.fromkeys(self.kernels))
        return [
            DriverRequest(
                driver,
                kernel=kernel,
                distro=self.distro,
                version=self.version,
                flavour=self.flavour,
            )
            for kernel in kernels
        ]


_builds = options.option_group("builds", _Builds, kernels, version, options.flavour, options.distro)


@click.command("sysext")
@click.argument("driver")
@_builds
@_extension
@trusting
@options.catalogue
@options.root
@click.option(
    "--output", type=_FOLDER, required=True, metavar="DIR", help="New folder for the image."
)
@options.as_json
def sysext(
    *,
    driver: str,
    builds: _Builds,
    extension: _Extension,
    consent: Consent,
    catalogues: tuple[Path, ...],
    root: Path,
    output: Path,
    as_json: bool,
) -> None:
    """Make a system extension of DRIVER for hosts without an agent: provision-DRIVER.raw.

    The extension contains the artifacts for one or more kernels, and a unit that loads the modules
    for the running kernel. The artifacts come from the registry, the store or the named images.
    Nothing is built.
    """
    check_output(output)
    requests = builds.of(driver)
    if bool(requests) == bool(extension.images):
        raise UsageError(
            "Name the artifacts for the extension: either kernels or images.",
            resolution=f"provision export sysext {driver} --kernel RELEASE --output DIR",
        )
    need_mksquashfs()
    with job(root, catalogues) as work:
        source = ArtifactSource(work.settings, lambda: work.engine, consent, work.progress)
        with scratch(work.settings.state, "export", progress=work.progress) as folder:
            parts = [
                *_requested_parts(source, requests, folder),
                *_image_parts(source, driver, extension.images, folder),
            ]
            hosts = Hosts(extension.id, extension.version_id)
            image = make_extension(folder, parts, hosts, progress=work.progress)
            target = output / f"{extension_name(driver)}.raw"
            copy(image, target)
    _print_extension(target, parts, as_json=as_json)


def _requested_parts(
    source: ArtifactSource, requests: Sequence[DriverRequest], folder: Path
) -> Iterator[Artifact]:
    for number, request in enumerate(requests):
        place = folder / f"request-{number}"
        yield Artifact(place, source.artifact(request, place))


def _image_parts(
    source: ArtifactSource, driver: str, images: Sequence[str], folder: Path
) -> Iterator[Artifact]:
    for number, image in enumerate(images):
        place = folder / f"image-{number}"
        manifest = source.unpack(image, place)
        check_driver(manifest, driver, image)
        yield Artifact(place, manifest)


def _print_extension(target: Path, parts: Sequence[Artifact], *, as_json: bool) -> None:
    pin = parts[0].manifest.pin
    kernels = [part.manifest.pin.kernel.release for part in parts]
    size, sha256 = target.stat().st_size, sha256_file(target)
    if as_json:
        print_json(
            {
                "driver": pin.driver.name,
                "version": pin.driver.version,
                "kernels": kernels,
                "file": str(target),
                "size": size,
                "sha256": sha256,
            }
        )
        return
    print_fields(
        [
            ("extension", target),
            ("driver", f"{pin.driver.name} {pin.driver.version}"),
            ("kernels", ", ".join(kernels)),
            ("size", megabytes(size)),
            ("sha256", sha256),
        ]
    )
