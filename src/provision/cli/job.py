"""One run of a command that builds or asks registries, and the options that such commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli import options
from provision.cli.display import shown
from provision.engine.docker_api import Engine
from provision.errors import UsageError
from provision.pipeline.driver_request import BuildSettings, DriverRequest, RequestOptions
from provision.pipeline.image_signing import configured_signer
from provision.pipeline.lazy_builds import open_engine, resolve_pin
from provision.pipeline.registries import Consent
from provision.pipeline.workspace import Settings, load_settings
from provision.progress import Progress
from provision.registry.image_signature import Signer
from provision.registry.private_key import open_signer
from provision.signing_key import password_line, read_password

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
    options.root_or_new,
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


@dataclass(frozen=True, slots=True)
class PasswordSource:
    """Where a password comes from; neither: it is asked for on the terminal."""

    password_file: Path | None
    password_fd: int | None

    @property
    def is_given(self) -> bool:
        """Whether it comes from a file or descriptor."""
        return self.password_file is not None or self.password_fd is not None

    def read(self, question: str, *, confirm: bool = False) -> bytes:
        """Return the password.

        Raises:
            UsageError: There is no terminal to ask on, or no password at the descriptor.
            NotFoundError: The file can't be read.
            ProvisionError: It has no password in it.
        """
        if self.password_file is not None:
            return read_password(self.password_file)
        if self.password_fd is not None:
            return _from_descriptor(self.password_fd)
        if not sys.stdin.isatty():
            raise UsageError(
                f"There is no terminal to ask for the {question} on.",
                resolution="Give it by --password-file FILE or --password-fd NUMBER.",
            )
        text = click.prompt(question, hide_input=True, confirmation_prompt=confirm, err=True)
        return str(text).encode()


@dataclass(frozen=True, slots=True)
class KeyOptions(PasswordSource):
    """The private key as it was given."""

    key: str | None

    def check(self, *, signs: bool) -> None:
        """See that a key is only given where something is signed.

        Raises:
            UsageError: Nothing is.
        """
        if not signs and (self.key is not None or self.is_given):
            raise UsageError(
                "A key or its password is given, and nothing is to be signed.",
                resolution="Give --sign too, or leave the key out.",
            )

    def signer(self, settings: Settings) -> Signer:
        """Return what signs: the key that was given, or that of provision.toml.

        Raises:
            As ``open_signer`` and ``PasswordSource.read``.
        """
        question = "Password or PIN of the key"
        if self.key is not None:
            return open_signer(self.key, lambda: self.read(question), root=settings.root)
        # What was given comes first, then provision.toml, then the person at the terminal.
        has_file = settings.config.registry.sign_password_file is not None
        if self.is_given or (sys.stdin.isatty() and not has_file):
            return configured_signer(settings, lambda: self.read(question))
        return configured_signer(settings)


_password_options = (
    click.option(
        "--password-file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="File with the password or PIN of the key in its first line.  [asked for]",
    ),
    click.option(
        "--password-fd",
        type=click.IntRange(min=0),
        metavar="NUMBER",
        help="Descriptor from which the password or PIN of the key is read.",
    ),
)
# The fields of KeyOptions, for groups that have more besides.
private_key_options = (
    click.option(
        "--key",
        metavar="FILE|pkcs11:URI",
        help="Private key of ECDSA over P-256.  [[registry] sign_key of provision.toml]",
    ),
    *_password_options,
)
password_source = options.option_group("source", PasswordSource, *_password_options)
signing_key = options.option_group("private", KeyOptions, *private_key_options)


def _from_descriptor(number: int) -> bytes:
    try:
        with os.fdopen(number, "rb", closefd=False) as stream:
            return password_line(stream)
    except OSError as error:
        raise UsageError(
            f"The descriptor {number} can't be read: {error.strerror}.",
            resolution=f"Open it: provision … --password-fd {number} {number}<FILE",
        ) from error
    except ValueError as error:
        raise UsageError(f"There is no password at the descriptor {number}: {error}.") from error
