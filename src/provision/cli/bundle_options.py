"""The options of ``provision bundle``, in groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from provision.cli import options
from provision.cli.job import KeyOptions, private_key_options
from provision.errors import UsageError
from provision.fleet.bundle_contents import Extras, Order
from provision.fleet.mirror_selection import ImageSelection
from provision.pipeline.workspace import Settings


def _files(option: str, field: str, text: str) -> Callable[[Any], Any]:
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option(option, field, type=kind, multiple=True, metavar="FILE", help=text)


# Options for files that are brought as they are.
bringing = options.option_group(
    "extras",
    Extras,
    click.option(
        "--wheels",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Folder with the Python packages of hosts.",
    ),
    _files("--host-python", "host_python", "What 'provision host-python' made."),
    _files("--collection", "collections", "Archive of the Ansible collection."),
    _files("--program", "programs", "The program oci-decorator."),
)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a bundle goes."""

    registry: str | None
    stores: bool
    all_kernels: bool
    base_images: bool

    def check(self) -> None:
        """See that it goes somewhere."""
        if self.registry is None and not self.stores:
            raise UsageError(
                "It is not said where the bundle goes.",
                resolution="Give --registry HOST, --store, or both.",
            )


destination = options.option_group(
    "where",
    Destination,
    click.option(
        "--registry",
        metavar="HOST[:PORT][/PREFIX]",
        help="Copy the artifacts to this registry in the gap.",
    ),
    click.option(
        "--store",
        "stores",
        is_flag=True,
        help="Put the artifacts for this host's kernels into its store, and packages too.",
    ),
    click.option(
        "--all-kernels", is_flag=True, help="With --store: artifacts for other kernels too."
    ),
    click.option("--base-images", is_flag=True, help="With --store: load them into the engine."),
)


@dataclass(frozen=True, slots=True)
class Making(KeyOptions):
    """What a bundle is made of and written to, and the key that signs it."""

    output: Path
    registry: str | None
    artifacts_only: bool
    unsigned: bool

    def order(self, settings: Settings, selection: ImageSelection, extras: Extras) -> Order:
        """Return what goes into it.

        Raises:
            UsageError: No registry is known to take artifacts from.
        """
        address = self.registry or settings.config.registry.address
        if address is None:
            raise UsageError(
                "There is no registry to take artifacts from.",
                resolution="Give --from, or set [registry] address in"
                " /etc/provision/provision.toml.",
            )
        return Order(address, selection, extras, builds=not self.artifacts_only)


to_make = options.option_group(
    "making",
    Making,
    click.option(
        "--output",
        type=click.Path(path_type=Path),
        required=True,
        metavar="DIR|FILE.tar",
        help="A folder, or one archive.",
    ),
    click.option(
        "--from",
        "registry",
        metavar="HOST[:PORT][/PREFIX]",
        help="Where the artifacts are.  [[registry] address of provision.toml]",
    ),
    click.option(
        "--artifacts-only",
        is_flag=True,
        help="Leave out what builds need: packages, base images.",
    ),
    click.option("--unsigned", is_flag=True, help="Don't sign it; hosts refuse it then."),
    *private_key_options,
)
