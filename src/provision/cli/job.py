"""The settings of commands that build or use registries, and their options."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from provision.build.request import DriverRequest
from provision.build.workspace import Settings, load_settings
from provision.cli import options
from provision.cli.options import option
from provision.cli.output import fields, progress, text
from provision.errors import UsageError
from provision.registry import parse_reference
from provision.registry.find import ArtifactImage, TrustOverride, connect, examine
from provision.registry.publish import configured_signer
from provision.registry.signatures import Signer, open_signer, password_line, read_password


@contextmanager
def job(
    root: Path,
    catalogues: tuple[Path, ...] = (),
    *,
    arch: str | None = None,
    network: str | None = None,
) -> Iterator[Settings]:
    """Yield a host's settings, for kernels of an architecture; progress is shown meanwhile."""
    settings = load_settings(root, catalogues=catalogues, architecture=arch).with_network(network)
    with progress(), settings.connected():
        yield settings


def examined(settings: Settings, image: str, trust: TrustOverride) -> ArtifactImage:
    """Return the image of a registry or a folder, once its signature is verified."""
    return examine(settings, connect(settings, parse_reference(image)), {}, trust)


# Options that select a build of a driver.
_request = {
    "kernel": option("--kernel RELEASE", "Kernel, as 'uname -r' prints it.  [the running one]"),
    "distro": options.distro,
    "version": option(
        "--version VERSION",
        "Version of the driver, a branch (580), a kind of branch (production, lts,"
        " new-feature), auto or latest.  [auto]",
    ),
    "flavour": options.flavour,
    "base": option("--base IMAGE", "Base image, as NAME:TAG or NAME@sha256:DIGEST."),
    "force": option("--force", "Build although it is known to fail, or a policy refuses it."),
    "refresh": option(
        "--refresh", "Solve the closure of packages again, even if a solution is stored."
    ),
}
request_options = options.group(DriverRequest, driver=options.argument("DRIVER"), **_request)
# With a Pin in place of the driver, these are not given.
optional_request = options.group(DriverRequest, driver=options.argument("[DRIVER]"), **_request)
# Options that decide which images of a registry are accepted.
trust_options = options.group(
    TrustOverride,
    public_key=options.public_key,
    insecure=options.insecure,
    allow_downgrade=options.allow_downgrade,
)


@dataclass(frozen=True, slots=True)
class PasswordSource:
    """Where a password comes from; with neither option, the terminal is asked."""

    password_file: Path | None
    password_fd: int | None

    @property
    def is_given(self) -> bool:
        """Whether an option names a file or a descriptor."""
        return self.password_file is not None or self.password_fd is not None

    def read(self, question: str, *, confirm: bool = False) -> bytes:
        """Return the password."""
        if self.password_file is not None:
            return read_password(self.password_file)
        if self.password_fd is not None:
            return _from_descriptor(self.password_fd)
        options.refuse(
            not sys.stdin.isatty(),
            f"No terminal to ask for the {question[0].lower()}{question[1:]}.",
            "Use --password-file FILE or --password-fd NUMBER.",
        )
        text = click.prompt(question, hide_input=True, confirmation_prompt=confirm, err=True)
        return str(text).encode()


@dataclass(frozen=True, slots=True)
class KeyOptions(PasswordSource):
    """The options for the private key."""

    key: str | None

    def check(self, *, signs: bool) -> None:
        """Check that the options for a key are only used where something is signed."""
        options.refuse(
            not signs and (self.key is not None or self.is_given),
            "A key or its password is given, and nothing is to be signed.",
            "Give --sign too, or leave the key out.",
        )

    def signer(self, settings: Settings, asked: list[bytes] | None = None) -> Signer:
        """Return the signer with the key of the options, or else with that of provision.toml.

        ``asked`` gets the password, if one is read.
        """

        def ask() -> bytes:
            password = self.read("Password or PIN of the key")
            if asked is not None:
                asked.append(password)
            return password

        if self.key is not None:
            return open_signer(self.key, ask, root=settings.root)
        # The order: options, then provision.toml, then the terminal.
        has_file = settings.config.registry.sign_password_file is not None
        if self.is_given or (sys.stdin.isatty() and not has_file):
            return configured_signer(settings, ask)
        return configured_signer(settings)


_password = {
    "password_file": option(
        "--password-file FILE",
        "File whose first line is the password or PIN of the key.  [the terminal is asked]",
        type=options.FILE,
    ),
    "password_fd": option(
        "--password-fd NUMBER",
        "File descriptor to read the password or PIN of the key from.",
        type=click.IntRange(min=0),
    ),
}
password_options = options.group(PasswordSource, **_password)
key_options = options.group(
    KeyOptions,
    key=option(
        "--key FILE|pkcs11:URI",
        "Private key for ECDSA over P-256.  [[registry] sign_key of provision.toml]",
    ),
    **_password,
)


def trial_lines(trial: Mapping[str, Any]) -> Iterator[str]:
    """Yield what became of each module in a trial."""
    yield f"{trial['kernel']}, booted with {trial['accelerator']}, {trial['seconds']} s:"
    for one in trial["outcomes"]:
        means = f": {one['reason']}" if one["reason"] else ""
        error = f" ({one['error']})" if one["error"] else ""
        yield f"  {one['module']}: {one['state'].replace('-', ' ')}{error}{means}"
    stayed = text(trial["stayed"]) if trial["stayed"] else "nothing"
    yield f"  after unloading: {stayed} stayed"
    yield from trial["untried"]


def signed_lines(signed: Mapping[str, Any]) -> Iterable[str]:
    """Return what is shown of a signed image."""
    facts = signed["facts"]
    members = {"signed": "reference", "signature": "signature", **{name: name for name in facts}}
    return fields(members)({**signed, **facts})


def _from_descriptor(number: int) -> bytes:
    try:
        with os.fdopen(number, "rb", closefd=False) as stream:
            return password_line(stream)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"There is no password at the descriptor {number}: {reason}.",
            resolution=f"Write it there: provision … --password-fd {number} {number}<FILE",
        ) from error
