"""From what is wanted and what there is to a Pin. Pure: the same inputs give the same Pin."""

from __future__ import annotations

from provision.resolve.kernels import newest_kernel
from provision.resolve.request import Request
from provision.resolve.resolver import resolve

__all__ = ["Request", "newest_kernel", "resolve"]
