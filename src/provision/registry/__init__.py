"""Registries of container images without an engine: names, access, images, signatures.

Everything that a registry says is foreign data: sizes are bounded while they are read, content is
compared with its digest before it is parsed or unpacked, and credentials go to the host that they
are for. What may be installed is decided by signatures only (docs/decisions/06-registries.md).
"""

from __future__ import annotations
