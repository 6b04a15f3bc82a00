"""Facts of a host: its distro, kernels, engines and devices, and what restricts loading modules.

These modules read files under a root, so they work on a running host, on another host's mounted
root and on the trees of the tests. They import no heavy library, and each is imported only where it
is needed: a run of the agent with nothing to do reads the kernels and no other facts.
"""

from __future__ import annotations

from pathlib import PurePosixPath

# The store of drivers, and the vendors' answers that outlive the state folder, in the root.
STORE = PurePosixPath("var/lib/provision")
