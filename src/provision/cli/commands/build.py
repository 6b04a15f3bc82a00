"""``provision build`` and ``base``: artifact images, and the base images that builds start from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from provision.build.artifact_image import Built, find
from provision.build.driver_request import BuildSettings, RequestOptions
from provision.build.image_builds import base_of, build_image, ensure_base_image
from provision.build.pin_file import read_pin
from provision.cli import options
from provision.cli.commands.push import print_signed
from provision.cli.display import print_table
from provision.cli.job import Job, KeyOptions, building, job, private_key_options, target
from provision.cli.options import megabytes, print_fields, print_json
from provision.engine.transfer import Pushed
from provision.errors import UsageError
from provision.pin import Pin
from provision.registry.image_archives import save_image
from provision.registry.image_signing import EngineImage, SignedImage, publish
from provision.registry.names import check_push_name


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a build: a driver, or the Pin of a file."""

    driver: str | None
    pin_file: Path | None


_subject = options.option_group(
    "subject",
    Subject,
    click.argument("driver", required=False),
    click.option(
        "--pin",
        "pin_file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="In place of DRIVER, build this Pin; 'provision resolve --output' writes the file.",
    ),
)


@dataclass(frozen=True, slots=True)
class _Publishing(KeyOptions):
    """Further destinations of the image, and the key that signs it there."""

    push_to: str | None
    output: Path | None
    signs: bool

    def check_options(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            UsageError: There is nothing to sign, or a name is not valid.
        """
        if self.signs and self.push_to is None and self.output is None:
            raise UsageError(
                "--sign needs an image that is pushed or written to an archive.",
                resolution="Add --push REF or --output FILE.tar, or leave out --sign.",
            )
        self.check(signs=self.signs)
        if self.push_to is not None:
            check_push_name(self.push_to)

    def publish(self, work: Job, image: EngineImage) -> tuple[Pushed | None, SignedImage | None]:
        """Push an image and write it to an archive, as the options say."""
        pushed = signed = None
        if self.push_to is not None:
            pushed, signed = publish(work.settings, image, self.push_to, progress=work.progress)
        if self.output is not None:
            _saved, signed = save_image(work.settings, image, self.output, progress=work.progress)
        return pushed, signed


_publishing = options.option_group(
    "publishing",
    _Publishing,
    click.option("--push", "push_to", metavar="REF", help="Also push the image under this name."),
    click.option(
        "--output",
        type=options.OUTPUT_FILE,
        metavar="FILE.tar",
        help="Also write the image to an archive.",
    ),
    click.option("--sign", "signs", is_flag=True, help="Sign the pushed or written image."),
    *private_key_options,
)


@click.command("build")
@_subject
@target
@building
@_publishing
@options.dry_run
@options.as_json
def build_command(
    *,
    root: Path,
    catalogues: tuple[Path, ...],
    dry_run: bool,
    as_json: bool,
    subject: Subject,
    target: RequestOptions,
    how: BuildSettings,
    publishing: _Publishing,
) -> None:
    """Build the kernel modules and the user space of DRIVER into an image.

    If an image of the same Pin exists, the command builds nothing.
    """
    _check(subject, target)
    publishing.check_options()
    with job(root, catalogues) as work:
        if subject.pin_file is not None:
            resolved = read_pin(work.settings, subject.pin_file, network=target.network)
        else:
            resolved = work.resolve(target.of(str(subject.driver)))
        if dry_run:
            exists = find(work.engine, resolved.pin) is not None and not how.rebuild
            _print_dry_run(resolved.pin, exists=exists, as_json=as_json)
            return
        # Check the key before the build.
        signer = publishing.signer(work.settings) if publishing.signs else None
        built = build_image(work.settings, work.engine, resolved, how, progress=work.progress)
        image = EngineImage(work.engine, built.image_id, resolved.pin, signer)
        pushed, signed = publishing.publish(work, image)
    if as_json:
        document = _document(resolved.pin, built, pushed)
        print_json({**document, "signed": signed.document() if signed else None})
    else:
        _print(built, pushed)
        if signed is not None:
            print_signed(signed)


def _check(subject: Subject, target: RequestOptions) -> None:
    if (subject.driver is None) == (subject.pin_file is None):
        raise UsageError(
            "Give either DRIVER or --pin FILE.",
            resolution="'provision build --help' lists the options.",
        )
    given = target.given()
    if subject.pin_file is not None and given:
        raise UsageError(
            f"{', '.join(given)} can't be given with --pin: the file has these values.",
            resolution="Leave it out, or resolve with it again ('provision resolve --help').",
        )


def _document(pin: Pin, built: Built, pushed: Pushed | None) -> dict[str, Any]:
    return {
        "image": built.image,
        "image_id": built.image_id,
        "digest": pin.digest,
        "built": built.built,
        "size": built.size,
        "seconds": {name: round(taken, 3) for name, taken in built.phases().items()},
        "steps": [
            {
                "number": step.number,
                "instruction": step.instruction,
                "seconds": round(step.seconds, 3),
                "cached": step.cached,
            }
            for step in built.steps
        ],
        "log": str(built.log) if built.log else None,
        "differing": list(built.differing),
        "pushed": asdict(pushed) if pushed else None,
    }


def _print(built: Built, pushed: Pushed | None) -> None:
    if built.built:
        times = [(name, f"{taken:.1f}") for name, taken in built.phases().items()]
        print_table(("part", "seconds>"), times)
    print_fields(
        [
            ("image", built.image),
            ("size", megabytes(built.size)),
            ("built", built.built),
            *([("log", built.log)] if built.log else []),
            *([("pushed", f"{pushed.reference}@{pushed.digest}")] if pushed else []),
        ]
    )


def _print_dry_run(pin: Pin, *, exists: bool, as_json: bool) -> None:
    if as_json:
        document = {"image": pin.image, "digest": pin.digest, "built": False, "dry_run": True}
        print_json(document | {"would_build": not exists})
    else:
        click.echo(f"{pin.image} {'exists' if exists else 'would be built'}")


@click.command("base")
@click.argument("distro", required=False, metavar="[ID:VERSION]")
@options.again
@options.root
@options.dry_run
@options.as_json
def base_command(
    *, distro: str | None, again: bool, root: Path, dry_run: bool, as_json: bool
) -> None:
    """Pull or make the base image of a distro, such as debian:12.

    An existing image stays. If the image can't be pulled, debootstrap, dnf or zypper of this
    machine makes it from the distro's packages. A base image that was made again changes all Pins
    that use it.
    """
    with job(root) as work:
        if dry_run:
            request = base_of(work.settings, distro)
            exists = work.engine.image(request.name) is not None and not again
            _print_base_dry_run(request.name, exists=exists, as_json=as_json)
            return
        pin, made = ensure_base_image(
            work.settings, work.engine, distro, replace=again, progress=work.progress
        )
    if as_json:
        print_json({"image": pin.image, "digest": pin.digest, "made": made})
    else:
        click.echo(f"{pin.image} {pin.digest} {'made' if made else 'is there'}")


def _print_base_dry_run(image: str, *, exists: bool, as_json: bool) -> None:
    if as_json:
        print_json({"image": image, "made": False, "dry_run": True, "would_make": not exists})
    else:
        click.echo(f"{image} {'is there' if exists else 'would be pulled or made'}")
