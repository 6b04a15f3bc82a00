"""Groups of options that commands share, as values that the pipeline takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli import options
from provision.cli.progress_display import shown
from provision.engine.docker_api import Engine
from provision.pipeline.driver_request import BuildSettings, DriverRequest, RequestOptions
from provision.pipeline.lazy_builds import open_engine, resolve_pin
from provision.pipeline.registries import Consent
from provision.pipeline.workspace import Settings, load_settings
from provision.progress import Progress

if TYPE_CHECKING:
    from provision.pipeline.package_pins import Resolved


@dataclass
class Job:
    """One run of a command that may need an engine, which is asked for only when it does."""

    settings: Settings
    progress: Progress

    @cached_property
    def engine(self) -> Engine:
        """The container engine.

        Raises:
            NotFoundError: None answers.
        """
        return open_engine(self.settings)

    def resolve(self, wanted: DriverRequest) -> Resolved:
        """Return the Pin of what is wanted."""
        return resolve_pin(self.settings, lambda: self.engine, wanted, progress=self.progress)

    def close(self) -> None:
        """Give the engine's connections back, if there are any."""
        if "engine" in vars(self):
            self.engine.close()


@contextmanager
def job(root: Path, catalogues: tuple[Path, ...] = ()) -> Iterator[Job]:
    """Open what a command works with; progress is shown until the block ends."""
    settings = load_settings(root, catalogues=catalogues)
    verbose = click.get_current_context().find_root().params["verbose"]
    with shown(verbose=verbose) as progress, closing(Job(settings, progress)) as work:
        yield work


# Options that say which build is meant.
target = options.option_group(
    "target",
    RequestOptions,
    click.option(
        "--kernel", metavar="RELEASE", help="As 'uname -r' prints it.  [the one that runs]"
    ),
    options.distro,
    click.option(
        "--version",
        metavar="VERSION",
        help="Version of the driver, a branch (535), or a kind of branch (lts, production,"
        " new-feature).  [the newest that suits]",
    ),
    options.flavour,
    click.option("--base", metavar="IMAGE", help="Base image: NAME:TAG or NAME@sha256:…"),
    click.option(
        "--network",
        metavar="MODE",
        help="Network of the containers that download, as 'docker run' takes it.",
    ),
    click.option(
        "--force", is_flag=True, help="Try a kernel that the driver is not known to build on."
    ),
    click.option(
        "--update",
        is_flag=True,
        help="Solve for the packages again although it was done before.",
    ),
    options.catalogue,
    options.root,
)


# Options that say how to build.
building = options.option_group(
    "how",
    BuildSettings,
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Compilers at once.  [one a processor]",
    ),
    click.option("--rebuild", is_flag=True, help="Build although the image exists."),
)


# Options that say what of a registry is trusted.
trusting = options.option_group(
    "consent", Consent, options.public_key, options.insecure, options.allow_downgrade
)
