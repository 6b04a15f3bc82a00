"""From what is wanted and what there is to a Pin. Pure: the same inputs give the same Pin."""

from __future__ import annotations

from provision.resolve.kernels import buildable_kernels, newest_kernel, suitable_versions
from provision.resolve.recipe_digest import recipe_digest
from provision.resolve.request import KernelTree, Request
from provision.resolve.resolver import (
    Decision,
    Solved,
    chosen_flavour,
    decide,
    decide_in_image,
)

__all__ = [
    "Decision",
    "KernelTree",
    "Request",
    "Solved",
    "buildable_kernels",
    "chosen_flavour",
    "decide",
    "decide_in_image",
    "newest_kernel",
    "recipe_digest",
    "suitable_versions",
]
