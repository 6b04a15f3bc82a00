"""How a host is, from what ``provision status`` says, against what a play insists upon. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# What a play can insist upon.
REQUIREMENTS = ("ready", "prepared", "nothing")


def shortcomings(status: dict[str, Any], require: str) -> list[str]:
    """Return what of a host's status falls short, each as a line; none: it will do.

    Args:
        status: The document of ``provision status --json``.
        require: ``ready``: every driver works now, with the kernel that runs; a newer artifact may
            wait for a reboot. ``prepared``: every kernel has its artifact in the store, whether or
            not it is loaded. ``nothing``.
    """
    if require == "nothing":
        return []
    return [line for driver in status["drivers"] for line in _of(driver, require)]


def is_reboot_required(status: dict[str, Any]) -> bool:
    """Return whether only a reboot brings a host to what provision.toml says."""
    return status["state"] == "reboot-required" or any(
        slot["state"] == "reboot-required" for d in status["drivers"] for slot in d["kernels"]
    )


def _of(driver: dict[str, Any], require: str) -> Iterator[str]:
    if require == "ready" and not driver["is_ready"]:
        slots = [slot for slot in driver["kernels"] if slot["role"] == "running"]
        yield from (_line(driver, slot) for slot in slots)
        if not slots:
            yield f"{driver['name']}: the running kernel is not known"
    if require == "prepared":
        slots = [slot for slot in driver["kernels"] if slot["digest"] is None]
        yield from (_line(driver, slot) for slot in slots)


def _line(driver: dict[str, Any], slot: dict[str, Any]) -> str:
    said = [slot["reason"], slot["resolution"]]
    text = " ".join(part for part in said if part) or "its modules are not loaded"
    return f"{driver['name']} for {slot['release']} is {slot['state']}: {text}"
