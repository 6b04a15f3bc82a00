"""Pin to Dockerfile and build context. Pure; ``load_templates`` alone reads files."""

from __future__ import annotations

from provision.render.context import RenderedContext
from provision.render.dockerfile import render, variant_of
from provision.render.templates import (
    Templates,
    family_of,
    load_family,
    load_templates,
    load_tree_templates,
)

__all__ = [
    "RenderedContext",
    "Templates",
    "family_of",
    "load_family",
    "load_templates",
    "load_tree_templates",
    "render",
    "variant_of",
]
