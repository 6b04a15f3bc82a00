"""Sums up where a build's time went, in words that hold for every driver's Dockerfile."""

from __future__ import annotations

from collections.abc import Iterable

from provision.image.build import Built
from provision.image.stream import StepRecord


def phases(built: Built) -> dict[str, float]:
    """Return seconds by part of the work, and ``total``; empty for an image that existed.

    ``packages``: installing and downloading packages. ``sources``: unpacking and patching.
    ``modules``: the driver's own build command. ``collect``: what the artifact holds, and its
    manifest. ``export``: the artifact image. ``engine``: what the engine does besides.
    """
    if not built.built:
        return {}
    seconds: dict[str, float] = {}
    for part, step in _parts(built.steps):
        seconds[part] = seconds.get(part, 0.0) + step.seconds
    accounted = sum(seconds.values())
    seconds["engine"] = seconds.get("engine", 0.0) + max(0.0, built.seconds - accounted)
    return {**seconds, "total": built.seconds}


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
