"""``resolve``, ``build``, ``verify`` and ``install``: from a request to a host's store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from provision.agent.desired import load_desired
from provision.agent.use import refuse_reverted, refuse_unsuitable, use
from provision.build.context_files import context_files
from provision.build.image import build_image, find_built, image_pin, render_context
from provision.build.package_store import PackageStore
from provision.build.request import DriverRequest
from provision.build.resolve import pin_document, read_pin, resolve_pin
from provision.build.workspace import Settings
from provision.cli import options
from provision.cli.job import (
    KeyOptions,
    examined,
    job,
    key_options,
    optional_request,
    request_options,
    signed_lines,
    trial_lines,
    trust_options,
)
from provision.cli.options import argument, command, option
from provision.cli.output import emit, fields, megabytes, members, of_pin, remark, size_of, table
from provision.engine.docker_api import find_image, names_registry
from provision.errors import UsageError
from provision.files import write_atomic, write_output
from provision.kmod.load import why_unchecked
from provision.kmod.trial import Trial, require_loading
from provision.kmod.verify import Finding, Report, kernel_entry, verify_artifact
from provision.pin import Pin
from provision.registry import check_push_name
from provision.registry.find import TrustOverride, host_reference
from provision.registry.publish import publish
from provision.store.activate import host_files
from provision.store.availability import check_age
from provision.store.layout import Layout
from provision.store.managed_files import Change
from provision.store.obtain import (
    Stored,
    store_image,
    store_pulled,
    unpacked_image,
    unpacked_pull,
)

# What the engine's cache had takes no time.
_CACHED_S = 0.05


@command("resolve")
def resolve_command(
    *,
    arch: str | None = options.arch,
    request: DriverRequest = request_options,
    network: str | None = options.network,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root_or_new,
    output: Path | None = option(
        "--output FILE",
        "Write the Pin to a file, for 'provision build --pin' on any machine.",
        type=options.OUTPUT_FILE,
    ),
) -> None:
    """Decide every input of a build of DRIVER: the Pin, whose digest names the image."""
    with job(root, catalogues, arch=arch, network=network) as settings:
        pin = resolve_pin(settings, request)
    document = pin_document(pin)
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
    pin_file: Path | None = option(
        "--pin FILE",
        "In place of DRIVER, build this Pin; 'provision resolve --output' writes the file.",
        type=options.FILE,
    ),
    arch: str | None = options.arch,
    request: DriverRequest = optional_request,
    network: str | None = options.network,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root_or_new,
    jobs: int | None = option(
        "--jobs N",
        "Number of compilers that run in parallel.  [one per processor]",
        type=click.IntRange(min=1),
    ),
    rebuild: bool = option("--rebuild", "Build even if the image exists."),
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
    given = [
        f"--{name}"
        for name, value in {**asdict(request), "arch": arch}.items()
        if value and name != "driver"
    ]
    options.refuse((not request.driver) == (pin_file is None), "Give either DRIVER or --pin FILE.")
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
    with job(root, catalogues, arch=arch, network=network) as settings:
        pin = read_pin(settings, pin_file) if pin_file else resolve_pin(settings, request)
        if render is not None:
            _render(settings, pin, render, dry_run=dry_run)
            return
        if dry_run:
            found = find_built(settings.engine(), pin, settings.state)
            exists = found is not None and not rebuild
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
        built = build_image(settings, pin, jobs=jobs, rebuild=rebuild)
        tried = _tried(settings, built.image) if trial else None
        pushed = signed = None
        if push_to is not None:
            name = str(host_reference(settings, pin, push_to))
            pushed, signed = publish(settings, pin, built.image_id, name, signer)
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
    with unpacked_image(settings, image) as (folder, verified):
        manifest = verified.require_whole(f"'{image}'")
        return require_loading(settings, folder, manifest, what=f"'{image}'")


def _render(settings: Settings, pin: Pin, folder: Path, *, dry_run: bool) -> None:
    context = render_context(settings, pin)
    commits = [f"git/{commit.file_name}" for commit in context.commits]
    names = sorted([*context.files, *context.downloads, *context.parts, *commits])
    if not dry_run:
        context.write(folder)
        files = context_files(PackageStore(settings.state), pin, context)
        for name, path in files.items():
            write_atomic(folder / name, path.read_bytes())
    emit(
        {
            "digest": pin.digest,
            "image": pin.image,
            "output": folder,
            "files": names,
            "dry_run": dry_run,
        },
        lambda one: (
            f"{'would write' if dry_run else 'wrote'} {folder / name}" for name in one["files"]
        ),
    )


@command("install")
def install_command(
    *,
    what: str = argument("IMAGE"),
    root: Path = options.root_or_new,
    trust: TrustOverride = trust_options,
    again: bool = options.again,
    replace: bool = options.replace_files,
    force: bool = option(
        "--force",
        "Use it although it drives no card of this host, or is refused for its kernel.",
    ),
    dry_run: bool = options.dry_run,
) -> None:
    """Put an artifact into the host's store, and let its kernel use it.

    If that kernel runs, the command switches to the artifact; 'provision load' loads it. What
    provision.toml does not ask for is refused, because the next run of the agent would take it
    back. An artifact that is installed already stays.

    An IMAGE whose name begins with the host of a registry, or with oci:DIR, comes from there and
    must be signed. Every other name is an image of the engine, which this user must have built.
    """
    with job(root) as settings:
        desired = load_desired(settings.root)
        add: Callable[[], Stored]
        if names_registry(what):
            trusted = examined(settings, what, trust)
            check_age(settings, trusted, trust)
            pin = trusted.pin
            add = partial(store_pulled, settings, trusted, trust, replace=again)
        elif ":" in what or "/" in what:
            pin = image_pin(find_image(settings.engine(), what), what)
            add = partial(store_image, settings, what, trust, replace=again)
        else:
            raise UsageError(
                f"'{what}' is not an image.",
                resolution=f"To install a driver, name it in /etc/provision/provision.toml"
                f" ([drivers.{what}]), and run: provision apply",
            )
        refuse_reverted(desired, pin.driver)
        if not force:
            refuse_unsuitable(settings.root, desired, pin)
        entry = Layout(settings.root, pin.driver.name).entry(pin.short_digest)
        changes: list[Change] = [] if entry.is_dir() and not again else [Change("unpack", entry)]
        if not dry_run:
            stored = add()
            is_new = stored.origin != "store"
            changes = [Change("unpack", entry)] if is_new else []
            changes += use(
                settings.root, desired, entry, stored.manifest, replace=replace, force=force
            )
    emit(
        {
            **of_pin(pin),
            "root": root,
            "entry": entry,
            "changed": bool(changes) and not dry_run,
            "changes": [{"kind": c.kind, "path": c.path, "what": str(c)} for c in changes],
            "dry_run": dry_run,
        },
        _changes,
    )


def _changes(done: Mapping[str, Any]) -> Iterator[str]:
    what = "{driver} {version} for {kernel}".format_map(done)
    if not done["changes"]:
        yield f"{what} is installed already; nothing changed."
    elif done["dry_run"]:
        yield from (f"would {change['what']}" for change in done["changes"])
    else:
        yield f"{what} is installed in {done['entry']}."


@command("verify")
def verify_command(
    *,
    what: str = argument("IMAGE|STORE-ENTRY|DRIVER"),
    boot: bool = option(
        "--boot", "Also boot the kernel in a virtual machine, and load the modules there."
    ),
    kernel: str | None = option(
        "--kernel RELEASE",
        "With --boot, the kernel; of DRIVER, its artifact for that kernel.  [the artifact's]",
    ),
    insecure: bool = options.insecure,
    public_key: Path | None = options.public_key,
    network: str | None = options.network,
    root: Path = options.root,
) -> None:
    """Compare an artifact with its manifest: every module and file, and the kernel.

    The artifact is that of an image, of a folder in a store, or the active one of DRIVER, with its
    files on the host.

    With --boot, QEMU boots the kernel without a disk and a network, and the artifact's own loader
    loads the modules there. This host's kernel is not touched. If the kernel is not installed here,
    its distro's packages are downloaded. Exit code 1: the kernel refuses a module, or crashes. 3:
    it could not be tried.
    """
    options.refuse(
        kernel is not None and not boot,
        "--kernel names the kernel to boot, and nothing is booted.",
        f"Add --boot: provision verify --boot --kernel {kernel} {what}",
    )
    with (
        job(root, network=network) as settings,
        _artifact(settings, what, TrustOverride(public_key, insecure), kernel) as (folder, report),
    ):
        manifest = report.require_whole(f"'{what}'")
        trial = (
            require_loading(settings, folder, manifest, what=f"'{what}'", kernel=kernel)
            if boot
            else None
        )
    pin = manifest.pin
    if unchecked := why_unchecked(manifest):
        remark(f"Warning: {pin.driver.name}: {unchecked}")
    emit(
        {
            "target": what,
            "digest": pin.digest,
            "image": pin.image,
            "driver": pin.driver,
            "kernel": pin.kernel.release,
            "modules": manifest.modules,
            "files": len(manifest.files),
            "compared": report.size,
            "findings": [],
            **({"boot": trial} if trial else {}),
        },
        table("modules", {"module": "name", "vermagic": "vermagic", "size>": size_of("size")}),
        fields(
            {
                "driver": lambda one: "{name} {version} ({flavour})".format_map(one["driver"]),
                "kernel": "kernel",
                "files": "files",
                "compared": size_of("compared"),
                "digest": "digest",
                "result": lambda _: "undamaged",
            }
        ),
        lambda one: trial_lines(one["boot"]) if trial else (),
    )


@contextmanager
def _artifact(
    settings: Settings, what: str, trust: TrustOverride, kernel: str | None
) -> Iterator[tuple[Path, Report]]:
    """Yield an artifact's folder, and how it compares with its manifest."""
    path = Path(what)
    is_path = path.is_dir() or what.startswith(("/", "./", "../"))
    if not is_path and names_registry(what):
        with unpacked_pull(settings, examined(settings, what, trust)) as unpacked:
            yield unpacked
    elif not is_path and (":" in what or "/" in what):
        with unpacked_image(settings, what) as unpacked:
            yield unpacked
    else:
        layout = Layout(settings.root, what)
        entry = path if is_path else kernel_entry(layout, kernel, settings.config.drivers)
        report = verify_artifact(entry)
        if report.manifest and not is_path and entry == layout.linked(layout.current):
            lost = host_files(layout, report.manifest).lost
            found = (Finding(str(path), "missing", "is missing or empty") for path in lost)
            report = report._replace(findings=(*report.findings, *found))
        yield entry, report
