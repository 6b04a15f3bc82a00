"""Makes a release: wheel, sdist, packages of Debian and of RPM distros, collection, image, sums.

``make dist`` runs it. The same commit gives the same bytes: every time is that of the commit, every
list is sorted, owners and permissions are fixed.
"""

from __future__ import annotations

import sys

from provision.errors import ProvisionError

SUMS = "SHA256SUMS"


def say_error(error: ProvisionError) -> int:
    """Print an error; return its exit code."""
    print(f"Error: {error.message}", file=sys.stderr)
    for line in (error.details or "").splitlines():
        print(f"  {line}", file=sys.stderr)
    if error.resolution:
        print(f"What to do: {error.resolution}", file=sys.stderr)
    return int(error.exit_code)
