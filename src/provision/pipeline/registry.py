"""Which images of registries a host asks for, and which of them it believes.

A name without a registry's host is local, and never looked for anywhere. What a registry serves is
believed by its signature only: docs/decisions/0211, 0212.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from provision.config import TrustRule
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.host.kernel import machine
from provision.pin import Pin
from provision.pipeline.bundled import folder_at, references
from provision.pipeline.settings import Settings
from provision.progress import Note, Progress, silent
from provision.registry.attached import verify
from provision.registry.client import Client
from provision.registry.credentials import default_files, find_credentials
from provision.registry.images import Trusted, facts_of, find
from provision.registry.names import HostTag, Reference, read_tag
from provision.registry.repository import Repository
from provision.registry.signature import PublicKey, UntrustedError, Verified, load_keys
from provision.registry.tokens import Access, DeniedError
from provision.registry.transport import Transport
from provision.rootfs import in_root
from provision.sources import newest_first


@dataclass(frozen=True, slots=True)
class Consent:
    """What a caller allows in place of what provision.toml says.

    Attributes:
        public_key: A public key, or a folder of them, that counts; None: those of provision.toml.
        insecure: Whether nothing needs to be signed.
        allow_downgrade: Whether an artifact may be older than one that was taken before.
    """

    public_key: Path | None = None
    insecure: bool = False
    allow_downgrade: bool = False


@dataclass(frozen=True, slots=True)
class Sought:
    """The artifact that a host looks for.

    Attributes:
        driver: The driver.
        version: Its version, a branch of it, a kind of branch (``lts``), or None: the newest that
            is there.
        flavour: Its flavour.
        kernel: The kernel's release.
        distro: Id and version of the kernel's distro.
        architecture: As ``uname -m`` prints it.
        prefer: A version to stay with, if it is there.
        branches: The branches that are of the kind that ``version`` names, in the order of
            preference; None: it names none.
    """

    driver: str
    version: str | None
    flavour: str
    kernel: str
    distro: str
    architecture: str
    prefer: str | None = None
    branches: tuple[str, ...] | None = None

    def tag(self, version: str) -> HostTag:
        """Return the tag of one version."""
        return HostTag(version, self.flavour, self.kernel, self.distro)

    def facts(self) -> dict[str, str]:
        """Return what a signature has to say, but for the version."""
        names = ("driver", "flavour", "kernel", "distro", "architecture")
        return {name: getattr(self, name) for name in names}


# What Debian's order of versions takes.
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]*")
# Makes the client of a repository.
Connect = Callable[[Settings, Reference], Repository]


def connect(settings: Settings, reference: Reference) -> Client:
    """Return the client of an image's repository; nothing is asked yet."""
    registry = settings.config.registry
    ca = str(in_root(settings.root, registry.ca)) if registry.ca else None
    own = any(f"{a}/".startswith(f"{reference.registry}/") for a in registry.addresses)
    # What is set for the host's own registry is no other one's business.
    access = Access(ca, registry.plain_http, registry.token_hosts) if own else Access()
    access = replace(access, token_hosts=(*access.token_hosts, *reference.token_hosts))
    files = default_files(os.environ)
    if registry.auth_file:
        files = (in_root(settings.root, registry.auth_file),)
    return Client(
        Transport(
            reference.api_host,
            access,
            lambda: find_credentials(reference.registry, reference.repository, files),
        ),
        reference,
    )


def host_reference(settings: Settings, pin: Pin) -> str | None:
    """Return what hosts look for the artifact of a Pin by; None: the host has no registry."""
    if settings.config.registry.address is None:
        return None
    return f"{settings.config.registry.address}/{pin.driver.name}:{tag_of(pin).text}"


def tag_of(pin: Pin) -> HostTag:
    """Return the tag that hosts look for the artifact of a Pin by."""
    facts = facts_of(pin, 0)
    return HostTag(facts.version, facts.flavour, facts.kernel, facts.distro)


def examine(
    settings: Settings,
    client: Repository,
    wanted: Mapping[str, str],
    consent: Consent,
    *,
    driver: str | None = None,
) -> Trusted:
    """Return an image of a registry that this host may install; no layer of it was downloaded.

    Args:
        settings: The host.
        client: Its repository and name.
        wanted: What its signature has to say.
        consent: What the caller allows.
        driver: The driver that is looked for, by the tag that hosts look for; None: the name may
            be any, and the rules for the repository's last part count.

    Raises:
        NotFoundError: The registry does not have it.
        UntrustedError: It is not signed as it has to be, or its name says another thing.
        ConfigError: There are no keys, or one of them is none.
        UnreachableError: The registry kept failing.
        ProvisionError: It is no artifact image, or provision.toml does not say whom to trust.
    """
    reference = client.reference
    name = driver or reference.repository.rpartition("/")[2]
    wanted = {"architecture": machine(settings.root), **wanted}
    check = verifier(settings, client, wanted, consent, name)
    trusted = find(client, wanted["architecture"], examine=check)
    facts = facts_of(trusted.image.pin, 0)
    _same_rules(settings, trusted, consent, name)
    wrong = {k: v for k, v in wanted.items() if getattr(facts, k) != v}
    says = read_tag(reference.tag or "", [facts.flavour])
    if (driver or says) and tag_of(trusted.image.pin).text != reference.tag:
        wrong["tag"] = str(reference.tag)
    if wrong:
        text = ", ".join(f"{k} {v}" for k, v in wrong.items())
        raise UntrustedError(
            f"'{trusted.image.reference}' is refused: it is not what was asked for ({text}), but"
            f" {facts.driver} {facts.version} ({facts.flavour}) for {facts.kernel} of"
            f" {facts.distro} on {facts.architecture}.",
            resolution="Push the right image under that name, or ask for this one by its digest.",
        )
    return trusted


def verifier(
    settings: Settings, client: Repository, wanted: Mapping[str, str], consent: Consent, driver: str
) -> Callable[[str], Verified | None] | None:
    """Return what verifies the signature of a digest; None: nothing is asked for.

    Arguments as ``examine``; errors as ``trusted_keys``.
    """
    reference = client.reference
    repository = f"{reference.registry}/{reference.repository}"
    keys = trusted_keys(settings, repository, driver, consent)
    if keys is None:
        return None
    oldest = settings.config.trust.rule(repository, driver).oldest
    return lambda digest: verify(client, digest, keys, wanted, oldest=oldest)


def trusted_keys(
    settings: Settings, repository: str, driver: str, consent: Consent
) -> tuple[PublicKey, ...] | None:
    """Return the keys that count for a driver of a repository; None: nothing needs to be signed.

    Raises:
        ConfigError: There are no keys, or one of them is none.
        ProvisionError: provision.toml does not say whom to trust.
    """
    rule = settings.config.trust.rule(repository, driver)
    if consent.insecure or (rule.insecure and consent.public_key is None):
        return None
    return load_keys(consent.public_key or _keys(settings, rule, repository))


def _same_rules(settings: Settings, trusted: Trusted, consent: Consent, driver: str) -> None:
    """See that an image was examined by the rules of its own driver.

    Args:
        settings: The host.
        trusted: The image.
        consent: What the caller allows.
        driver: The driver by whose rules it was examined: only a name until then.

    Raises:
        UntrustedError: It is another driver's, for which other signatures count.
    """
    if consent.insecure or consent.public_key is not None:
        return
    reference, own = trusted.image.reference, trusted.image.pin.driver.name
    repository = f"{reference.registry}/{reference.repository}"
    trust = settings.config.trust
    if trust.rule(repository, own) != trust.rule(repository, driver):
        raise UntrustedError(
            f"'{reference}' is refused: it is an image of {own}, and it was examined by the rules"
            f" of '{driver}' in place of the rules of '{own}' in provision.toml.",
            resolution=f"Have it pushed to a repository that is called '{own}'.",
        )


def _keys(settings: Settings, rule: TrustRule, repository: str) -> Path:
    if rule.keys is None:
        raise ProvisionError(
            f"provision.toml does not say whose signatures count for '{repository}'.",
            resolution="Put the public keys of those who sign your artifacts into a folder, and"
            ' name it: [trust] keys = "/etc/provision/trust.d". To build here and never pull:'
            ' [policy] build = "always". To install unsigned images: [trust] insecure = true.',
        )
    return in_root(settings.root, rule.keys)


def seek(
    settings: Settings,
    sought: Sought,
    consent: Consent,
    *,
    accept: Callable[[Trusted], None] = lambda _: None,
    connected: Connect = connect,
    progress: Progress = silent,
) -> Trusted | None:
    """Return the image that a host looks for, from the first of its registries that has it.

    Args:
        settings: The host.
        sought: What it looks for.
        consent: What the caller allows.
        accept: Raises a ``ProvisionError`` for an image that the host may not have after all, such
            as an old one of a mirror that lags behind.
        connected: Makes clients.
        progress: Told which registry has nothing, and why.

    Returns:
        The image; None: no registry has it; or none answers, and it may be built here.

    Raises:
        UntrustedError: A registry has it, and none has it with a signature that counts.
        UnreachableError: A registry does not answer, and nothing is built here.
        DeniedError: A registry does not let this host in, and nothing is built here.
        ProvisionError: provision.toml does not say whom to trust; a key or image is none.
    """
    refused: ProvisionError | None = None
    absent: ProvisionError | None = None
    places = references(settings, sought.driver)
    for reference in places:
        # What is wrong here is said before anybody is asked.
        repository = f"{reference.registry}/{reference.repository}"
        trusted_keys(settings, repository, sought.driver, consent)
    for reference in places:
        address = f"{reference.registry}/{reference.repository}".rpartition("/")[0]
        try:
            client = folder_at(settings, reference) or connected(settings, reference)
            found = _in_repository(settings, client, sought, consent)
            accept(found)
        except NotFoundError as error:
            progress(Note(f"{address} has no {sought.driver}: {error.details or error.message}"))
            absent = None
        except (UnreachableError, DeniedError) as error:
            progress(Note(f"{error.message} {error.details or ''}".rstrip()))
            absent = error
        except ProvisionError as error:
            if len(places) > 1:
                # Another one may have it as it has to be, and then nothing else says this.
                progress(Note(f"{error.message} {error.details or ''}".rstrip()))
            refused = refused or error
        else:
            return found
    if refused is None and settings.config.policy.build == "never":
        # What is not there and what could not be looked for take different cures. The last one
        # that was asked is no mirror.
        refused = absent
    if refused is not None:
        raise refused
    return None


def _in_repository(
    settings: Settings, client: Repository, sought: Sought, consent: Consent
) -> Trusted:
    """Return the image of a repository, with as few questions as possible."""
    named = sought.version if sought.branches is None else None
    for version in dict.fromkeys((sought.prefer, named)):
        if version is None:
            continue
        with suppress(NotFoundError):
            return _version(settings, client, sought, version, consent)
    for version in _versions(client.tags(), sought):
        return _version(settings, client, sought, version, consent)
    raise NotFoundError(
        f"'{client.reference.registry}/{client.reference.repository}' has no"
        f" {sought.tag(sought.version or '…').text}.",
        resolution="Build and push it on a machine that builds: provision build"
        f" {sought.driver} --kernel {sought.kernel} --distro {sought.distro} --push … --sign",
    )


def _version(
    settings: Settings, client: Repository, sought: Sought, version: str, consent: Consent
) -> Trusted:
    named = client.reference.with_tag(sought.tag(version).text)
    wanted = sought.facts()
    return examine(settings, client.at(named), wanted, consent, driver=sought.driver)


def _versions(tags: tuple[str, ...], sought: Sought) -> list[str]:
    """Return the versions that a repository has for a host, as tags write them, newest first."""
    suffix = sought.tag("").suffix
    found = [tag.removesuffix(suffix) for tag in tags if tag.endswith(suffix)]
    # In a tag '_' stands for '+' and '~', and what is no version at all can't be compared.
    labels = {one.replace("_", "+"): one for one in found}
    newest = [labels[one] for one in newest_first(filter(_VERSION.fullmatch, labels))]
    wanted = (sought.version,) if sought.branches is None else sought.branches
    if wanted == (None,):
        return newest
    return [one for w in wanted for one in newest if one == w or one.startswith(f"{w}.")]
