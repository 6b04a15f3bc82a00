"""Finds the Python of a host that ``provision`` can run with. Runs with any Python 3.8 or newer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from ansible_collections.oci_decorator.drivers.plugins.module_utils.program import Runner

# What provision needs: requires-python in pyproject.toml.
OLDEST = (3, 11)
NEWEST_KNOWN = 15
OWN = "/opt/provision/python/bin/python3"
_SCRIPT = """
import json, platform, sys
try:
    import venv
except ImportError:
    venv = None
print(json.dumps({
    "path": sys.executable,
    "version": list(sys.version_info[:3]),
    "machine": platform.machine(),
    "libc": list(platform.libc_ver()),
    "has_venv": venv is not None,
}))
"""


def candidates(given: str | None = None) -> list[str]:
    """Return the paths to try, best first: the given one, or provision's own and the distro's."""
    if given:
        return [given]
    # The distro's default comes first, because it gets security updates the longest.
    newer = [f"/usr/bin/python3.{minor}" for minor in range(NEWEST_KNOWN, OLDEST[1] - 1, -1)]
    return [OWN, "/usr/bin/python3", *newer, "/usr/local/bin/python3"]


def find(runner: Runner, given: str | None = None) -> dict[str, Any] | None:
    """Return a description of the first suitable Python; None if no Python is suitable."""
    found = (_described(runner, path) for path in candidates(given))
    return first_usable(python for python in found if python)


def first_usable(pythons: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the first Python that is new enough and can make virtual environments."""
    for python in pythons:
        if tuple(python["version"]) >= OLDEST and python["has_venv"]:
            return python
    return None


def _described(runner: Runner, path: str) -> dict[str, Any] | None:
    if not os.access(path, os.X_OK):
        return None
    code, printed = runner.run_command([path, "-I", "-c", _SCRIPT])[:2]
    if code != 0:
        return None
    described: dict[str, Any] = json.loads(printed)
    return {**described, "path": path}
