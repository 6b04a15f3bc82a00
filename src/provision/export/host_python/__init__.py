"""A Python for hosts that have none: compiled from the distro's pinned source, with all it needs.

The result is one archive that is unpacked at ``/``. It runs whatever C library the host has, or
where it has none (docs/decisions/22-coreos.md).
"""

from __future__ import annotations

from provision.export.host_python.make import (
    MadePython,
    PlannedPython,
    PythonRequest,
    make_python,
    plan_python,
)
from provision.export.host_python.python_context import DEFAULT_PREFIX, PythonPin

__all__ = [
    "DEFAULT_PREFIX",
    "MadePython",
    "PlannedPython",
    "PythonPin",
    "PythonRequest",
    "make_python",
    "plan_python",
]
