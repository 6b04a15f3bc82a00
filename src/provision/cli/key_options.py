"""Options for the private key that signs images, and where its password comes from."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from provision.cli import options
from provision.errors import UsageError
from provision.pipeline.image_signing import configured_signer
from provision.pipeline.workspace import Settings
from provision.registry.image_signature import Signer
from provision.registry.private_key import open_signer
from provision.signing_key import password_line, read_password


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
