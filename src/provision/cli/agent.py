"""``status``, ``plan``, ``apply`` and ``rollback``: a host and its desired state.

This module imports nothing that takes long to load: most runs of 'apply' find nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from provision.agent.actions import Preparations
from provision.agent.desired import load_desired
from provision.agent.model import Mode, Observed, Outcome, Plan, Run, plan
from provision.agent.rollback import rollback, would_roll_back
from provision.agent.run import Result, always_published, apply, plan_host
from provision.agent.run import boot as run_at_boot
from provision.agent.status import NAME_A_DRIVER, HoldStatus, Status
from provision.cli import options
from provision.cli.options import argument, command, option
from provision.cli.output import (
    Bad,
    advice,
    coloured,
    emit,
    progress,
    table,
)
from provision.errors import ExitCode, NotFoundError, choices, plain
from provision.host.kernels import kernels_of_usr, wait_for_kernel
from provision.store.state import IN_USE

_LOADED = {"yes": "loaded", "no": "not loaded", "partly": "some loaded", "other": "another build"}
# Of 'status --check', by its exit code.
_VERDICTS = {
    ExitCode.DONE: "A reboot costs no driver.",
    ExitCode.IN_USE: "A reboot costs no driver, and something waits for it.",
}
_LOSS = "Not every driver works, or will after a reboot."
_NOTHING_CONFIGURED = f"Nothing is configured. {NAME_A_DRIVER}"


@command("status")
def status_command(
    *,
    check: bool = option(
        "--check",
        "Exit with 0 only if every driver works, and will after a reboot; with 4 if only that is"
        " missing.",
    ),
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
) -> None:
    """Show the state of each driver, for the running kernel and those that may boot next.

    The exit code is 3 if no driver is configured or still to be removed, or if there is no kernel
    to look at.
    """
    root = root.resolve()
    _observed, _plan, status = plan_host(root, load_desired(root, catalogues=catalogues))
    is_nothing = status.state in {"not-configured", "unknown"}
    code = ExitCode.NOT_FOUND if is_nothing else ExitCode.DONE
    is_judged = check and status.drivers
    verdict = [_VERDICTS.get(status.check_code, _LOSS)] if is_judged else []
    emit(status.document(), _overview, *verdict, code=status.check_code if check else code)


def _overview(status: Mapping[str, Any]) -> Iterator[str]:
    kernels, state = status["kernels"], status["state"]
    head = f"This host is {coloured(state)}"
    if state == "not-configured":
        head = coloured(state, "Nothing is configured")
    head += f"; kernel {kernels['running']}" if kernels["running"] else ""
    yield head + (f", next {', '.join(kernels['pending'])}" if kernels["pending"] else "")
    notes = [
        f"{driver['name']}: {note}"
        for driver in status["drivers"]
        for note in (*driver["notes"], *([driver["other"]["seen"]] if driver["other"] else ()))
    ]
    for note in (*kernels["notes"], *kernels["warnings"], *notes):
        yield click.style(note, fg="yellow")
    if status["hold"]:
        yield click.style(HoldStatus(**status["hold"]).line, fg="yellow")
    if status["error"]:
        yield status["error"]["message"]
        yield from advice(status["error"])
        return
    if status["unnamed"]:
        yield "Installed, and not named in provision.toml:"
        columns = {
            "driver": "driver",
            "kernel": "kernel",
            "version": "version",
            "artifact": "digest",
        }
        yield from table("unnamed", columns)(status)
    if not status["drivers"]:
        yield f"What to do: {NAME_A_DRIVER}"
        return
    yield from table(
        lambda found: list(_artifacts(found)),
        {
            "driver": "driver",
            "kernel": "release",
            "": "role",
            "state": lambda one: coloured(one["state"]),
            "version": "version",
            "artifact": "digest",
            "modules": lambda one: (one["role"] == "running" and _LOADED.get(one["loaded"])) or "",
        },
    )(status)
    for one in _artifacts(status):
        what = f"{one['driver']} for {one['release']}:"
        if one["unsigned"] is not None:
            warning = f"{one['digest']} is unsigned; it came from {one['unsigned']}"
            yield f"{what} {click.style(warning, fg='yellow')}"
        if one["reason"] is not None:
            first, *more = one["reason"].splitlines()
            yield f"{what} {first}"
            yield from (f"  {line}" for line in more)
            yield from advice({**(one["failure"] or {}), "resolution": one["resolution"]})


def _artifacts(status: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for driver in status["drivers"]:
        for artifact in driver["kernels"]:
            yield {**artifact, "driver": driver["name"], "loaded": driver["loaded"]}


_extra_kernels = option(
    "--kernel RELEASE",
    "Make every driver ready for this kernel too, which is still to come; may be given more"
    " than once.",
    multiple=True,
)
_usr = option(
    "--usr DIR",
    "As --kernel, for the kernels of this /usr, of a system that has not booted yet.",
    type=options.FOLDER,
)
_retry = option("--retry", "Retry artifacts that failed or were rolled back.")
_update = option(
    "--update", "Move to newer versions where provision.toml does not fix the version."
)


def _kernels(releases: tuple[str, ...], usr: Path | None) -> tuple[str, ...]:
    found = kernels_of_usr(usr) if usr else ()
    options.refuse(
        usr and not found,
        f"There is no kernel in '{usr}/lib/modules'.",
        "Name a /usr with a kernel (--usr DIR), or the kernel (--kernel RELEASE).",
    )
    return tuple(dict.fromkeys([*releases, *found]))


@command("plan")
def plan_command(
    *,
    names: tuple[str, ...] = argument("[DRIVER]…"),
    releases: tuple[str, ...] = _extra_kernels,
    usr: Path | None = _usr,
    retry: bool = _retry,
    update: bool = _update,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
) -> None:
    """Show what 'provision apply' would do here and why, and what it could not do.

    With DRIVER, it shows only what concerns these drivers, and the exit code is about them.

    The command asks registries, archives, vendors and the engine as 'apply' does, and changes
    nothing. The exit code is 3 if nothing is configured or an artifact that has to be made is not
    available, and 1 if it can't be made for another reason, such as an untrusted image; if an
    earlier failure still holds, it is that of 'apply'.
    """
    root = root.resolve()
    mode = Mode(retry=retry, update=update, extra_kernels=_kernels(releases, usr))
    run = Run(root, load_desired(root, catalogues=catalogues), mode, catalogues, usr)
    observed, planned, status = plan_host(root, run.desired, mode)
    chosen = _chosen(names, observed)
    from provision.agent.prepare import forecast  # noqa: PLC0415 - loads all that builds and pulls

    artifacts = [one for one in forecast(run, observed, planned) if one.driver in chosen]
    # What can't be made is followed by what an apply does after it has failed.
    failing = {("prepare", one.driver, one.kernel) for one in artifacts if one.source == "missing"}
    after = plan(run.desired, observed, mode, tried=frozenset(failing))
    actions = [action for action in planned.actions if action.key in failing]
    actions += after.actions
    planned = Plan(
        tuple(action for action in actions if action.driver in chosen),
        tuple(blocked for blocked in after.blocked if blocked.driver in chosen),
    )
    warnings = [*_others(status), *_without_card(observed)]
    is_configured = status.state != "not-configured"
    # As of an apply: failed, then not found.
    code = min((one.exit_code for one in artifacts if one.exit_code), default=ExitCode.DONE)
    if status.error or any(one.obstacle in {"failed", "unserved"} for one in planned.blocked):
        code = ExitCode(status.exit_code)
    elif status.drivers and status.kernels.notes:
        code = code or ExitCode.NOT_FOUND
    emit(
        {
            "actions": [{**action._asdict(), "what": str(action)} for action in planned.actions],
            "blocked": planned.blocked,
            "artifacts": [{**plain(one), "what": str(one)} for one in artifacts],
            "kernels": status.kernels,
            "others": [one for one in warnings if one["driver"] in chosen],
            "error": status.document()["error"],
        },
        _planned if is_configured else _NOTHING_CONFIGURED,
        code=code if is_configured else ExitCode.NOT_FOUND,
    )


def _chosen(names: tuple[str, ...], observed: Observed) -> set[str]:
    """Return the drivers that are named, all if none is."""
    known = set(observed.drivers)
    for name in names:
        if name not in known:
            raise NotFoundError(
                f"provision.toml names no driver '{name}', and none is installed.",
                resolution=choices(name, sorted(known)) if known else NAME_A_DRIVER,
            )
    return set(names) or known


def _planned(document: Mapping[str, Any]) -> Iterator[str]:
    artifacts = {(one["driver"], one["kernel"]): one for one in document["artifacts"]}
    for number, action in enumerate(document["actions"], start=1):
        yield f"{number}. {action['what']}"
        artifact = artifacts.get((action["driver"], action["kernel"]))
        if action["kind"] == "prepare" and artifact is not None:
            yield f"   {artifact['what']}"
            if artifact["branch"]:
                yield f"   {artifact['branch']}"
            yield from (f" {line}" for line in advice(artifact))
    for blocked in document["blocked"]:
        yield f"Not now: {blocked['driver']} for {blocked['kernel']}: {blocked['reason']}"
        yield from advice(blocked)
    if document["error"]:
        yield document["error"]["message"]
        yield from advice(document["error"])
    yield from document["kernels"]["notes"]
    if not any(document[name] for name in ("actions", "blocked", "error")) and (
        not document["kernels"]["notes"]
    ):
        yield "Nothing to do."
    notices = {
        (one["driver"], notice["message"]): notice
        for one in artifacts.values()
        for notice in one["notices"]
    }
    for (driver, message), notice in notices.items():
        yield f"Warning: {driver}: {message}"
        yield from advice(notice)
    yield from _warnings(document)


def _warnings(document: Mapping[str, Any]) -> Iterator[str]:
    for one in document["others"]:
        yield f"Warning: {one['driver']}: {one['message']}"
        yield from advice(one)


def _without_card(observed: Observed) -> list[dict[str, str]]:
    """Return the desired drivers that are for cards of which the host has none."""
    return [
        {
            "driver": driver.name,
            "message": "this host has no card that it is for, so its usual version and flavour are"
            " taken",
            "resolution": "Look for the card: lspci -nn. On a machine that builds for others, name"
            " what their cards need: version and flavour.",
        }
        for driver in observed.drivers.values()
        if driver.lacks_card
    ]


def _others(status: Status) -> list[dict[str, str]]:
    """Return what the host has of the desired drivers that provision did not install."""
    return [
        {"driver": driver.name, "message": other.seen, "resolution": other.resolution}
        for driver in status.drivers
        if (other := driver.other) is not None
    ]


@command("apply")
def apply_command(
    *,
    releases: tuple[str, ...] = _extra_kernels,
    usr: Path | None = _usr,
    boot: bool = option(
        "--boot",
        "Load what the store has for the running kernel, without network, engine or build.",
    ),
    retry: bool = _retry,
    update: bool = _update,
    timer: bool = option(
        "--timer", "Run as the timer: --update if [policy] update = 'timer', then 'gc'."
    ),
    allow_downgrade: bool = options.allow_downgrade,
    wait_kernel: bool = option(
        "--wait-kernel",
        "First wait until the package manager has installed a new kernel completely.",
    ),
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
    dry_run: bool = options.dry_run,
) -> None:
    """Bring this host to the state that provision.toml describes, for the running and next kernels.

    The command does only what is missing, and never unloads a module that is in use. The exit code
    describes the state of the host afterwards. With --kernel or --usr, it says instead whether
    every driver has its artifact for these kernels.
    """
    if dry_run:
        click.get_current_context().invoke(
            plan_command,
            names=(),
            releases=releases,
            usr=usr,
            retry=retry,
            update=update,
            catalogues=catalogues,
            root=root,
        )
        return
    root, extra_kernels = root.resolve(), _kernels(releases, usr)
    options.refuse(
        extra_kernels and boot,
        "--boot makes no artifacts, so it can't be given with --kernel or --usr.",
        "Leave one of them out.",
    )
    with progress(), always_published(root):
        if boot:
            result = run_at_boot(root, catalogues=catalogues)
        else:
            if wait_kernel:
                wait_for_kernel(root)
            desired = load_desired(root, catalogues=catalogues, keep=not extra_kernels)
            moves = update or (timer and desired.config.policy.update == "timer")
            mode = Mode(
                retry=retry,
                extra_kernels=extra_kernels,
                update=moves,
                allow_downgrade=allow_downgrade,
            )
            result = apply(Run(root, desired, mode, catalogues, usr), _preparations)
            if timer:
                from provision.agent.removal import collect  # noqa: PLC0415 - loads what builds

                # The artifacts of removed kernels take space.
                collect(root, desired)
    code = _code_at_boot(result) if boot else result.status.exit_code
    document = _result(result, code)
    # A run that did nothing on a host that is ready ends at once.
    is_settled = not result.outcomes and result.status.state == "ready"
    document["others"] = [] if is_settled or boot else _others(result.status)
    if not extra_kernels:
        emit(document, _after, _warnings, code=code)
        return
    lacking = [
        {"driver": driver.name, "kernel": artifact.release, "state": artifact.state}
        for driver in result.status.drivers
        for artifact in driver.kernels
        if artifact.release in extra_kernels and not artifact.is_ready
    ]
    is_unknown = all(one["state"] == "missing" for one in lacking)
    emit(
        {**document, "extra_kernels": extra_kernels, "lacking": lacking},
        _after,
        _warnings,
        code=(ExitCode.NOT_FOUND if is_unknown else ExitCode.FAILED) if lacking else ExitCode.DONE,
    )


def _preparations(run: Run, held: ExitStack) -> Preparations:
    from provision.agent import prepare  # noqa: PLC0415 - loads all that builds and pulls

    return prepare.preparations(run, held)


def _code_at_boot(result: Result) -> int:
    """Return the exit code of a boot: only of loading what the store has, or should have."""
    if result.status.state == "unknown":
        return ExitCode.NOT_FOUND
    failures = [outcome.failure for outcome in result.outcomes if outcome.error]
    if any(failure is None or failure.reason != IN_USE for failure in failures):
        return ExitCode.FAILED
    running = result.status.kernels.running
    lacking = (
        artifact
        for driver in result.status.drivers
        for artifact in driver.kernels
        if artifact.release == running and driver.loaded == "no"
    )
    if any(one.digest and one.state != "reboot-required" for one in lacking):
        # The artifact that the kernel uses is damaged or gone.
        return ExitCode.FAILED
    is_waiting = result.status.exit_code == ExitCode.IN_USE
    return ExitCode.IN_USE if is_waiting else ExitCode.DONE


def _result(result: Result, code: int) -> dict[str, Any]:
    document = {
        "changed": any(outcome.error is None for outcome in result.outcomes),
        "actions": [_outcome(outcome) for outcome in result.outcomes],
        "status": result.status.document(),
        "problems": result.problems,
    }
    error = _error(result.status) if code != ExitCode.DONE else None
    return {**document, "error": error} if error else document


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        **outcome.action._asdict(),
        "result": outcome.result,
        "seconds": round(outcome.seconds, 3),
        "error": None if outcome.error is None else outcome.error.document(),
    }


def _error(status: Status) -> dict[str, Any] | None:
    """Return the member ``error`` that every failed command has; None after a success."""
    if status.error is not None:
        error: dict[str, Any] = status.document()["error"]
        return error
    wrong = [
        {
            "message": f"{driver.name} for {one.release} is {one.state}: {one.reason}",
            "resolution": one.resolution,
            "details": one.failure.details if one.failure else None,
        }
        for driver in status.drivers
        for one in driver.kernels
        if one.state not in {"ready", "pending"}
    ]
    wrong += [{"message": n, "resolution": None, "details": None} for n in status.kernels.notes]
    return {**wrong[0], "exit_code": status.exit_code} if wrong else None


def _after(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the state of the host after a run, for people and the journal."""
    status = document["status"]
    yield from map(Bad, status["kernels"]["notes"])
    for driver in status["drivers"]:
        for note in driver["notes"]:
            yield Bad(f"{driver['name']}: {note}")
    if status["state"] == "not-configured":
        yield _NOTHING_CONFIGURED
        return
    if not document["actions"] and status["state"] == "ready":
        yield "Nothing to do."
        return
    for one in _artifacts(status):
        state = one["state"]
        line = f"{one['driver']} for {one['release']}: {coloured(state)}"
        line = f"{line}, {one['version']}" if one["version"] else line
        yield line if state in {"ready", "pending", "reboot-required"} else Bad(line)
        if one["reason"]:
            yield f"  {one['reason']}"
        yield from advice({**(one["failure"] or {}), "resolution": one["resolution"]})
    if (error := status["error"]) is not None:
        yield Bad(f"{coloured(status['state'])}: {error['message']}")
        yield from advice(error)


@command("rollback")
def rollback_command(
    *,
    driver: str = argument("DRIVER"),
    root: Path = options.root,
    dry_run: bool = options.dry_run,
) -> None:
    """Go back to the artifact of DRIVER that the running kernel used before.

    Modules and user space change together. The rejected artifact is not used again until
    provision.toml asks for another one, or until 'provision apply --retry'.
    """
    root = root.resolve()
    desired = load_desired(root)
    if dry_run:
        now, before = would_roll_back(root, desired, driver)
        emit(
            {"driver": driver, "from": now, "to": before, "dry_run": True},
            f"{driver} would go back from {now} to {before}.",
        )
        return
    with progress():
        result = rollback(root, desired, driver)
    code = result.status.exit_code
    emit(_result(result, code), _after, code=code)
