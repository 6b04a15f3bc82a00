"""Renders the build context of a Pin. Pure: the same inputs give the same bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.build.closure import (
    closure_files,
    closure_parts,
    closure_sums,
    installed_from,
    runfile_parts,
    toolchain_of,
)
from provision.build.templates import Templates, fill_template, one_line, shell_command
from provision.catalogue import Recipe, RecipeSource, Variant
from provision.distros import source_names
from provision.distros.family import fill
from provision.errors import NotFoundError, ProvisionError
from provision.files import write_atomic
from provision.manifest import ForeignRoot
from provision.pin import GitSource, PackagePin, Pin, RunfileSource, TreePin
from provision.pin.architectures import names_of
from provision.sources import scripts_of, unpacking

# The folder of the driver's unpacked source in the build.
SOURCE = "/source"
_JOBS = "{jobs}"
# As which version a GPU operator finds the image.
OPERATOR_LABEL = "provision.operator.version"
# Folders of programs in an image, as engines have them, and where user space is.
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_USER_SPACE = "/opt/driver"


@dataclass(frozen=True, slots=True)
class RenderedContext:
    """A build context.

    Attributes:
        files: Contents by relative path, sorted. All are plain files of mode 0644: the Dockerfile
            names the interpreter of those that run.
        downloads: Files that are too large to be rendered: sha256 by relative path.
        parts: Files that are parts of a .run: the part by relative path.
    """

    files: Mapping[str, bytes]
    downloads: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def dockerfile(self) -> str:
        """The Dockerfile's text."""
        return self.files["Dockerfile"].decode()

    def write(self, directory: Path) -> None:
        """Write the rendered files below a folder; files of other names there stay."""
        for name, content in self.files.items():
            write_atomic(directory / name, content)


def placeholders(pin: Pin) -> dict[str, str]:
    """Return the values of a recipe's placeholders, except ``jobs``, which the build call sets."""
    modules = f"/lib/modules/{pin.kernel.release}"
    names = names_of(pin.kernel.architecture)
    return {
        "arch": names.kernel,
        "kernel": pin.kernel.release,
        "kernel_build": f"{modules}/build",
        "kernel_source": f"{modules}/source",
        "machine": pin.kernel.architecture,
        "multiarch": names.multiarch,
        "source": SOURCE,
        "version": pin.driver.version,
    }


def build_plan(pin: Pin, recipe: Recipe, variant: Variant[RecipeSource]) -> bytes:
    """Return the content of ``build.json``: the same inputs give the same bytes."""
    values = placeholders(pin)
    directory = fill(variant.build.directory, values)
    plan: dict[str, Any] = {
        "schema": 1,
        "pin": pin.model_dump(mode="json", by_alias=True),
        "pin_digest": pin.digest,
        "kernel": pin.kernel.release,
        "licences": [one_line(licence) for licence in variant.licences],
        "directory": directory,
        "modules": [fill(module, values) for module in variant.build.modules],
        "files": [
            {
                "kind": file.kind,
                "from": fill(file.source, values),
                "to": fill(file.to, values),
                "links": [fill(link, values) for link in file.links],
                "features": list(file.features),
            }
            for file in variant.files
        ],
        "container": variant.container.model_dump(mode="json", exclude_none=True),
        "host": recipe.host.model_dump(mode="json"),
    }
    return (json.dumps(plan, sort_keys=True, indent=1) + "\n").encode()


def tree_plan(tree: TreePin, kernel: str, compiler: PackagePin | None) -> bytes:
    """Return the content of ``tree.json``, by which the container prepares the kernel's tree."""
    cc = compiler.name if compiler else "clang" if tree.llvm else "gcc"
    plan = {"kernel": kernel, "kind": tree.kind, "cc": cc}
    return (json.dumps(plan, sort_keys=True, indent=1) + "\n").encode()


def render(
    pin: Pin,
    recipe: Recipe,
    *,
    templates: Templates,
    patches: Mapping[str, bytes],
) -> RenderedContext:
    """Render the build context of a Pin."""
    _check(pin, recipe, templates, patches)
    variant = _variant(pin, recipe)
    text = _dockerfile(pin, variant, templates, recipe)
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
            f"The recipe is that of '{recipe.name}', the Pin is for '{pin.driver.name}'",
            resolution=f"Use the catalogue that has '{pin.driver.name}' (--catalogue).",
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
    """Return the variant of a recipe that a Pin is built from; None: no variant fits."""
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


def _dockerfile(
    pin: Pin, variant: Variant[RecipeSource], templates: Templates, recipe: Recipe
) -> str:
    before, after = unpacking(variant, pin.sources)
    closure = closure_parts(pin)
    values: dict[str, object] = {
        "pin": pin,
        "closure": {"tools": closure["packages"], "headers": closure["headers"]},
        "toolchain": toolchain_of(pin),
        "parts": {
            "are_files": any(source.file for source in pin.sources),
            "are_commits": any(isinstance(source, GitSource) for source in pin.sources),
            "have_layer": any(isinstance(source, RunfileSource) for source in pin.sources),
            "before": before,
            "after": after,
        },
        "build": _build(pin, variant),
        "pod": _pod_environment(recipe.host.root),
        "labels": _labels(pin, variant) | _operator_label(pin, recipe),
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


def _pod_environment(root: ForeignRoot | None) -> dict[str, str]:
    """Return the variables by which programs of the driver run in a pod of the image."""
    if root is None or root.pod is None:
        return {}
    folders = (*_FOLDERS, f"{_USER_SPACE}/usr/bin")
    own = {"PATH": ":".join(folders), "LD_LIBRARY_PATH": f"{_USER_SPACE}{root.libraries}"}
    return own | root.pod.environment


def _labels(pin: Pin, variant: Variant[RecipeSource]) -> dict[str, str]:
    # Only parts of the Pin, so that one Pin gives the same bytes whatever a summary says now.
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


def _operator_label(pin: Pin, recipe: Recipe) -> dict[str, str]:
    """Return as which version a GPU operator finds the image, if it has a driver pod."""
    if recipe.host.root is None or recipe.host.root.pod is None:
        return {}
    # An operator knows no flavours, so those besides the usual one are part of the version.
    is_usual = pin.driver.flavour == recipe.default_flavour
    version = pin.driver.version
    return {OPERATOR_LABEL: version if is_usual else f"{version}-{pin.driver.flavour}"}


def _licence_expression(licences: tuple[str, ...]) -> str:
    """Join SPDX expressions: https://spdx.github.io/spdx-spec/v2.3/SPDX-license-expressions/."""
    return " AND ".join(
        f"({text})" if " OR " in text and len(licences) > 1 else text
        for text in map(one_line, licences)
    )
