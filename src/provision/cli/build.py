"""``resolve`` and ``build``: the Pin of a driver, its build context, and its image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from provision.build.context_files import downloaded_files
from provision.build.image import build_image, find_built
from provision.build.request import BuildSettings, RequestOptions
from provision.build.resolve import Resolved, pin_document, read_pin, render_context, resolve_pin
from provision.build.workspace import Settings
from provision.cli import options
from provision.cli.job import (
    KeyOptions,
    build_options,
    job,
    key_options,
    signed_lines,
    target_options,
    trial_lines,
)
from provision.cli.options import argument, command, option
from provision.cli.output import emit, fields, megabytes, members, size_of, table
from provision.files import write_atomic, write_output
from provision.kmod.trial import Trial, require_loading
from provision.registry.find import host_reference
from provision.registry.names import check_push_name
from provision.registry.publish import EngineImage, publish
from provision.store.obtain import unpacked_image

# What the engine's cache had takes no time.
_CACHED_S = 0.05


@command("resolve")
def resolve_command(
    *,
    driver: str = argument("DRIVER"),
    arch: str | None = options.arch,
    target: RequestOptions = target_options,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root_or_new,
    output: Path | None = option(
        "--output FILE",
        "Write the Pin to a file, for 'provision build --pin' on any machine.",
        type=options.OUTPUT_FILE,
    ),
) -> None:
    """Decide every input of a build of DRIVER: the Pin, whose digest names the image."""
    with job(root, catalogues, arch=arch, network=target.network) as settings:
        resolved = resolve_pin(settings, target.of(driver))
    pin = resolved.pin
    document = pin_document(pin, resolved.urls)
    if output is not None:
        write_output(output, json.dumps(document, indent=1) + "\n")
    emit(
        document,
        fields(
            {
                "driver": lambda _: (
                    f"{pin.driver.name} {pin.driver.version} ({pin.driver.flavour})"
                ),
                "kernel": lambda _: f"{pin.kernel.release} ({pin.kernel.architecture})",
                "distro": lambda _: f"{pin.distro.id} {pin.distro.version} ({pin.distro.codename})",
                "base": lambda _: f"{pin.base.image}\n{pin.base.digest}",
                "compiler": lambda _: (
                    pin.compiler and f"{pin.compiler.name} {pin.compiler.version}"
                ),
                "headers": lambda _: _packages(pin.headers),
                "kernel tree": lambda _: pin.tree and _tree(pin.tree),
                "tools": lambda _: _packages(pin.packages),
                "closure": lambda _: _closure(pin.closure),
                "sources": lambda _: "\n".join(source.text for source in pin.sources),
                "patches": lambda _: "\n".join(f"{p.name} {p.sha256}" for p in pin.patches) or None,
                "recipe": lambda _: pin.recipe,
                "format": lambda _: pin.format,
                "signing key": lambda _: pin.signing_key,
                "digest": lambda _: pin.digest,
                "image": lambda _: pin.image,
                "written?": lambda _: output,
            }
        ),
        is_input=True,
    )


def _packages(packages: Any) -> str | None:  # noqa: ANN401 - of a Pin
    return "\n".join(f"{package.name} {package.version}" for package in packages) or None


def _tree(tree: Any) -> str:  # noqa: ANN401 - of a Pin
    parts = ("tree", "config", "symvers", "compiler")
    digests = [f"{part} sha256:{value}" for part in parts if (value := getattr(tree, part))]
    toolchain = tree.toolchain.name if tree.toolchain else "image"
    return "\n".join([f"{tree.kind}, compiled with {toolchain}", *digests])


def _closure(closure: Any) -> str | None:  # noqa: ANN401 - of a Pin
    if not closure:
        return None
    upgrades = [package.name for package in closure if package.action == "upgrade"]
    size = f"{len(closure)} packages, {megabytes(sum(package.size for package in closure))}"
    return f"{size}\nupgraded in the base image: {', '.join(upgrades)}" if upgrades else size


@command("build")
def build_command(
    *,
    driver: str | None = argument("[DRIVER]"),
    pin_file: Path | None = option(
        "--pin FILE",
        "In place of DRIVER, build this Pin; 'provision resolve --output' writes the file.",
        type=options.FILE,
    ),
    arch: str | None = options.arch,
    target: RequestOptions = target_options,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root_or_new,
    how: BuildSettings = build_options,
    render: Path | None = option(
        "--render DIR",
        "Build nothing: write the Dockerfile and the build context to this folder.",
        type=options.FOLDER,
    ),
    push_to: str | None = option(
        "--push REF", "Also push the image under this name, or to a folder: oci:DIR."
    ),
    signs: bool = option("--sign", "Sign the pushed image."),
    trial: bool = options.trial,
    private: KeyOptions = key_options,
    dry_run: bool = options.dry_run,
) -> None:
    """Build the kernel modules and the user space of DRIVER into an image.

    If an image of the same Pin exists, the command builds nothing. With --render, the same Pin
    gives the same bytes.
    """
    given = [*target.given(), *(["--arch"] if arch else [])]
    options.refuse((driver is None) == (pin_file is None), "Give either DRIVER or --pin FILE.")
    options.refuse(
        pin_file and given,
        f"{', '.join(given)} can't be given with --pin: the file has these values.",
        "Leave it out, or resolve with it again ('provision resolve --help').",
    )
    options.refuse(
        signs and push_to is None,
        "--sign needs an image that is pushed.",
        "Add --push REF, or leave out --sign.",
    )
    private.check(signs=signs)
    if push_to is not None:
        check_push_name(push_to)
    options.refuse(
        render
        and render.is_dir()
        and any(render.iterdir())
        and not (render / "Dockerfile").is_file(),
        f"'{render}' has other files.",
        "Name an empty folder, or a new one.",
    )
    with job(root, catalogues, arch=arch, network=target.network) as settings:
        if pin_file is not None:
            resolved = read_pin(settings, pin_file)
        else:
            resolved = resolve_pin(settings, target.of(str(driver)))
        pin = resolved.pin
        if render is not None:
            _render(settings, resolved, render, dry_run=dry_run)
            return
        if dry_run:
            found = find_built(settings.engine(), pin, settings.state)
            exists = found is not None and not how.rebuild
            emit(
                {
                    "image": pin.image,
                    "digest": pin.digest,
                    "built": False,
                    "dry_run": True,
                    "would_build": not exists,
                },
                f"{pin.image} {'exists' if exists else 'would be built'}",
            )
            return
        # Check the key before the build.
        signer = private.signer(settings) if signs else None
        built = build_image(settings, resolved, how)
        tried = _tried(settings, built.image) if trial else None
        image = EngineImage(settings.engine(), built.image_id, pin, signer)
        pushed = signed = None
        if push_to is not None:
            pushed, signed = publish(settings, image, str(host_reference(settings, pin, push_to)))
    phases = built.phases()
    emit(
        {
            **members(built, "image", "image_id", "built", "size", "log", "differing", "left_out"),
            "digest": pin.digest,
            "seconds": {name: round(taken, 3) for name, taken in phases.items()},
            "steps": [
                {
                    **members(step, "number", "instruction", "cached"),
                    "seconds": round(step.seconds, 3),
                }
                for step in built.steps
            ],
            "pushed": pushed,
            "signed": signed,
            **({"boot": tried} if tried else {}),
        },
        table(
            lambda _: phases.items(),
            {
                "part": lambda item: item[0],
                "seconds>": lambda item: f"{item[1]:.1f}" if item[1] > _CACHED_S else "cached",
            },
        )
        if built.built
        else lambda _: (),
        fields(
            {
                "image": "image",
                "size": size_of("size"),
                "built": "built",
                "log?": "log",
                "left out?": lambda _: ", ".join(built.left_out) or None,
                "pushed?": lambda _: pushed and f"{pushed.reference}@{pushed.digest}",
            }
        ),
        lambda one: trial_lines(one["boot"]) if tried else (),
        lambda one: signed_lines(one["signed"]) if signed else (),
    )


def _tried(settings: Settings, image: str) -> Trial:
    """Return the trial of an image, which it passed."""
    with unpacked_image(settings, image) as (folder, verified):
        manifest = verified.require_whole(f"'{image}'")
        return require_loading(settings, folder, manifest, what=f"'{image}'")


def _render(settings: Settings, resolved: Resolved, folder: Path, *, dry_run: bool) -> None:
    """Write the build context of a Pin."""
    context = render_context(resolved)
    names = sorted([*context.files, *context.downloads, *context.parts])
    if not dry_run:
        context.write(folder)
        files = downloaded_files(settings, resolved, context)
        for name, path in files.items():
            write_atomic(folder / name, path.read_bytes())
    emit(
        {
            "digest": resolved.pin.digest,
            "image": resolved.pin.image,
            "output": folder,
            "files": names,
            "dry_run": dry_run,
        },
        lambda one: (
            f"{'would write' if dry_run else 'wrote'} {folder / name}" for name in one["files"]
        ),
    )
