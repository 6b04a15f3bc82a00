"""Status documents of made-up hosts."""

from __future__ import annotations

import json
from typing import Any

from provision.fleet.host_status import Host, host_of_status

KERNEL, NEXT = "6.1.0-47-amd64", "6.1.0-50-amd64"
# What a hostile host could call itself, or say.
HOSTILE = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"
NOW = 1_790_000_000


def kernel(release: str = KERNEL, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - of JSON
    slot = {
        "release": release,
        "role": "running",
        "state": "ready",
        "is_ready": True,
        "version": "535.1",
        "digest": "0123456789ab",
        "reason": None,
        "resolution": None,
    }
    return {**slot, **changes}


def driver(*kernels: dict[str, Any], **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    found = {
        "name": "nvidia",
        "wanted": "latest",
        "state": "ready",
        "is_ready": True,
        "loaded": "yes",
        "kernels": list(kernels) or [kernel()],
        "notes": [],
    }
    return {**found, **changes}


def document(*drivers: dict[str, Any], **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    found = {
        "schema": 1,
        "time": NOW,
        "state": "ready",
        "is_ready": True,
        "exit_code": 0,
        "kernels": {"running": KERNEL, "notes": [], "doubts": []},
        "drivers": list(drivers) or [driver()],
        "planned": [],
        "error": None,
    }
    return {**found, **changes}


def failed_document(state: str = "failed", **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    slot = kernel(state=state, is_ready=False, reason="does not compile", resolution="Patch it.")
    return document(driver(slot, state=state), state=state, **changes)


def host(name: str, found: dict[str, Any] | None = None) -> Host:
    return host_of_status(name, json.dumps(found or document()).encode())
