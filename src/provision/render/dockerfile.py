"""Pin and recipe to build context. Pure: the same inputs give the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from provision.distros import source_names
from provision.errors import NotFoundError, ProvisionError
from provision.pin import Pin, RunfileSource
from provision.recipe import Recipe, RecipeSource, Variant
from provision.render.closure import (
    closure_files,
    closure_parts,
    closure_sums,
    installed_from,
    runfile_parts,
    toolchain_of,
)
from provision.render.context import RenderedContext
from provision.render.plan import build_plan, fill, placeholders, tree_plan
from provision.render.quoting import one_line, shell_command
from provision.render.templates import Templates, fill_template
from provision.sources import scripts_of, unpacking

_JOBS = "{jobs}"


def render(
    pin: Pin,
    recipe: Recipe,
    *,
    templates: Templates,
    patches: Mapping[str, bytes],
) -> RenderedContext:
    """Render the build context of a Pin.

    Args:
        pin: What is built.
        recipe: The driver's recipe, as it was when the Pin was made.
        templates: Of the Pin's distro, as they were when the Pin was made.
        patches: Contents of the Pin's patches, by file name.

    Raises:
        ProvisionError: The recipe, the templates or a patch is not what the Pin was made from.
        UsageError: A value of the recipe can't go into a Dockerfile.
    """
    _check(pin, recipe, templates, patches)
    variant = _variant(pin, recipe)
    text = _dockerfile(pin, variant, templates)
    contents = {"Dockerfile": text.encode(), "build.json": build_plan(pin, recipe, variant)}
    contents |= templates.helpers_of(scripts_of(variant))
    contents |= {f"patches/{patch.name}": patches[patch.name] for patch in pin.patches}
    if pin.tree is not None:
        contents["kernel/tree.json"] = tree_plan(pin.tree, pin.kernel.release, pin.compiler)
    contents |= closure_sums(pin)
    directory = fill(variant.build.directory, placeholders(pin))
    return RenderedContext(
        {name: contents[name] for name in sorted(contents)},
        closure_files(pin),
        runfile_parts(pin, directory),
    )


def _check(pin: Pin, recipe: Recipe, templates: Templates, patches: Mapping[str, bytes]) -> None:
    if recipe.name != pin.driver.name:
        raise ProvisionError(
            f"The recipe is that of '{recipe.name}', the Pin is for '{pin.driver.name}'"
        )
    if templates.digest != pin.template:
        raise _changed("templates are")
    for patch in pin.patches:
        content = patches.get(patch.name)
        if content is None or hashlib.sha256(content).hexdigest() != patch.sha256:
            raise _changed(f"patch '{patch.name}' is")


def _changed(what: str) -> ProvisionError:
    return ProvisionError(
        f"The {what} not what the Pin was made from",
        resolution="Run 'provision resolve' again: the new Pin names a new image.",
    )


def variant_of(pin: Pin, recipe: Recipe) -> Variant[RecipeSource] | None:
    """Return what a Pin's modules are built from; None: the recipe has nothing that fits."""
    names = source_names(installed_from(pin) or pin.distro)
    return recipe.variant(names, pin.driver.flavour, pin.driver.version)


def _variant(pin: Pin, recipe: Recipe) -> Variant[RecipeSource]:
    variant = variant_of(pin, recipe)
    if variant is not None:
        return variant
    driver = pin.driver
    if driver.flavour not in recipe.flavours:
        raise NotFoundError(
            f"The driver '{recipe.name}' has no flavour '{driver.flavour}'",
            resolution=f"Its flavours: {', '.join(sorted(recipe.flavours))}.",
        )
    raise _changed(f"sources for {pin.distro.id} and the version {driver.version} are")


def _dockerfile(pin: Pin, variant: Variant[RecipeSource], templates: Templates) -> str:
    before, after = unpacking(variant, pin.sources)
    closure = closure_parts(pin)
    values: dict[str, object] = {
        "pin": pin,
        "closure": {"tools": closure["packages"], "headers": closure["headers"]},
        "toolchain": toolchain_of(pin),
        "parts": {
            "are_files": any(source.file for source in pin.sources),
            "have_layer": any(isinstance(source, RunfileSource) for source in pin.sources),
            "before": before,
            "after": after,
        },
        "build": _build(pin, variant),
        "labels": _labels(pin, variant),
    }
    return fill_template(templates.dockerfile, templates.sources, values)


def _build(pin: Pin, variant: Variant[RecipeSource]) -> dict[str, object]:
    values = placeholders(pin)
    build = variant.build
    directory = fill(build.directory, values)
    command = [fill(word, values) for word in build.command]
    return {
        "archive": None if build.archive is None else fill(build.archive, values),
        "directory": "/source" if directory == "." else f"/source/{directory}",
        "command": shell_command(command, {_JOBS: "JOBS"}),
        "scripts": scripts_of(variant),
    }


def _labels(pin: Pin, variant: Variant[RecipeSource]) -> dict[str, str]:
    # Nothing that is not of the Pin: one Pin gives the same bytes, whatever a summary says now.
    labels = {
        "title": f"{pin.driver.name} {pin.driver.version} ({pin.driver.flavour})"
        f" for Linux {pin.kernel.release}",
        "version": pin.driver.version,
        "licenses": _licence_expression(variant.licences),
        "base.name": pin.base.image,
        "base.digest": pin.base.digest,
    }
    return {f"org.opencontainers.image.{key}": value for key, value in labels.items()} | {
        "provision.pin": pin.canonical_json(),
        "provision.pin.digest": pin.digest,
    }


def _licence_expression(licences: tuple[str, ...]) -> str:
    """Join SPDX expressions: https://spdx.github.io/spdx-spec/v2.3/SPDX-license-expressions/."""
    return " AND ".join(
        f"({text})" if " OR " in text and len(licences) > 1 else text
        for text in map(one_line, licences)
    )
