"""Folders of a host that several packages share, relative to its root."""

from __future__ import annotations

from pathlib import PurePosixPath

#: The store of drivers, and the vendors' answers that outlive the state folder.
STORE = PurePosixPath("var/lib/provision")
