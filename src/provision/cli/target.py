"""Groups of options that commands share, as values that the pipeline takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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


def target(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which build is meant; they arrive as ``target: RequestOptions``."""
    gathered = gathering(command, "target", RequestOptions)
    decorators = [
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
    ]
    for decorator in reversed(decorators):
        gathered = decorator(gathered)
    return gathered


def building(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how to build; they arrive as ``how: BuildSettings``."""
    gathered = gathering(command, "how", BuildSettings)
    decorators = [
        click.option(
            "--jobs",
            type=click.IntRange(min=1),
            metavar="N",
            help="Compilers at once.  [one a processor]",
        ),
        click.option("--rebuild", is_flag=True, help="Build although the image exists."),
    ]
    for decorator in reversed(decorators):
        gathered = decorator(gathered)
    return gathered


ResultT = TypeVar("ResultT")


def trusting(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what of a registry is trusted; they arrive as ``consent``."""
    gathered = gathering(command, "consent", Consent)
    for decorator in (options.allow_downgrade, options.insecure, options.public_key):
        gathered = decorator(gathered)
    return gathered


def gathering(
    command: Callable[..., ResultT], name: str, kind: type[Any]
) -> Callable[..., ResultT]:
    """Make a command that takes the fields of a class as options and hands on an object of it."""
    wanted = [field.name for field in fields(kind)]

    @wraps(command)
    def gathered(**given: object) -> ResultT:
        values: dict[str, Any] = {field: given.pop(field) for field in wanted}
        value = kind(**values)
        return command(**given, **{name: value})

    return gathered
