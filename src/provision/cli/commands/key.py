"""``provision key``."""

from __future__ import annotations

from pathlib import Path

import click

from provision.cli import options
from provision.cli.keys import PasswordSource, password_source
from provision.cli.output import print_fields, print_json
from provision.errors import UsageError
from provision.registry.private_key import generate_key


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
def command(
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
