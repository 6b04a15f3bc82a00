"""The rendered context, and ``build.json`` in it: what the collector needs to know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.build.quoting import one_line
from provision.catalogue import Recipe, RecipeSource, Variant
from provision.files import write_atomic
from provision.pin import PackagePin, Pin, TreePin

# Where the build has the driver's unpacked source.
SOURCE = "/source"
# GNU triplets as Debian uses them: https://wiki.debian.org/Multiarch/Tuples
_MULTIARCH = {
    "x86_64": "x86_64-linux-gnu",
    "aarch64": "aarch64-linux-gnu",
    "ppc64le": "powerpc64le-linux-gnu",
    "s390x": "s390x-linux-gnu",
    "riscv64": "riscv64-linux-gnu",
}
# The kernel's own names: folders under arch/, and x86_64, which its Makefile takes for x86.
_MAKE_ARCH = {
    "x86_64": "x86_64",
    "aarch64": "arm64",
    "ppc64le": "powerpc",
    "s390x": "s390",
    "riscv64": "riscv",
}


@dataclass(frozen=True, slots=True)
class RenderedContext:
    """A build context.

    Attributes:
        files: Contents by relative path, sorted. All are plain files of mode 0644: the Dockerfile
            names the interpreter of those that run.
        downloads: Files that are too large to be rendered: sha256 by relative path.
        parts: Files that are made from a .run: which part of it, by relative path.
    """

    files: Mapping[str, bytes]
    downloads: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def dockerfile(self) -> str:
        """The Dockerfile's text."""
        return self.files["Dockerfile"].decode()

    def write(self, directory: Path) -> None:
        """Write the rendered files below a folder; files of other names there are left alone.

        Raises:
            OSError: The folder can't be written.
        """
        for name, content in self.files.items():
            write_atomic(directory / name, content)


def placeholders(pin: Pin) -> dict[str, str]:
    """Return the values of a recipe's placeholders, except ``jobs``, which the build call sets."""
    modules = f"/lib/modules/{pin.kernel.release}"
    return {
        "arch": _MAKE_ARCH[pin.kernel.architecture],
        "kernel": pin.kernel.release,
        "kernel_build": f"{modules}/build",
        "kernel_source": f"{modules}/source",
        "machine": pin.kernel.architecture,
        "multiarch": _MULTIARCH[pin.kernel.architecture],
        "source": SOURCE,
        "version": pin.driver.version,
    }


def fill(text: str, values: dict[str, str]) -> str:
    """Put values in place of ``{name}``; other braces stay as they are."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


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
    """Return the content of ``tree.json``: what prepares the kernel's tree in the container."""
    cc = compiler.name if compiler else "clang" if tree.llvm else "gcc"
    plan = {"kernel": kernel, "kind": tree.kind, "cc": cc}
    return (json.dumps(plan, sort_keys=True, indent=1) + "\n").encode()
