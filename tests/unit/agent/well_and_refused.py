"""A status for which the agent writes every metric that it knows."""

from __future__ import annotations

from provision.agent.status import ArtifactStatus, DriverStatus, State, Status
from provision.host.kernels import Kernels
from provision.store.state import Failure

KERNEL, NEXT = "6.1.0-47-amd64", "6.1.0-50-amd64"
NOW = 1_790_000_000


def slot(
    release: str = KERNEL, state: State = "ready", reason: str | None = None
) -> ArtifactStatus:
    """A kernel's part of a driver."""
    failure = (
        Failure(reason=reason, message="m", inputs="i", time=NOW, attempts=3) if reason else None
    )
    return ArtifactStatus(
        release=release,
        role="running" if release == KERNEL else "next",
        state=state,
        is_ready=state in {"ready", "reboot-required"},
        is_ready_at_boot=state in {"ready", "reboot-required"},
        version="535.1",
        digest="0123456789ab",
        unsigned=None,
        distrust=None,
        previous=None,
        rejected=(),
        prepared=NOW,
        seconds={"total": 12.5},
        failure=failure,
    )


def status(
    *slots: ArtifactStatus, exit_code: int = 0, name: str = "nvidia", time: int = NOW
) -> Status:
    """A host with one driver."""
    driver = DriverStatus(
        name=name,
        wanted="latest",
        flavour=None,
        state="ready",
        is_ready=True,
        current="0123456789ab",
        version="535.1",
        loaded="yes",
        users=(),
        kernels=slots or (slot(),),
    )
    return Status(
        time=time,
        state="ready",
        is_ready=True,
        exit_code=exit_code,
        kernels=Kernels(KERNEL),
        drivers=(driver,),
        planned=(),
    )


def everything(*, time: int = NOW) -> Status:
    """A host that is well now, and whose registry serves something else for the next kernel."""
    return status(slot(), slot(NEXT, "failed", "untrusted"), exit_code=1, time=time)
