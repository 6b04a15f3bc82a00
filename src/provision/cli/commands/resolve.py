"""``provision resolve``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from provision.cli import options
from provision.cli.output import print_fields, print_json
from provision.cli.target import Target, job, target
from provision.pin import ArchiveSource, GitSource, PackageSource, Pin, TreePin


@click.command("resolve")
@click.argument("driver")
@target
@options.as_json
def command(
    *, driver: str, root: Path, catalogues: tuple[Path, ...], as_json: bool, target: Target
) -> None:
    """Decide every input of building DRIVER: the Pin, whose digest names the image."""
    with job(root, catalogues) as work:
        pin = work.resolve(target.of(driver)).pin
    if as_json:
        print_json(document(pin))
    else:
        print_fields(_fields(pin))


def document(pin: Pin) -> dict[str, Any]:
    """Return the JSON of a Pin: its digest and image name, and every pinned input."""
    inputs: dict[str, Any] = json.loads(pin.canonical_json())
    return {"digest": pin.digest, "image": pin.image, **inputs}


def _fields(pin: Pin) -> list[tuple[str, object]]:
    packages = [f"{package.name} {package.version}" for package in pin.packages]
    return [
        ("driver", f"{pin.driver.name} {pin.driver.version} ({pin.driver.flavour})"),
        ("kernel", f"{pin.kernel.release} ({pin.kernel.architecture})"),
        ("distro", f"{pin.distro.id} {pin.distro.version} ({pin.distro.codename})"),
        ("base", f"{pin.base.image}\n{pin.base.digest}"),
        ("compiler", f"{pin.compiler.name} {pin.compiler.version}" if pin.compiler else None),
        ("headers", "\n".join(f"{header.name} {header.version}" for header in pin.headers) or None),
        ("kernel tree", _tree(pin.tree) if pin.tree else None),
        ("tools", "\n".join(packages) or None),
        ("sources", "\n".join(_source(source) for source in pin.sources)),
        ("patches", "\n".join(f"{p.name} {p.sha256}" for p in pin.patches) or None),
        ("recipe", pin.recipe),
        ("template", pin.template),
        ("signing key", pin.signing_key),
        ("digest", pin.digest),
        ("image", pin.image),
    ]


def _tree(tree: TreePin) -> str:
    parts = ("tree", "config", "symvers", "compiler")
    digests = [f"{part} sha256:{value}" for part in parts if (value := getattr(tree, part))]
    toolchain = f"{tree.toolchain.id}:{tree.toolchain.version}" if tree.toolchain else "image"
    return "\n".join([f"{tree.kind}, compiled with {toolchain}", *digests])


def _source(source: PackageSource | ArchiveSource | GitSource) -> str:
    match source:
        case PackageSource():
            return f"{source.name} {source.version}"
        case GitSource():
            return f"{source.url} {source.commit}"
        case ArchiveSource():
            return f"{source.url} sha256:{source.sha256}"
