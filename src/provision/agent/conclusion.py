"""The end of a run: its failures become part of the status, and the status is published."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from provision.agent.desired import last_desired
from provision.agent.model import Desired, Observed, Outcome
from provision.agent.observe import observe
from provision.agent.plan import plan
from provision.agent.publish import publish
from provision.agent.status import Status, Trouble, failed_status, status_of
from provision.errors import ExitCode, ProvisionError, UnexpectedError, as_error
from provision.progress import Note, Progress, silent
from provision.store.entries import linked_kernels
from provision.store.layout import Layout
from provision.store.locks import switching
from provision.store.state import DriverState, update_state

# The error must reach its reader soon, even if the status waits for a lock.
_PUBLISH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run.

    Attributes:
        outcomes: The outcomes of its actions, in their order.
        status: The status of the host after it.
        problems: Files of the status that could not be written.
    """

    outcomes: tuple[Outcome, ...]
    status: Status
    problems: tuple[str, ...] = ()


def conclude(
    root: Path,
    desired: Desired,
    observed: Observed,
    outcomes: tuple[Outcome, ...],
    *,
    progress: Progress,
) -> Result:
    """Record and publish a host's status after a run; the caller holds the host's lock."""
    observed = _with_failures(observed, outcomes)
    _remember_fingerprints(root, observed)
    trouble = _trouble(desired, outcomes)
    planned = plan(desired, observed)
    status = status_of(desired, observed, planned, time=int(time.time()), trouble=trouble)
    return publish_status(root, desired, status, outcomes, progress=progress)


def publish_status(
    root: Path,
    desired: Desired,
    status: Status,
    outcomes: tuple[Outcome, ...] = (),
    *,
    progress: Progress,
) -> Result:
    """Publish a host's status; the caller holds the host's lock."""
    problems = _publish(root, desired, status)
    for problem in problems:
        progress(Note(problem))
    return Result(outcomes, status, tuple(problems))


def _publish(root: Path, desired: Desired, status: Status) -> list[str]:
    return publish(root, status, textfile=desired.textfile, kubernetes=desired.kubernetes)


@contextmanager
def always_published(root: Path, progress: Progress = silent) -> Iterator[None]:
    """Publish the failure of a run and its reason; only SIGKILL is not reported.

    The error is raised again.
    """
    try:
        yield
    except BaseException as error:
        # The caller must get the error, even if the status can't be published.
        with suppress(Exception):
            _publish_failure(root, as_error(error), progress)
        raise


def _publish_failure(root: Path, error: ProvisionError, progress: Progress) -> None:
    desired = last_desired(root) or Desired()
    trouble = Trouble(error.message, error.resolution, error.details, int(error.exit_code))
    status = failed_status(trouble, time=int(time.time()))
    # The run may have failed because the host can't be observed.
    with suppress(Exception):
        observed = observe(root, desired, ask=lambda _argv: None)
        planned = plan(desired, observed)
        status = status_of(desired, observed, planned, time=int(time.time()), trouble=trouble)
    with suppress(ProvisionError, OSError), switching(root, limit=_PUBLISH_SECONDS):
        _publish(root, desired, status)
        return
    for problem in _publish(root, desired, status):
        progress(Note(problem))


def _trouble(desired: Desired, outcomes: Iterable[Outcome]) -> Trouble | None:
    """Return the first failure that is not part of any kernel's status.

    Such a failure concerns a driver that provision.toml no longer names, or is a defect of this
    program. A defect counts even if the installed artifact works.
    """
    names = {driver.name for driver in desired.drivers}
    # What succeeded in the end is no failure.
    last = {outcome.action.key: outcome for outcome in outcomes}
    for outcome in last.values():
        error = outcome.error
        if error is None or (
            outcome.action.driver in names and not isinstance(error, UnexpectedError)
        ):
            continue
        message = f"{outcome.action}: {error.message}"
        return Trouble(message, error.resolution, error.details, int(ExitCode.FAILED))
    return None


def _with_failures(observed: Observed, outcomes: Iterable[Outcome]) -> Observed:
    """Return the observed state with failures of this run that could not be recorded."""
    drivers = dict(observed.drivers)
    # What succeeded in the end is no failure.
    for outcome in {outcome.action.key: outcome for outcome in outcomes}.values():
        kind, name, release = outcome.action.key
        artifacts = drivers[name].artifacts if name in drivers else {}
        artifact = artifacts.get(release)
        if outcome.failure is None or artifact is None:
            continue
        known = artifact.known
        if known.failure or known.load_failure:
            continue
        if kind != "prepare":
            known = known.model_copy(update={"load_failure": outcome.failure})
        elif not artifact.is_current:
            known = known.model_copy(update={"failure": outcome.failure})
        artifact = replace(artifact, known=known)
        drivers[name] = replace(drivers[name], artifacts={**artifacts, release: artifact})
    return replace(observed, drivers=drivers)


def _remember_fingerprints(root: Path, observed: Observed) -> None:
    """Record that artifacts were compared with their manifests, so that no run repeats it."""
    for driver in observed.drivers.values():
        layout = Layout(root, driver.name)
        fingerprints = {
            release: (artifact.digest, artifact.fingerprint)
            for release, artifact in driver.artifacts.items()
            if artifact.fingerprint is not None
            and artifact.fingerprint != artifact.known.fingerprint
        }
        if not fingerprints:
            continue
        with suppress(OSError, ProvisionError):
            update_state(layout, partial(_with_fingerprints, layout, fingerprints))


def _with_fingerprints(
    layout: Layout, fingerprints: Mapping[str, tuple[str | None, str]], state: DriverState
) -> DriverState:
    """Return the state with the fingerprints of artifacts that kernels still use."""
    links = linked_kernels(layout)
    for release, (digest, fingerprint) in fingerprints.items():
        if links.get(release) == digest:
            known = state.of(release).model_copy(update={"fingerprint": fingerprint})
            state = state.updated(release, known)
    return state
