"""``provision plan``, ``apply`` and ``prepare``: bring a host to its desired state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.agent.coming_kernels import is_calm, wait_for_kernel
from provision.agent.conclusion import Result, always_published
from provision.agent.desired import load_desired
from provision.agent.model import Desired, Mode, Plan, Run
from provision.agent.reconcile import apply, look_at
from provision.agent.status import NAME_A_DRIVER, ArtifactStatus, Status
from provision.cli import options
from provision.cli.commands.status import lazily_shown, print_result, result_document
from provision.cli.options import print_json
from provision.errors import ExitCode, UsageError
from provision.files import in_root
from provision.host.folders import STORE
from provision.host.kernels import find_kernels, kernels_of_usr
from provision.progress import Progress
from provision.store.entries import linked_kernels
from provision.store.layout import Layout
from provision.store.state import IN_USE

if TYPE_CHECKING:
    from provision.agent.foreseeing import Foreseen
    from provision.store.other_installations import OtherInstallation


_WAYS = {
    "boot": "Load what the store has for the running kernel, without network, engine or build.",
    "retry": "Retry artifacts that failed or were rolled back.",
    "update": "Move to newer versions where provision.toml does not fix the version.",
    "timer": "Run as the timer: --update if [policy] update = 'timer', then 'gc'.",
    "allow-downgrade": "Accept an artifact of a registry that is older than the one before it.",
    "wait-kernel": "First wait until the package manager has installed a new kernel completely.",
}


@click.command("plan")
@click.option("--retry", is_flag=True, help="Plan as 'apply --retry' does.")
@click.option("--update", is_flag=True, help="Plan as 'apply --update' does.")
@options.catalogue
@options.root
@options.as_json
def plan_command(
    *, retry: bool, update: bool, catalogues: tuple[Path, ...], root: Path, as_json: bool
) -> int:
    """Show what 'provision apply' would do here and why, and what it could not do.

    The command asks registries, archives, vendors and the engine as 'apply' does, and changes
    nothing. The exit code is 3 if nothing is configured, or if an artifact would have to be made
    and it is not known from where.
    """
    root = root.resolve()
    desired = load_desired(root, catalogues=catalogues)
    mode = Mode(retry=retry, update=update)
    planned, status = look_at(root, desired, mode)
    from provision.agent.foreseeing import foresee  # noqa: PLC0415 - loads registries, recipes

    artifacts = foresee(Run(root, desired, mode, catalogues), planned)
    warnings = list(_from_matrix(root, desired))
    others = _others(root, catalogues, desired)
    is_configured = status.state != "not-configured"
    if as_json:
        print_json(
            {
                "actions": [{**asdict(a), "what": str(a)} for a in planned.actions],
                "blocked": [asdict(blocked) for blocked in planned.blocked],
                "artifacts": [asdict(artifact) for artifact in artifacts],
                "kernels": asdict(status.kernels),
                "matrix": warnings,
                "others": [_other(one) for one in others],
            }
        )
    elif not is_configured:
        click.echo(f"Nothing is configured. {NAME_A_DRIVER}")
    else:
        _print(planned, {(a.driver, a.kernel): a for a in artifacts})
        endings = {(a.driver, a.ended): a.ended for a in artifacts if a.ended}
        for (driver, _), ended in endings.items():
            click.echo(f"Warning: {driver} {ended.message}\n  What to do: {ended.resolution}")
        _print_others(others)
        for one in warnings:
            what = f"{one['driver']} {one['version']} failed on {one['kernel']}"
            click.echo(f"The matrix says: {what}: {one['cause']}")
    makes = {(a.driver, a.kernel) for a in planned.actions if a.kind == "prepare"}
    is_known = not any(a.source == "missing" and (a.driver, a.kernel) in makes for a in artifacts)
    return ExitCode.DONE if is_configured and is_known else ExitCode.NOT_FOUND


def _others(root: Path, catalogues: tuple[Path, ...], desired: Desired) -> list[OtherInstallation]:
    """Return what the host has of the desired drivers that provision did not install."""
    from provision.build.workspace import load_settings  # noqa: PLC0415 - as above
    from provision.store.other_installations import other_installations  # noqa: PLC0415 - as above

    settings = load_settings(root, catalogues=catalogues)
    return other_installations(settings, [driver.name for driver in desired.drivers])


def _other(one: OtherInstallation) -> dict[str, str]:
    return {"driver": one.driver, "message": one.seen, "resolution": one.resolution}


def _print_others(others: Iterable[OtherInstallation]) -> None:
    for one in others:
        click.echo(f"Warning: {one.driver}: {one.seen}\n  What to do: {one.resolution}")


def _from_matrix(root: Path, desired: Desired) -> Iterator[dict[str, Any]]:
    """Yield the failures in the compatibility matrix, if there is one, for kernels to come."""
    if not in_root(root, STORE / "matrix").is_dir():
        return
    from provision.config import load  # noqa: PLC0415 - loads the models of provision.toml
    from provision.fleet.matrix.host_report import failures_ahead  # noqa: PLC0415 - loads those of results

    config, kernels = load(root), find_kernels(root)
    for driver in desired.drivers:
        ready = linked_kernels(Layout(root, driver.name))
        for result in failures_ahead(root, config, kernels, driver.name, ready=ready):
            yield {
                "driver": result.driver,
                "version": result.version,
                "flavour": result.flavour,
                "kernel": result.kernel,
                "cause": result.cause,
                "resolution": result.resolution,
            }


def _print(planned: Plan, artifacts: Mapping[tuple[str, str], Foreseen]) -> None:
    for number, action in enumerate(planned.actions, start=1):
        click.echo(f"{number}. {action}")
        artifact = artifacts.get((action.driver, action.kernel))
        if action.kind == "prepare" and artifact is not None:
            click.echo(f"   {artifact}")
            if artifact.resolution:
                click.echo(f"   What to do: {artifact.resolution}")
    for blocked in planned.blocked:
        click.echo(f"Not now: {blocked.driver} for {blocked.kernel}: {blocked.reason}")
        if blocked.resolution:
            click.echo(f"  What to do: {blocked.resolution}")
    if not planned.actions and not planned.blocked:
        click.echo("Nothing to do.")


@dataclass(frozen=True, slots=True)
class Ways:
    """The options that say how to apply."""

    boot: bool
    retry: bool
    update: bool
    timer: bool
    wait_kernel: bool
    allow_downgrade: bool


ways = options.option_group(
    "ways",
    Ways,
    *(click.option(f"--{name}", is_flag=True, help=text) for name, text in _WAYS.items()),
)


@click.command("apply")
@ways
@options.catalogue
@options.root
@options.dry_run
@options.as_json
def apply_command(
    *, ways: Ways, catalogues: tuple[Path, ...], root: Path, dry_run: bool, as_json: bool
) -> int:
    """Bring this host to the state that provision.toml describes, for the running and next kernels.

    The command does only what is missing, and never unloads a module that is in use. The exit code
    describes the state of the host afterwards.
    """
    context = click.get_current_context()
    if dry_run:
        code: int = context.invoke(
            plan_command,
            catalogues=catalogues,
            root=root,
            retry=ways.retry,
            update=ways.update,
            as_json=as_json,
        )
        return code
    root = root.resolve()
    with lazily_shown(verbose=context.find_root().params["verbose"]) as progress:
        result = _applied(root, catalogues, ways, progress)
    # A run that did nothing on a host that is ready ends at once.
    is_settled = not result.outcomes and result.status.state == "ready"
    has_others = not (is_settled or ways.boot)
    others = _others(root, catalogues, load_desired(root)) if has_others else []
    if as_json:
        print_json({**result_document(result), "others": [_other(one) for one in others]})
    else:
        print_result(result)
        _print_others(others)
    return _exit_code(result, is_boot=ways.boot)


def _applied(root: Path, catalogues: tuple[Path, ...], ways: Ways, progress: Progress) -> Result:
    with always_published(root, progress):
        if ways.boot:
            from provision.agent.boot import boot  # noqa: PLC0415 - only for a boot

            return boot(root, catalogues=catalogues, progress=progress)
        return _run(root, catalogues, ways, progress)


def _run(root: Path, catalogues: tuple[Path, ...], ways: Ways, progress: Progress) -> Result:
    if ways.wait_kernel:
        wait_for_kernel(root, progress=progress)
    desired = load_desired(root, catalogues=catalogues, keep=True)
    update = ways.update or (ways.timer and _allows(desired))
    mode = Mode(retry=ways.retry, update=update, allow_downgrade=ways.allow_downgrade)
    run = Run(root, desired, mode, catalogues, progress=progress)
    result = apply(run)
    # The path unit starts no second run for a kernel that was installed during this one.
    while ways.wait_kernel and not is_calm(root):
        if not wait_for_kernel(root, progress=progress):
            break
        before = result.outcomes
        result = apply(run)
        result = replace(result, outcomes=(*before, *result.outcomes))
    if ways.timer:
        from provision.agent import garbage  # noqa: PLC0415 - loads the models of packages

        # The artifacts of removed kernels take space.
        garbage.remove_unneeded(root, desired, progress=progress)
        garbage.remove_packages(root)
    return result


def _allows(desired: Desired) -> bool:
    return desired.update == "timer"


def _exit_code(result: Result, *, is_boot: bool) -> int:
    """Return the exit code of the host's state; at a boot, only of loading what the store has."""
    if not is_boot:
        return result.status.exit_code
    failures = [outcome.failure for outcome in result.outcomes if outcome.error]
    if any(failure is None or failure.reason != IN_USE for failure in failures):
        return ExitCode.FAILED
    is_waiting = result.status.exit_code == ExitCode.IN_USE
    return ExitCode.IN_USE if is_waiting else ExitCode.DONE


@click.command("prepare")
@click.argument("releases", nargs=-1, metavar="[RELEASE]…")
@click.option(
    "--usr",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Take the kernels of this /usr, of a system that has not booted yet.",
)
@options.catalogue
@options.root
@options.as_json
def prepare_command(
    *,
    releases: tuple[str, ...],
    usr: Path | None,
    catalogues: tuple[Path, ...],
    root: Path,
    as_json: bool,
) -> int:
    """Make every driver ready for kernels to come, which are named as 'uname -r' prints them.

    The command does what 'apply' does, and the same for these kernels. Exit code 0 means that every
    driver has its artifact for them.
    """
    coming = tuple(dict.fromkeys([*releases, *(kernels_of_usr(usr) if usr else ())]))
    if not coming:
        raise UsageError(
            "No kernel is named." if usr is None else f"There is no kernel in '{usr}/lib/modules'.",
            resolution="Name a kernel (provision prepare RELEASE), or a /usr with one (--usr DIR).",
        )
    root = root.resolve()
    verbose = click.get_current_context().find_root().params["verbose"]
    # An explicit request overrides the policy and earlier failures.
    with lazily_shown(verbose=verbose) as progress, always_published(root, progress):
        desired = replace(load_desired(root, catalogues=catalogues), prebuild=True)
        run = Run(root, desired, Mode(retry=True), catalogues, progress, coming=coming, usr=usr)
        result = apply(run)
    lacking = list(_lacking(result.status, coming))
    if as_json:
        lacks = [{"driver": name, "kernel": artifact.release} for name, artifact in lacking]
        print_json({**result_document(result), "coming": list(coming), "lacking": lacks})
    else:
        print_result(result)
    if not lacking:
        return ExitCode.DONE
    is_unknown = all(artifact.state == "missing" for _, artifact in lacking)
    return ExitCode.NOT_FOUND if is_unknown else ExitCode.FAILED


def _lacking(status: Status, coming: tuple[str, ...]) -> Iterator[tuple[str, ArtifactStatus]]:
    for driver in status.drivers:
        for artifact in driver.kernels:
            if artifact.release in coming and not artifact.is_ready:
                yield driver.name, artifact
