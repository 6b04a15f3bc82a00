"""The digest of what a recipe contributes to a build."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from provision.catalogue import Recipe, RecipeSource, Variant
from provision.manifest import HostNeeds


def recipe_digest(recipe: Recipe, variant: Variant[RecipeSource]) -> str:
    """Return the sha256 of the parts of a recipe that reach the artifact of a variant.

    What is left out has its own place in the Pin (source, patches, packages) or no effect on the
    modules and files: the summary, the known kernels, the other flavours and sources.
    """
    parts: dict[str, Any] = {
        "build": variant.build.model_dump(mode="json", exclude={"package"}),
        "licences": list(variant.licences),
        "package": variant.package,
        "files": [file.model_dump(mode="json", by_alias=True) for file in variant.files],
        "container": variant.container.model_dump(mode="json", exclude_none=True),
    }
    # Said only where there is something to say: the Pins of drivers without it stay as they were.
    if recipe.host != HostNeeds():
        parts["host"] = recipe.host.model_dump(mode="json")
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
