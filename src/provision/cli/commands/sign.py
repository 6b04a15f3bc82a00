"""``provision key`` and ``provision sign``, and the options that say which private key signs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from provision.cli import options
from provision.cli.output import print_fields, print_json
from provision.cli.target import gathering, job
from provision.errors import UsageError
from provision.pipeline.signing import (
    SignedImage,
    configured_signer,
    open_signer,
    read_password,
    sign_image,
)
from provision.pipeline.workspace import Settings
from provision.registry.image_signature import Signer, generate_key
from provision.registry.names import parse_reference

_LONGEST_PASSWORD = 1023
_OPTIONS = (
    click.option(
        "--password-fd",
        type=click.IntRange(min=0),
        metavar="NUMBER",
        help="Descriptor from which the password or PIN of the key is read.",
    ),
    click.option(
        "--password-file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="File with the password or PIN of the key in its first line.  [asked for]",
    ),
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
class KeyOptions:
    """The private key as it was given."""

    key: str | None
    password_file: Path | None
    password_fd: int | None

    def check(self, *, signs: bool) -> None:
        """See that a key is only given where something is signed.

        Raises:
            UsageError: Nothing is.
        """
        if not signs and (self.key, self.password_file, self.password_fd) != (None, None, None):
            raise UsageError(
                "A key or its password is given, and nothing is to be signed.",
                resolution="Give --sign too, or leave the key out.",
            )

    def signer(self, settings: Settings) -> Signer:
        """Return what signs: the key that was given, or that of provision.toml.

        Raises:
            As ``open_signer`` and ``PasswordSource.read``.
        """
        source = PasswordSource(self.password_file, self.password_fd)
        question = "Password or PIN of the key"
        if self.key is not None:
            return open_signer(self.key, lambda: source.read(question), root=settings.root)
        # What was given comes first, then provision.toml, then the person at the terminal.
        has_file = settings.config.registry.sign_password_file is not None
        if source.is_given or (sys.stdin.isatty() and not has_file):
            return configured_signer(settings, lambda: source.read(question))
        return configured_signer(settings)


def password_source(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for a password; they arrive as ``source: PasswordSource``."""
    gathered = gathering(command, "source", PasswordSource)
    for option in _OPTIONS:
        gathered = option(gathered)
    return gathered


def private_key_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for a private key, by the names of the fields of ``KeyOptions``."""
    gathered = command
    for option in _OPTIONS:
        gathered = option(gathered)
    return click.option(
        "--key",
        metavar="FILE|pkcs11:URI",
        help="Private key of ECDSA over P-256.  [[registry] sign_key of provision.toml]",
    )(gathered)


def signing_key(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for a private key; they arrive as ``private: KeyOptions``."""
    return private_key_options(gathering(command, "private", KeyOptions))


def _from_descriptor(number: int) -> bytes:
    try:
        with os.fdopen(number, "rb", closefd=False) as stream:
            line = stream.readline(_LONGEST_PASSWORD + 2).rstrip(b"\r\n")
    except OSError as error:
        raise UsageError(
            f"The descriptor {number} can't be read: {error.strerror}.",
            resolution=f"Open it: provision … --password-fd {number} {number}<FILE",
        ) from error
    if not 0 < len(line) <= _LONGEST_PASSWORD:
        raise UsageError(f"There is no password at the descriptor {number}.")
    return line


@click.command("key")
@click.argument("what", metavar="generate", type=click.Choice(["generate"]))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("provision"),
    show_default=True,
    metavar="NAME",
    help="The files are NAME.key and NAME.pub.",
)
@click.option("--no-password", is_flag=True, help="Leave the private key unencrypted.")
@password_source
@options.as_json
def key_command(
    *, what: str, output: Path, no_password: bool, as_json: bool, source: PasswordSource
) -> None:
    """Make a pair of keys for images: the private one signs, the public one goes to the hosts.

    The private key's file has mode 0600 and is encrypted with a password. Nothing that is there is
    replaced.
    """
    del what
    if no_password and source.is_given:
        raise UsageError("--no-password can't be given together with a password.")
    password = None if no_password else source.read("Password of the new key", confirm=True)
    private, public = generate_key(output, password)
    if as_json:
        print_json({"private": str(private), "public": str(public), "encrypted": not no_password})
        return
    print_fields([("private key", private), ("public key", public)])
    click.echo(f"Copy {public} to the hosts, into the folder that [trust] keys names.")


@click.command("sign")
@click.argument("image", metavar="IMAGE")
@signing_key
@options.root
@options.as_json
def sign_command(*, image: str, private: KeyOptions, root: Path, as_json: bool) -> None:
    """Sign IMAGE, an artifact image of a registry, beside the signatures that it has.

    Give it by its digest (NAME@sha256:…), as 'provision push' prints it: by a tag, the registry
    decides what is signed. Signed are the digest, and what the image's Pin says: driver, version,
    flavour, distro, kernel and architecture.
    """
    reference = parse_reference(image)
    with job(root) as work:
        signed = sign_image(work.settings, reference, private.signer(work.settings))
    if as_json:
        print_json(signed.document())
    else:
        print_signed(signed)


def print_signed(signed: SignedImage) -> None:
    """Print what was signed, for people."""
    facts = [(name, value) for name, value in asdict(signed.facts).items()]
    print_fields([("signed", signed.reference), ("signature", signed.signature), *facts])
