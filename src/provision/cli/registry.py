"""``registry``: push, pull, sign and list artifact images, and make the keys that sign them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from provision.build.image import image_pin
from provision.build.workspace import Settings
from provision.cli import options
from provision.cli.job import (
    KeyOptions,
    PasswordSource,
    examined,
    job,
    key_options,
    password_options,
    signed_lines,
    trust_options,
)
from provision.cli.options import argument, command, option
from provision.cli.output import emit, fields, of_pin, table
from provision.engine.docker_api import find_image, names_registry
from provision.errors import NotFoundError, ProvisionError
from provision.pin import Pin
from provision.registry import (
    check_push_name,
    escaped,
    parse_reference,
    read_tag,
    version_of_tag,
)
from provision.registry.find import (
    TrustOverride,
    connect,
    examine,
    host_reference,
)
from provision.registry.publish import copy_published, publish, sign_image
from provision.registry.repositories import Repository
from provision.registry.signatures import generate_key
from provision.sources.candidates import newest_first
from provision.store.obtain import store_pulled


@click.group("registry", cls=options.Group)
def registry() -> None:
    """Push, pull, sign and list artifact images, and make the keys that sign them."""


@command("push", registry)
def push(
    *,
    image: str = argument("IMAGE"),
    reference: str | None = argument("[REF]"),
    signs: bool = option("--sign", "Sign the pushed image."),
    private: KeyOptions = key_options,
    trust: TrustOverride = trust_options,
    root: Path = options.root,
) -> None:
    """Push IMAGE, an artifact image of the engine, to a registry or folder.

    Without REF, the image gets the name that hosts look for: below [registry] address of
    provision.toml, with a tag of version, flavour, kernel and distro. REF may be oci:DIR, a folder
    that [registry] folders of other hosts can name. The image also gets the tag of its Pin, which
    never points to another image. If IMAGE is in a registry or folder itself, it is copied with its
    signatures, once they are verified.
    """
    private.check(signs=signs)
    if reference is not None:
        check_push_name(reference)
    with job(root) as settings:
        if names_registry(image):
            options.refuse(
                signs,
                "An image that is not the engine's is copied as it is.",
                "Leave out --sign; 'provision registry sign' signs it.",
            )
            trusted = examined(settings, image, trust)
            name, signed = _push_name(settings, trusted.pin, reference), None
            pushed = copy_published(settings, trusted, name)
        else:
            found = find_image(settings.engine(), image)
            pin = image_pin(found, image)
            name = _push_name(settings, pin, reference)
            signer = private.signer(settings) if signs else None
            pushed, signed = publish(settings, pin, found.id, name, signer)
    emit(
        {**pushed._asdict(), "signed": signed},
        f"{pushed.reference}@{pushed.digest}",
        lambda one: signed_lines(one["signed"]) if one["signed"] else (),
    )


def _push_name(settings: Settings, pin: Pin, reference: str | None) -> str:
    name = host_reference(settings, pin, reference)
    options.refuse(
        name is None,
        "No registry is named to push to.",
        "Add REF, or set [registry] address in /etc/provision/provision.toml.",
    )
    return str(name)


@command("pull", registry)
def pull(
    *,
    image: str = argument("IMAGE"),
    again: bool = options.again,
    trust: TrustOverride = trust_options,
    root: Path = options.root,
    dry_run: bool = options.dry_run,
) -> None:
    """Put the artifact of IMAGE, an image in a registry or folder, into the host's store.

    The command verifies the signature of the image and needs no engine. It does not activate the
    artifact; 'provision install IMAGE' does.
    """
    with job(root) as settings:
        trusted = examined(settings, image, trust)
        pulled = None
        if not dry_run:
            pulled = store_pulled(settings, trusted, trust, replace=again)
    pin = trusted.pin
    where = "would be pulled"
    if pulled is not None:
        where = str(pulled.entry) + ("" if pulled.origin == "registry" else " (was there)")
    emit(
        {
            "reference": str(trusted.reference),
            **of_pin(pin),
            "signed_by": trusted.verified.key if trusted.verified else None,
            "facts": trusted.facts,
            "size": trusted.manifest.size,
            "received": pulled.received if pulled else 0,
            "entry": pulled.entry if pulled else None,
            "changed": pulled.origin == "registry" if pulled else False,
            "seconds": round(pulled.seconds["total"], 3) if pulled else 0.0,
            "dry_run": dry_run,
        },
        fields(
            {
                "image": "reference",
                "driver": lambda one: f"{one['driver']} {one['version']} ({pin.driver.flavour})",
                "kernel": "kernel",
                "signed by": lambda one: one["signed_by"] or "no key",
                "artifact": lambda _: where,
            }
        ),
    )


@command("sign", registry)
def sign(
    *,
    image: str = argument("IMAGE"),
    private: KeyOptions = key_options,
    root: Path = options.root,
) -> None:
    """Add a signature to IMAGE, an artifact image in a registry.

    Name the image by its digest (NAME@sha256:…), as 'provision registry push' prints it: with a
    tag, the registry decides which image is signed. The signature covers the digest and the driver,
    version, flavour, distro, kernel and architecture of the Pin. The image also gets the tag of its
    Pin.
    """
    reference = parse_reference(image)
    with job(root) as settings:
        signed = sign_image(settings, reference, private.signer(settings))
    emit(signed, signed_lines)


@command("list", registry)
def list_images(
    *,
    driver: str = argument("DRIVER"),
    address: str | None = options.registry,
    kernel: str | None = option("--kernel RELEASE", "List only images for this kernel."),
    verifies: bool = option("--verify", "Verify the signature of each image."),
    trust: TrustOverride = trust_options,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
) -> None:
    """List the artifact images of DRIVER in a registry: versions, flavours, kernels and distros.

    The list comes from the tags. Only the signature of an image proves what it contains: use
    --verify.
    """
    with job(root, catalogues) as settings:
        where = address or settings.config.registry.address
        options.refuse(
            where is None,
            "No registry is named to search.",
            "Add --registry HOST, or set [registry] address in /etc/provision/provision.toml.",
        )
        client = connect(settings, parse_reference(f"{where}/{driver}"))
        images = [
            one
            for one in _tagged(settings, client, driver)
            if kernel is None or one["kernel"] == escaped(kernel)
        ]
        labels = {one["version"]: version_of_tag(one["version"]) for one in images}
        ranks = {version: rank for rank, version in enumerate(newest_first(labels.values()))}
        # By kernel, and the newest version first for each.
        images.sort(key=lambda o: (o["kernel"], ranks[labels[o["version"]]], o["flavour"]))
        if verifies:
            for one in images:
                one.update(_verified(settings, client, one["reference"], trust))
    columns = {name: name for name in ("version", "flavour", "kernel", "distro")}
    emit(
        {"registry": where, "driver": driver, "images": images},
        table(
            "images",
            {**columns, "signed by": _signed_by} if verifies else columns,
            otherwise="The registry has no image that hosts would look for.",
        ),
    )


def _tagged(settings: Settings, client: Repository, driver: str) -> Iterator[dict[str, Any]]:
    try:
        flavours = tuple(settings.catalogue.entry(driver).recipe.flavours)
    except NotFoundError:
        # The driver is only known elsewhere.
        flavours = ()
    unknown = ("architecture", "digest", "pin", "serial", "signed_by", "refused")
    for tag in client.tags():
        if read := read_tag(tag, flavours):
            reference = str(client.reference.with_tag(tag))
            yield {**read._asdict(), "reference": reference, **dict.fromkeys(unknown)}


def _verified(
    settings: Settings, client: Repository, name: str, trust: TrustOverride
) -> dict[str, Any]:
    try:
        trusted = examine(settings, client.at(parse_reference(name)), {}, trust)
    except ProvisionError as error:
        return {"refused": error.details or error.message}
    pin = trusted.pin
    return {
        "kernel": pin.kernel.release,
        "architecture": pin.kernel.architecture,
        "digest": trusted.reference.digest,
        "pin": pin.digest,
        "serial": trusted.facts.serial if trusted.facts else None,
        "signed_by": trusted.verified.key if trusted.verified else None,
    }


def _signed_by(image: Mapping[str, Any]) -> str:
    return image["signed_by"] or (image["refused"] or "-").replace("\n", "; ")


@command("key", registry)
def key(
    *,
    output: Path = option(
        "--output NAME",
        "Name of the files: NAME.key and NAME.pub.",
        type=click.Path(path_type=Path),
        default=Path("provision"),
    ),
    no_password: bool = option("--no-password", "Leave the private key unencrypted."),
    source: PasswordSource = password_options,
) -> None:
    """Generate a pair of keys: the private key signs images, and hosts verify with the public key.

    The file of the private key has mode 0600 and is encrypted with a password. The command never
    replaces an existing file.
    """
    options.refuse(
        no_password and source.is_given,
        "--no-password and a password can't be given together.",
        "Leave one of them out.",
    )
    password = None if no_password else source.read("Password of the new key", confirm=True)
    private, public = generate_key(output, password)
    emit(
        {"private": private, "public": public, "encrypted": not no_password},
        fields({"private key": "private", "public key": "public"}),
        f"Copy {public} to the hosts, into the folder that [trust] keys names.",
    )
