"""The options of ``provision bundle``, in groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from provision.build.workspace import Settings
from provision.cli import options
from provision.cli.job import KeyOptions, private_key_options
from provision.errors import UsageError
from provision.fleet.bundle_contents import Extras, Order
from provision.fleet.selection import ImageSelection


def _files(option: str, field: str, text: str) -> Callable[[Any], Any]:
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option(option, field, type=kind, multiple=True, metavar="FILE", help=text)


# Options for files that go into a bundle unchanged.
bringing = options.option_group(
    "extras",
    Extras,
    click.option(
        "--wheels",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Folder with the Python packages for hosts.",
    ),
    _files("--host-python", "host_python", "Archive that 'provision host-python' made."),
    _files("--collection", "collections", "Archive of the Ansible collection."),
    _files("--program", "programs", "The program oci-decorator."),
)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the content of a bundle goes."""

    registry: str | None
    stores: bool
    all_kernels: bool
    base_images: bool

    def check(self) -> None:
        """Check that it goes somewhere.

        Raises:
            UsageError: Neither a registry nor the store is named.
        """
        if self.registry is None and not self.stores:
            raise UsageError(
                "No destination for the bundle is named.",
                resolution="Add --registry HOST, --store, or both.",
            )


destination = options.option_group(
    "where",
    Destination,
    click.option(
        "--registry",
        metavar="HOST[:PORT][/PREFIX]",
        help="Copy the artifacts to this registry behind the air gap.",
    ),
    click.option(
        "--store",
        "stores",
        is_flag=True,
        help="Put the artifacts for this host's kernels into its store, with the packages.",
    ),
    click.option(
        "--all-kernels", is_flag=True, help="With --store: include artifacts for other kernels."
    ),
    click.option(
        "--base-images", is_flag=True, help="With --store: load the base images into the engine."
    ),
)


@dataclass(frozen=True, slots=True)
class Making(KeyOptions):
    """The source and the output of a new bundle, and the key that signs it."""

    output: Path
    registry: str | None
    artifacts_only: bool
    unsigned: bool

    def order(self, settings: Settings, selection: ImageSelection, extras: Extras) -> Order:
        """Return the order for the bundle.

        Raises:
            UsageError: Neither the options nor provision.toml name a registry.
        """
        address = self.registry or settings.config.registry.address
        if address is None:
            raise UsageError(
                "No registry is named to take the artifacts from.",
                resolution="Add --from HOST, or set [registry] address in"
                " /etc/provision/provision.toml.",
            )
        return Order(address, selection, extras, builds=not self.artifacts_only)


to_make = options.option_group(
    "making",
    Making,
    click.option(
        "--output",
        type=options.OUTPUT,
        required=True,
        metavar="DIR|FILE.tar",
        help="Folder or archive to write.",
    ),
    click.option(
        "--from",
        "registry",
        metavar="HOST[:PORT][/PREFIX]",
        help="Registry that has the artifacts.  [[registry] address of provision.toml]",
    ),
    click.option(
        "--artifacts-only",
        is_flag=True,
        help="Leave out the packages and base images that builds need.",
    ),
    click.option(
        "--unsigned", is_flag=True, help="Don't sign the bundle; hosts refuse unsigned bundles."
    ),
    *private_key_options,
)
