"""The registries and bundles in which a host looks for artifact images, and which images it trusts.

A name without a registry's host is local, and is looked for in no registry. Only signatures make
the answers of a registry trusted: docs/decisions/16-registries.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.build.workspace import Settings
from provision.config import TrustRule
from provision.errors import NotFoundError, ProvisionError
from provision.files import in_root
from provision.host.kernels import machine
from provision.pin import Pin
from provision.registry.artifact_images import VerifiedImage, facts_of, find
from provision.registry.credentials import default_files, stored_login
from provision.registry.image_layout import open_layout
from provision.registry.keys import PublicKey, load_keys
from provision.registry.manifests import Repository, Writable
from provision.registry.names import (
    HostTag,
    Reference,
    parse_reference,
    pin_tag,
    read_tag,
)
from provision.registry.signatures import UntrustedError, VerifiedSignature, verify_signature
from provision.registry.skopeo import Registry
from provision.registry.storage import FolderFiles


@dataclass(frozen=True, slots=True)
class TrustOverride:
    """Exceptions from provision.toml that a caller allows."""

    # A public key, or a folder of them, that counts; None: those of provision.toml.
    public_key: Path | None = None
    insecure: bool = False
    # Whether an artifact may be older than one that was pulled before.
    allow_downgrade: bool = False


# Returns a repository.
Connect = Callable[[Settings, Reference], Writable]


def connect(settings: Settings, reference: Reference) -> Registry:
    """Return an image's repository, reached as provision.toml says; nothing is asked yet."""
    registry = settings.config.registry
    auth_file = in_root(settings.root, registry.auth_file) if registry.auth_file else None
    # Settings of the host's own registry are not for other registries.
    if not any(f"{a}/".startswith(f"{reference.registry}/") for a in registry.addresses):
        return Registry(reference, auth_file=auth_file)
    ca = in_root(settings.root, registry.ca) if registry.ca else None
    return Registry(reference, ca, registry.plain_http, auth_file)


def registry_login(settings: Settings, reference: Reference) -> str | None:
    """Return this host's login for a registry, as ``stored_login``."""
    files = default_files(os.environ)
    if settings.config.registry.auth_file:
        files = (in_root(settings.root, settings.config.registry.auth_file),)
    return stored_login(reference.registry, files)


def host_reference(settings: Settings, pin: Pin) -> str | None:
    """Return the reference by which hosts find the artifact of a Pin, if there is a registry."""
    if settings.config.registry.address is None:
        return None
    return f"{settings.config.registry.address}/{pin.driver.name}:{tag_of(pin).text}"


def tag_of(pin: Pin) -> HostTag:
    """Return the tag by which hosts find the artifact of a Pin."""
    facts = facts_of(pin, 0)
    return HostTag(facts.version, facts.flavour, facts.kernel, facts.distro)


def examine(
    settings: Settings,
    client: Repository,
    facts: Mapping[str, str],
    consent: TrustOverride,
    *,
    driver: str | None = None,
) -> VerifiedImage:
    """Return an image of a registry that this host may install, without downloading a layer.

    Args:
        driver: The driver, whose image has the tag by which hosts find it; None: the image may have
            any name, and the rules for the repository's last part count.

    Raises:
        NotFoundError: The registry does not have it.
        UntrustedError: It has no signature that counts, or its name does not match its Pin.
    """
    reference = client.reference
    name = driver or reference.repository.rpartition("/")[2]
    facts = {"architecture": machine(settings.root), **facts}
    check = check_of(settings, client, facts, consent, name)
    trusted = find(client, facts["architecture"], examine=check)
    image, found = trusted.image, facts_of(trusted.image.pin, 0)
    is_by_rules = not consent.insecure and consent.public_key is None
    own_rule = trust_rule(settings, reference, found.driver)
    if is_by_rules and own_rule != trust_rule(settings, reference, name):
        raise UntrustedError(
            f"'{image.reference}' is refused: it is an image of {found.driver}, and it was examined"
            f" by the rules of '{name}' in place of the rules of '{found.driver}' in"
            " provision.toml.",
            resolution=f"Have it pushed to a repository that is called '{found.driver}'.",
        )
    wrong = {fact: value for fact, value in facts.items() if getattr(found, fact) != value}
    is_host_tag = driver is not None or read_tag(reference.tag or "", [found.flavour])
    if is_host_tag and reference.tag not in {tag_of(image.pin).text, pin_tag(found.pin)}:
        wrong["tag"] = str(reference.tag)
    if wrong:
        text = ", ".join(f"{fact} {value}" for fact, value in wrong.items())
        raise UntrustedError(
            f"'{image.reference}' is refused: it does not match the request ({text}), but"
            f" {found.driver} {found.version} ({found.flavour}) for {found.kernel} of"
            f" {found.distro} on {found.architecture}.",
            resolution="Push the right image under that name, or ask for this one by its digest.",
        )
    return trusted


def check_of(
    settings: Settings,
    client: Repository,
    facts: Mapping[str, str],
    consent: TrustOverride,
    driver: str,
) -> Callable[[str], VerifiedSignature | None] | None:
    """Return a function that verifies the signature of a digest; None: none is needed.

    Arguments as ``examine``.
    """
    reference = client.reference
    keys = trusted_keys(settings, reference.name, driver, consent)
    if keys is None:
        return None
    oldest = trust_rule(settings, reference, driver).oldest
    return lambda digest: verify_signature(client, digest, keys, facts, oldest=oldest)


def trusted_keys(
    settings: Settings, repository: str, driver: str, consent: TrustOverride
) -> tuple[PublicKey, ...] | None:
    """Return the keys that count for a driver of a repository; None: no signature is needed."""
    rule = settings.config.trust.rule(repository, driver)
    if consent.insecure or (rule.insecure and consent.public_key is None):
        return None
    return load_keys(consent.public_key or _keys(settings, rule, repository))


def trust_rule(settings: Settings, reference: Reference, driver: str) -> TrustRule:
    """Return the rule of [trust] for the images of a driver in a repository."""
    return settings.config.trust.rule(reference.name, driver)


def _keys(settings: Settings, rule: TrustRule, repository: str) -> Path:
    if rule.keys is None:
        raise ProvisionError(
            f"provision.toml does not say whose signatures count for '{repository}'.",
            resolution="Put the public keys of those who sign your artifacts into a folder, and"
            ' name it: [trust] keys = "/etc/provision/trust.d". To build here and never pull:'
            ' [policy] build = "always". To install unsigned images: [trust] insecure = true.',
        )
    return in_root(settings.root, rule.keys)


# The prefix of a folder in place of a registry's name. No registry and no rule of
# [trust.registries] can have it, because a port is a number.
FOLDER = "file:"
# The folder of a bundle that has an image layout for each driver.
BUNDLE_IMAGES = "images"


def references(settings: Settings, driver: str) -> list[Reference]:
    """Return the repositories in which a host looks for a driver, in this order."""
    registry = settings.config.registry
    folders = [Reference(f"{FOLDER}{folder}", driver) for folder in registry.folders]
    return [*folders, *(parse_reference(f"{address}/{driver}") for address in registry.addresses)]


def folder_at(settings: Settings, reference: Reference) -> Repository | None:
    """Return the repository in a folder; None: the reference is a registry's."""
    if not reference.registry.startswith(FOLDER):
        return None
    folder = in_root(settings.root, reference.registry.removeprefix(FOLDER))
    layout = folder / BUNDLE_IMAGES / reference.repository
    if not layout.is_dir():
        raise NotFoundError(
            f"'{folder}' has no images of {reference.repository}.",
            resolution=f"See what the bundle has: provision bundle load {folder} --dry-run",
        )
    return open_layout(FolderFiles(layout), reference)
