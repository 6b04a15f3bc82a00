"""From what is wanted and what there is to a Pin. Pure: the same inputs give the same Pin."""

from __future__ import annotations

from provision.resolve.kernels import buildable_kernels, newest_kernel
from provision.resolve.request import KernelTree, Request
from provision.resolve.resolver import components_of, decide, decide_in_image, resolve

__all__ = [
    "KernelTree",
    "Request",
    "buildable_kernels",
    "components_of",
    "decide",
    "decide_in_image",
    "newest_kernel",
    "resolve",
]
