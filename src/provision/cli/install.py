"""``install`` and ``verify``: put an artifact to use, or compare it with its manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace as changed
from functools import partial
from pathlib import Path
from typing import Any

from provision.agent.desired import load_desired
from provision.agent.use import refuse_reverted, refuse_unsuitable, use
from provision.build.image import image_pin
from provision.build.workspace import Settings
from provision.cli import options
from provision.cli.job import examined, job, trial_lines, trust_options
from provision.cli.options import argument, command, option
from provision.cli.output import emit, fields, of_pin, remark, size_of, table
from provision.engine.docker_api import find_image, names_registry
from provision.errors import UsageError
from provision.kmod.load import why_unchecked
from provision.kmod.trial import require_loading
from provision.kmod.verify import Finding, Report, kernel_entry, verify_artifact
from provision.registry.find import TrustOverride
from provision.store.activate import host_files
from provision.store.artifact_lookup import check_age
from provision.store.layout import Layout
from provision.store.managed_files import Change
from provision.store.obtain import (
    Stored,
    store_image,
    store_pulled,
    unpacked_image,
    unpacked_pull,
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
    what: str = argument("IMAGE|STORE-ENTRY|DRIVER", among=options.stored),
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
            report = changed(report, findings=(*report.findings, *found))
        yield entry, report
