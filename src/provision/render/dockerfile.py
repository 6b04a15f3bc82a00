"""Pin and recipe to build context. Pure: the same inputs give the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from provision.distros.tree import is_tree_package
from provision.errors import NotFoundError, ProvisionError
from provision.pin import (
    ArchiveSource,
    GitSource,
    PackagePin,
    PackageSource,
    Pin,
    keyring_digest,
)
from provision.recipe import Flavour, Recipe
from provision.render.context import RenderedContext
from provision.render.plan import build_plan, fill, placeholders, tree_plan
from provision.render.quoting import one_line, shell_command
from provision.render.rpm import closure_files, closure_sums, rpm_toolchain
from provision.render.templates import Templates, fill_template, keyring_file

# What the templates' own steps call, whatever the driver: compression, kmod's depmod and modinfo,
# patch, the collector's interpreter.
_TOOLS = ("kmod", "make", "patch", "python3", "xz-utils")
# What they need for a kind of source besides.
_TOOLS_BY_SOURCE = {
    "deb": (),
    "archive": ("ca-certificates", "libarchive-tools"),
    "git": ("ca-certificates", "git"),
}
_JOBS = "{jobs}"


def required_packages(recipe: Recipe, flavour: str) -> tuple[str, ...]:
    """Return the packages that a build needs besides the compiler and the headers, sorted.

    Raises:
        NotFoundError: The recipe has no such flavour.
    """
    wanted = {*_TOOLS, *_TOOLS_BY_SOURCE[recipe.source.kind]}
    wanted.update(_flavour(recipe, flavour).build.packages)
    return tuple(sorted(wanted))


def render(
    pin: Pin,
    recipe: Recipe,
    *,
    templates: Templates,
    patches: Mapping[str, bytes],
    keyring: bytes | None = None,
) -> RenderedContext:
    """Render the build context of a Pin.

    Args:
        pin: What is built.
        recipe: The driver's recipe, as it was when the Pin was made.
        templates: Of the Pin's distro, as they were when the Pin was made.
        patches: Contents of the Pin's patches, by file name.
        keyring: The Pin's keyring; None: it has none.

    Raises:
        ProvisionError: The recipe, the templates, a patch or the keyring is not what the Pin was
            made from.
        UsageError: A value of the recipe can't go into a Dockerfile.
    """
    _check(pin, recipe, templates, patches)
    if keyring_digest(keyring) != pin.keyring:
        raise _changed("archive's keyring is")
    flavour = _flavour(recipe, pin.driver.flavour)
    text = _dockerfile(pin, flavour, templates)
    contents = {"Dockerfile": text.encode(), "build.json": build_plan(pin, recipe, flavour)}
    contents |= templates.helpers
    contents |= {f"patches/{patch.name}": patches[patch.name] for patch in pin.patches}
    contents |= keyring_file(keyring)
    if pin.tree is not None:
        contents["kernel/tree.json"] = tree_plan(pin.tree, pin.kernel.release, pin.compiler)
    downloads = {}
    if pin.closure:
        downloads = closure_files(pin)
        contents |= closure_sums(pin)
    return RenderedContext({name: contents[name] for name in sorted(contents)}, downloads)


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


def _flavour(recipe: Recipe, name: str) -> Flavour:
    if name not in recipe.flavours:
        raise NotFoundError(
            f"The driver '{recipe.name}' has no flavour '{name}'",
            resolution=f"Its flavours: {', '.join(sorted(recipe.flavours))}.",
        )
    return recipe.flavours[name]


def _dockerfile(pin: Pin, flavour: Flavour, templates: Templates) -> str:
    values: dict[str, object] = {
        "pin": pin,
        "toolchain": rpm_toolchain(pin) if templates.family == "rpm" else _toolchain(pin),
        "driver_packages": [package for package in pin.packages if not _is_shared(pin, package)],
        "sources": _sources(pin, flavour),
        "build": _build(pin, flavour),
        "labels": _labels(pin, flavour),
    }
    return fill_template(templates.dockerfile, templates.sources, values)


def _toolchain(pin: Pin) -> list[PackagePin]:
    shared = [package for package in pin.packages if _is_shared(pin, package)]
    compiler = [] if pin.compiler is None else [pin.compiler]
    by_name = {package.name: package for package in (*compiler, *pin.headers, *shared)}
    return [by_name[name] for name in sorted(by_name)]


def _is_shared(pin: Pin, package: PackagePin) -> bool:
    """Return whether a package is for all drivers of a kernel."""
    is_for_tree = pin.tree is not None and is_tree_package(package.name)
    return package.name in _TOOLS or is_for_tree


def _sources(pin: Pin, flavour: Flavour) -> dict[str, object]:
    debs = [source for source in pin.sources if isinstance(source, PackageSource)]
    return {
        "deb": debs,
        "driver_packages": [deb.name for deb in debs if deb.name == flavour.package],
        "userspace_packages": [deb.name for deb in debs if deb.name != flavour.package],
        "archive": [source for source in pin.sources if isinstance(source, ArchiveSource)],
        "git": [source for source in pin.sources if isinstance(source, GitSource)],
    }


def _build(pin: Pin, flavour: Flavour) -> dict[str, str | None]:
    values = placeholders(pin)
    build = flavour.build
    directory = fill(build.directory, values)
    command = [fill(word, values) for word in build.command]
    return {
        "archive": None if build.archive is None else fill(build.archive, values),
        "directory": "/source" if directory == "." else f"/source/{directory}",
        "command": shell_command(command, {_JOBS: "JOBS"}),
    }


def _labels(pin: Pin, flavour: Flavour) -> dict[str, str]:
    # Nothing that is not of the Pin: one Pin gives the same bytes, whatever a summary says now.
    labels = {
        "title": f"{pin.driver.name} {pin.driver.version} ({pin.driver.flavour})"
        f" for Linux {pin.kernel.release}",
        "version": pin.driver.version,
        "licenses": _licence_expression(flavour.licences),
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
