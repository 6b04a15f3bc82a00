"""Where the headers of a kernel come from, and which compiler built it."""

from __future__ import annotations

from provision.headers.debian import Headers, find_headers, packaged_kernels

__all__ = ["Headers", "find_headers", "packaged_kernels"]
