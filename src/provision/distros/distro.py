"""The distros' data: the model of the files ``<id>.toml`` beside this module, each read once."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from provision.documents import Frozen, parse_json
from provision.errors import NotFoundError, did_you_mean
from provision.pin import AbsolutePath, DistroPin, Name, names_of

FamilyName = Literal["apt", "dnf", "zypper", "tree"]


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"'{text}' is no regular expression: {error}") from error
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
Placeholder = Annotated[str, StringConstraints(min_length=1)]


class Release(Frozen):
    """One release of a distro."""

    # As os-release has it (``VERSION_ID``), or its beginning: ``9`` stands for 9.4.
    version: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][A-Za-z0-9._-]*$")]
    codename: Name
    end: Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")] | None = None
    image: str
    # Keys of its packages instead of the distro's, as paths in the base image.
    keys: tuple[AbsolutePath, ...] = ()
    # Packages that the template's own steps call, besides the distro's.
    tools: tuple[str, ...] = ()


class HeaderRule(Frozen):
    """How the headers of one flavour of kernels are found; the first rule that matches counts."""

    flavour: Name
    # Regular expression for the whole release; its named groups are placeholders of the other
    # fields, and so are ``{kernel}``, ``{arch}`` and ``{cpu}``.
    kernels: Pattern
    specs: tuple[Placeholder, ...] = ()
    # The packages of the kernel itself, image and modules; empty: not known. Of ``a|b``, the first
    # that apt knows.
    image: tuple[Placeholder, ...] = ()
    # The build folder that the packages bring.
    build: AbsolutePath | None = None
    # The folder of the whole source, where that is another one.
    source: AbsolutePath | None = None
    # What to enable if the headers are not found: a repository's name or address.
    repository: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.refusal is None) != bool(self.specs and self.build):
            raise ValueError("give either 'specs' and 'build', or 'refusal'")
        return self


class CompilerRule(Frozen):
    """A package that may hold the compiler of a major version; rules are tried in their order."""

    command: Literal["gcc", "clang"] = "gcc"
    # What the solver is asked for; ``{major}`` is the compiler's major version.
    package: Placeholder
    path: AbsolutePath | None = None


class Entitlement(Frozen):
    """A file or folder of the host that allows it to use the distro's repositories.

    It is bound read-only into the solving container, and never part of an image.
    """

    host: AbsolutePath
    container: AbsolutePath
    required: bool = False


class Vault(Frozen):
    """Where a distro keeps packages that its repositories have dropped."""

    name: str
    url: str
    # Addresses of repositories there, with the placeholders ``{version}`` (as os-release has it),
    # ``{major}`` and ``{arch}``; empty where they can't be derived.
    repositories: tuple[str, ...] = ()
    hint: str | None = None
    # Address, below ``url``, of the signed package with a kernel's headers, with the placeholders
    # ``{version}``, ``{release}`` and ``{arch}`` (of the kernel) and ``{key}`` (the last eight
    # digits of the id of a key of the distro); None: they can't be had so.
    headers: Annotated[str, StringConstraints(pattern=r"\{key\}")] | None = None


class Proof(Frozen):
    """What was run for a distro, and on what."""

    what: str
    # Such as ``a stand-in made from Debian's packages``; None: nothing was run.
    on: str | None = None
    real: bool = False


class AptArchive(Frozen):
    """A distro's archive of packages, for the family of apt."""

    origin: str
    # In the base image.
    keyrings: tuple[AbsolutePath, ...] = Field(min_length=1)
    # On a host, for an archive that is signed by more keys than the base image has.
    host_keyrings: tuple[AbsolutePath, ...] = ()
    components: tuple[Name, ...]
    # Components that no mirror of the distro that it is like has; read where apt's sources name
    # them.
    own_components: tuple[Name, ...] = ()
    # Those that hold kernels, compilers and tools.
    enabled: tuple[Name, ...] = Field(min_length=1)
    # Whether a complete mirror has the security suite too.
    security_in_archive: bool = False
    debootstrap_script: Name | None = None


class Distro(Frozen):
    """A distro: the content of its data file."""

    schema_version: Literal[1] = Field(alias="schema")
    id: Name
    name: str
    family: FamilyName
    # Another distro whose data hold where this file has none.
    like: Name | None = None
    releases: tuple[Release, ...] = Field(min_length=1)
    headers: tuple[HeaderRule, ...] = ()
    # Regular expression for the names of packages that hold headers of the kernel.
    header_packages: Pattern = r"kernel[a-z0-9._-]*-devel(?:-matched)?"
    # The distro that its hosts say they are: their kernels are this one's where ``headers`` match.
    hosts: Name | None = None
    compilers: tuple[CompilerRule, ...] = ()
    # Packages that the template's own steps call, whatever the driver.
    tools: tuple[str, ...] = ()
    # What it calls the packages that recipes name as Debian does.
    names: dict[str, str] = Field(default_factory=dict)
    keys: tuple[AbsolutePath, ...] = ()
    # Whether the indexes of its repositories are signed too, by the same keys.
    signed_index: bool = False
    # What its base image consists of, with what these packages need, for the families of dnf and
    # zypper; empty: no base image can be made.
    base_packages: tuple[Placeholder, ...] = ()
    entitlement: tuple[Entitlement, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    options: tuple[Annotated[str, StringConstraints(pattern=r"^--[^\s\x00]+$")], ...] = ()
    archives: tuple[Vault, ...] = ()
    proven: tuple[Proof, ...] = ()
    apt: AptArchive | None = None

    def release(self, version: str) -> Release | None:
        """Return the release of a version or codename: the exact one, else that of its beginning.

        ``9.4`` is a release of ``9``; ``15.6`` is ``15.6`` before it is ``15``.
        """
        words = version.split(".")
        for count in range(len(words), 0, -1):
            prefix = ".".join(words[:count])
            for release in self.releases:
                if prefix == release.version or version == release.codename:
                    return release
        return None

    def build_tools(self, release: Release, packages: Iterable[str]) -> tuple[str, ...]:
        """Return the packages of a build besides headers and compiler, sorted."""
        named = (self.names.get(name, name) for name in packages)
        return tuple(sorted({*self.tools, *release.tools, *named}))

    def pin(self, release: Release) -> DistroPin:
        """Return what a Pin says of a release."""
        return DistroPin(id=self.id, version=release.version, codename=release.codename)


# What a distro has for itself, although it is like another.
_OWN = frozenset(
    {"id", "name", "like", "hosts", "releases", "proven", "entitlement", "environment"}
)


def known_distros() -> list[str]:
    """Return the releases that drivers can be built for, as ``id:version``."""
    return [
        f"{distro.id}:{release.version}" for distro in all_distros() for release in distro.releases
    ]


def all_distros() -> list[Distro]:
    """Return all distros, in the order of their ids."""
    return [_distro(name) for name in sorted(_files())]


def distro_named(distro_id: str) -> Distro | None:
    """Return a distro by its ID of os-release; None: there are no data of it."""
    return _distro(distro_id) if distro_id in _files() else None


def find_distro(text: str) -> DistroPin:
    """Return the release that a text such as ``rocky:9``, ``rocky:9.4`` or ``rocky:el9`` names.

    Of distros with kernel trees, any version: ``flatcar:3227.2.4``.
    """
    name, _, version = text.partition(":")
    distro = distro_named(name)
    release = distro.release(version) if distro and version else None
    is_exact = release is not None and version in {release.version, release.codename}
    if distro is not None and distro.family == "tree" and not is_exact:
        # Each version has a kernel of its own, and there need be no data of it.
        release = None
        with suppress(ValidationError):
            return DistroPin(id=name, version=version, codename=name)
    if distro is not None and release is not None:
        return distro.pin(release)
    known = known_distros()
    # Another release of a known distro is no misspelling.
    raise NotFoundError(
        f"The distro '{text}' is not supported.",
        resolution=("" if distro else did_you_mean(text, known))
        + f"There are {', '.join(known)}. Where this host's kernel is that of another distro, name"
        ' it with --distro, or as kernel_distro = "ID:VERSION" in /etc/provision/provision.toml;'
        " for any other kernel, name its tree there ([[trees]]).",
    )


def distro_on(host: str, version: str, kernel: str) -> str | None:
    """Return the distro of a kernel on a host that says it is another (``hosts``), or None."""
    base = distro_named(host)
    own = base.release(version) if base else None
    for distro in all_distros():
        if distro.hosts == host and any(re.fullmatch(r.kernels, kernel) for r in distro.headers):
            for release in distro.releases:
                if own is not None and release.codename == own.codename:
                    return f"{distro.id}:{release.version}"
    return None


def release_of(pin: DistroPin) -> tuple[Distro, Release]:
    """Return the data of the release that a Pin names."""
    distro = distro_named(pin.id)
    release = distro.release(pin.version) if distro else None
    if distro is not None and distro.family == "tree" and release is None:
        release = distro.releases[-1].model_copy(update={"version": pin.version})
    if distro is None or release is None:
        raise NotFoundError(
            f"There are no data of the distro '{pin.name}'.",
            resolution=f"There are {', '.join(known_distros())}.",
        )
    return distro, release


def release_address(distro_id: str, version: str, architecture: str, *, mirror: str | None) -> str:
    """Return the address of the folder with the files of a distro's release.

    Args:
        mirror: Another server, which has the release below its version; None: the distro's own.
    """
    if mirror is not None:
        return f"{mirror.rstrip('/')}/{version}"
    distro = distro_named(distro_id)
    places = (
        [place for archive in distro.archives for place in archive.repositories] if distro else []
    )
    if not places:
        raise NotFoundError(
            f"It is not known where '{distro_id}' publishes the files of its kernels.",
            resolution="Name the tree under [[trees]] in /etc/provision/provision.toml.",
        )
    return places[0].format(version=version, arch=names_of(architecture).go)


def archive_of(pin: DistroPin) -> AptArchive:
    """Return the archive of a release's packages that apt reads."""
    distro, _ = release_of(pin)
    if distro.apt is None:
        raise NotFoundError(
            f"{distro.name} has no archive that apt reads.",
            resolution="Name a distro of Debian's family with --distro.",
        )
    return distro.apt


def uses_archive(pin: DistroPin) -> bool:
    """Return whether a release's packages are in an archive that apt reads."""
    return release_of(pin)[0].apt is not None


def source_names(pin: DistroPin) -> tuple[str, ...]:
    """Return what a recipe's sources may call a distro: its id, ``id:version``, and its family.

    A distro that there are no data of is one whose kernels come as trees.
    """
    distro = distro_named(pin.id)
    return pin.id, pin.name, distro.family if distro else "tree"


@cache
def _files() -> Mapping[str, Traversable]:
    files = resources.files(__package__).iterdir()
    return {one.name.removesuffix(".toml"): one for one in files if one.name.endswith(".toml")}


@cache
def _distro(name: str) -> Distro:
    return parse_json(json.dumps(_data(name)), Distro, name=f"{name}.toml")


def _data(name: str) -> dict[str, Any]:
    data = tomllib.loads(_files()[name].read_text())
    like = data.get("like")
    if like is None:
        return data
    inherited = {key: value for key, value in _data(like).items() if key not in _OWN}
    names = {**inherited.get("names", {}), **data.get("names", {})}
    return {**inherited, **data, **({"names": names} if names else {})}
