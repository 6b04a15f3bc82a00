"""The steps of a build: what each left in the engine, and how long each part of the work took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from provision.engine.docker_api import Engine
from provision.engine.stream import StepRecord
from provision.errors import ProvisionError

# The stages that all kernels of a distro share, and all drivers of a kernel: their layers stay in
# the engine for the next build.
TOOLS_STAGE = "tools"
KERNEL_STAGE = "toolchain"


def is_from(step: StepRecord) -> bool:
    """Return whether a step begins a stage."""
    return step.instruction.upper().startswith("FROM ")


def layers_of(steps: Iterable[StepRecord], *, stage: str | None = None) -> list[str]:
    """Return layers that a build left in the engine besides its artifact, the oldest first.

    Args:
        steps: The build's instructions, as they went.
        stage: Which ones: ``TOOLS_STAGE``, what all kernels of a distro begin with; or
            ``KERNEL_STAGE``, what all drivers of a kernel go on with; None: those of the stages
            between these and the artifact, which hold the driver's source and objects, often a
            gigabyte, and which no other build can use. After a failure they are what the next try
            goes on with.
    """
    layers: list[str] = []
    wanted = False
    for step in steps:
        if is_from(step):
            if step.instruction.lower() == "from scratch":
                break
            name = step.instruction.rpartition(" ")[2]
            wanted = name == stage if stage else name not in {TOOLS_STAGE, KERNEL_STAGE}
        elif wanted and step.layer:
            layers.append(step.layer)
    return layers


def remove_layers(engine: Engine, layers: Sequence[str]) -> bool:
    """Remove layers that grew out of each other, given the oldest first; those in use stay.

    Returns:
        Whether none of them is left.
    """
    for layer in reversed(layers):
        try:
            engine.remove(layer, with_parents=False)
        except ProvisionError:
            if engine.image(layer) is not None:
                # Another build grew out of it: it is that build's now.
                return False
    return True


def seconds_by_part(steps: Iterable[StepRecord], total: float) -> dict[str, float]:
    """Return seconds by part of the work, and ``total``.

    ``packages``: installing and downloading packages. ``sources``: unpacking and patching.
    ``modules``: the driver's own build command. ``collect``: what the artifact holds, and its
    manifest. ``export``: the artifact image. ``engine``: what the engine does besides.
    """
    seconds: dict[str, float] = {}
    for part, step in _parts(steps):
        seconds[part] = seconds.get(part, 0.0) + step.seconds
    accounted = sum(seconds.values())
    seconds["engine"] = seconds.get("engine", 0.0) + max(0.0, total - accounted)
    return {**seconds, "total": total}


def _parts(steps: Iterable[StepRecord]) -> Iterable[tuple[str, StepRecord]]:
    after_jobs = artifact = False
    for step in steps:
        words = step.instruction.split()
        artifact = artifact or words[:2] == ["FROM", "scratch"]
        if artifact:
            yield "export", step
        elif words[0] != "RUN":
            after_jobs = words[0] == "ARG" and words[1].startswith("JOBS")
            yield "engine", step
        elif after_jobs:
            after_jobs = False
            yield "modules", step
        elif "/provision/install.sh" in words or "apt-get" in words:
            yield "packages", step
        elif "/provision/collect.py" in words:
            yield "collect", step
        else:
            yield "sources", step
