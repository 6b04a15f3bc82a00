"""Compares the output of ``provision status`` with the state that a play requires. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# The states that a play can require.
REQUIREMENTS = ("ready", "prepared", "nothing")


def shortcomings(status: dict[str, Any], require: str) -> list[str]:
    """Return a line for each thing that falls short of the required state.

    Args:
        status: The document of ``provision status --json``.
        require: ``ready``: every driver works now, with the kernel that runs; a newer artifact may
            wait for a reboot, and none failed its own check here. ``prepared``: every kernel has
            its artifact in the store, whether or not it is loaded. ``nothing``.
    """
    if require == "nothing":
        return []
    return [line for driver in status["drivers"] for line in _of(driver, require)]


def is_reboot_required(status: dict[str, Any]) -> bool:
    """Return whether the host needs a reboot to reach the configured state."""
    return status["state"] == "reboot-required" or any(
        slot["state"] == "reboot-required" for d in status["drivers"] for slot in d["kernels"]
    )


def _of(driver: dict[str, Any], require: str) -> Iterator[str]:
    if require == "ready":
        slots = [slot for slot in driver["kernels"] if slot["role"] == "running"]
        # Where the one before serves again, other hosts should not get what failed.
        yield from (_line(driver, one) for one in slots if not driver["is_ready"] or _check(one))
        if not (slots or driver["is_ready"]):
            yield f"{driver['name']}: the running kernel is not known"
    if require == "prepared":
        slots = [slot for slot in driver["kernels"] if slot["digest"] is None]
        yield from (_line(driver, slot) for slot in slots)


def _check(slot: dict[str, Any]) -> dict[str, Any] | None:
    """Return the failure of a check of what this host was to get."""
    failure: dict[str, Any] | None = slot["failure"]
    return failure if failure and failure["reason"] == "check" else None


def _line(driver: dict[str, Any], slot: dict[str, Any]) -> str:
    check = _check(slot) or {}
    said = [slot["reason"], check.get("details"), slot["resolution"]]
    text = " ".join(part for part in said if part) or "its modules are not loaded"
    return f"{driver['name']} for {slot['release']} is {slot['state']}: {text}"
