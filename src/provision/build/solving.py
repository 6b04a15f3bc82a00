"""The settings of a host for a distro: base image, archive, and the request to the solver."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from provision import distros
from provision.build.base_image import BaseRequest
from provision.build.bootstrap import RpmOrigin
from provision.build.package_store import closure_key
from provision.build.solve_request import SolveRequest
from provision.build.workspace import Settings
from provision.catalogue import Entry
from provision.distros.debian import ArchiveIndex, ArchiveLayout, Suite, open_index
from provision.distros.debian.distro_archive import layout_of, uses_archive
from provision.distros.entitlements import entitlements_of
from provision.distros.kernel_tree import Toolchain
from provision.errors import NotFoundError, UsageError
from provision.files import in_root
from provision.host.facts import read_facts
from provision.pin import BasePin, DistroPin
from provision.progress import Progress, silent
from provision.sources import Market, components_of

_NO_NAME = re.compile(r"[^A-Za-z0-9+._-]")


@dataclass(frozen=True, slots=True)
class PackageNeeds:
    """The needs for which a distro's solver finds packages.

    Attributes:
        kernel: The kernel's release; empty: kernels are only listed.
        packages: Further packages that a recipe needs, by Debian's names.
        repositories: Used instead of the base image's own.
        network: Network of the container; None: what provision.toml says.
        toolchain: The compiler for a kernel tree; None: the headers are packages.
    """

    kernel: str = ""
    packages: tuple[str, ...] = ()
    repositories: tuple[distros.Repository, ...] = ()
    network: str | None = None
    toolchain: Toolchain | None = None


def solve_request(
    settings: Settings, distro: DistroPin, base: BasePin, needs: PackageNeeds
) -> SolveRequest:
    """Return the request to a distro's solver, which runs in a container of a base image."""
    data, release = distros.release_of(distro)
    more = needs.toolchain.packages if needs.toolchain else ()
    return SolveRequest(
        distro=data,
        release=release,
        base=base,
        kernel=needs.kernel,
        architecture=read_facts(settings.root).arch,
        tools=data.build_tools(release, (*needs.packages, *more)),
        repositories=needs.repositories,
        root=settings.root,
        network=needs.network or settings.config.engine.network,
        toolchain=needs.toolchain,
        archive_mirror=settings.config.distro(distro.id).archive.mirror,
    )


def archive_repositories(suites: Iterable[Suite]) -> tuple[distros.Repository, ...]:
    """Return the suites of an archive as repositories for a distro's solver."""
    return tuple(
        distros.Repository(
            suite.address.suite,
            (suite.address.uri,),
            keys={file.name: file.read_bytes() for file in suite.address.keyrings}
            if suite.address.has_own_keys
            else {},
            components=suite.enabled,
            is_snapshot=suite.address.snapshot,
        )
        for suite in suites
    )


def configured_repositories(
    settings: Settings, distro: DistroPin
) -> tuple[distros.Repository, ...]:
    """Return the repositories that provision.toml names for a release, with their keys.

    Raises:
        NotFoundError: A key that provision.toml names is missing.
    """
    data, release = distros.release_of(distro)
    found = []
    for one in settings.config.distro(distro.id).repositories:
        # 9.4 is a release of 9, as everywhere.
        if one.version is not None and data.release(one.version) != release:
            continue
        keys: dict[str, bytes] = {}
        for name in one.keys:
            path = in_root(settings.root, name)
            if not path.is_file():
                raise NotFoundError(
                    f"There is no key '{path}', which the repository '{one.id}' names.",
                    resolution=f"Put it there, or correct [distros.{distro.id}] repositories in"
                    " /etc/provision/provision.toml.",
                )
            keys[_key_name(path, keys)] = path.read_bytes()
        signed = data.signed_index if one.signed is None else one.signed
        found.append(distros.Repository(one.id, one.urls, keys, is_signed=signed))
    return tuple(found)


def _key_name(path: Path, others: Container[str]) -> str:
    """Return a name for a key that is unique in its repository, and that the container can read.

    Its programs read lists of keys, in which a blank or comma ends a name.
    """
    name = _NO_NAME.sub("_", path.name)
    return f"{closure_key({'key': str(path)})[:12]}-{name}" if name in others else name


def is_entitled(settings: Settings, distro: DistroPin) -> bool:
    """Return whether the host may use further repositories, which only the solver reads."""
    data, _release = distros.release_of(distro)
    return bool(entitlements_of(data, settings.root))


def base_request(
    settings: Settings, distro: DistroPin, *, reference: str | None = None
) -> BaseRequest:
    """Return the base image on which a distro is built here."""
    # For a build in a kernel tree, provision may have no data of the distro.
    data = distros.distro_named(distro.id)
    release = data.release(distro.version) if data else None
    if data and release and data.family == "tree" and release.version != distro.version:
        # These distros have an image for each version, and none for a whole release.
        release = None
    configured = _configured_image(settings, distro, data)
    apt = data.apt if data else None
    return BaseRequest(
        distro=distro.id,
        version=distro.version,
        codename=distro.codename,
        architecture=read_facts(settings.root).arch,
        reference=reference or configured or (release.image if release else None),
        # Not under a name that an admin chose: it stands for something else.
        can_be_made=not (reference or configured)
        and (apt is not None or bool(data and data.base_packages)),
        script=apt.debootstrap_script if apt else None,
    )


def _configured_image(
    settings: Settings, distro: DistroPin, data: distros.Distro | None
) -> str | None:
    """Return the base image that provision.toml names; its ``9.4`` is a release of 9 too."""
    images = settings.config.distro(distro.id).base_images
    if distro.version in images or data is None or data.family == "tree":
        return images.get(distro.version)
    release = data.release(distro.version)
    return next((image for name, image in images.items() if data.release(name) == release), None)


def rpm_origin(settings: Settings, distro: DistroPin) -> RpmOrigin:
    """Return the repositories from which dnf or zypper makes a base image.

    Raises:
        NotFoundError: Neither provision.toml nor this machine has repositories of it.
        UsageError: A repository of provision.toml names no key.
    """
    data, release = distros.release_of(distro)
    own = configured_repositories(settings, distro)
    facts = read_facts(settings.root).distro
    full = facts.version if data.release(facts.version or "") == release else None
    version = full if facts.id == distro.id and full else release.version
    keyless = [one.id for one in own if not one.keys]
    if keyless:
        raise UsageError(
            f"The repositories {', '.join(keyless)} of [distros.{distro.id}] name no key, and there"
            " is no base image yet that would have the distro's.",
            resolution="Name the distro's key in /etc/provision/provision.toml: keys ="
            f' ["/path/of/its/key"]; {data.name} publishes it on its site.',
        )
    if own:
        return RpmOrigin(data, version, own)
    place = "etc/zypp/repos.d" if data.family == "zypper" else "etc/yum.repos.d"
    configured = in_root(settings.root, place)
    if facts.id != distro.id or full is None or not configured.is_dir():
        raise NotFoundError(
            f"It is not known from which repositories a base image of {data.name}"
            f" {release.version} can be made: this machine is no such host.",
            resolution="Name its repositories, with the keys that sign their packages, in"
            f" /etc/provision/provision.toml: [distros.{distro.id}] repositories ="
            ' [{ id = "…", urls = ["https://…"], keys = ["/path/of/its/key"] }]; or pull an image'
            f" where that is possible ({release.image}) and docker load it here.",
        )
    return RpmOrigin(data, version, configured=configured)


def refuse_repositories(settings: Settings, distro: DistroPin) -> None:
    """Refuse a setting that archives of Debian's kind do not have.

    Raises:
        UsageError: provision.toml names repositories of the distro.
    """
    named = settings.config.distro(distro.id).repositories
    if not named:
        return
    path = in_root(settings.root, "etc/provision/provision.toml")
    first = named[0].urls[0]
    raise UsageError(
        f"{path}: distros.{distro.id}.repositories: packages of {distro.id} come from an archive"
        " with suites, and such repositories are of dnf and zypper.",
        resolution=f"Remove 'repositories' of [distros.{distro.id}], and name the archive instead:"
        f' [distros.{distro.id}.archive] mirror = "{first}", keyring = "/path/of/its/key".',
        details="\n".join(f"repository '{one.id}'" for one in named),
    )


@contextmanager
def open_market(
    settings: Settings, driver: str, distro: DistroPin, market: Market, *, progress: Progress
) -> Iterator[Market]:
    """Yield a market with the index of the distro's archive, if it has one of Debian's kind.

    Raises:
        As ``open_driver_index``.
    """
    if not uses_archive(distro):
        yield market
        return
    entry = settings.catalogue.entry(driver)
    with closing(open_driver_index(settings, entry, distro, progress=progress)) as index:
        yield replace(market, index=index)


def open_driver_index(
    settings: Settings,
    entry: Entry | None,
    distro: DistroPin,
    *,
    at_once: bool = True,
    progress: Progress = silent,
) -> ArchiveIndex:
    """Open the distro's archive with the components that a driver needs; the caller closes it.

    Args:
        settings: The host.
        entry: The driver; None: only the components that are always read.
        distro: The distro.
        at_once: Whether to read its packages now, and not at the first query.
        progress: Receives the progress.

    Raises:
        NotFoundError: No mirror or keyring is known, or the distro has no such components.
        UsageError: provision.toml has settings for the distro that it can't have.
        ProvisionError: The archive can't be reached or is damaged.
    """
    refuse_repositories(settings, distro)
    layout = layout_of(distro)
    index = open_index(
        distro,
        layout,
        settings.archives(progress),
        architecture=read_facts(settings.root).arch,
        components=_components(entry, distro, layout),
    )
    if at_once:
        index.read()
    return index


def _components(entry: Entry | None, distro: DistroPin, layout: ArchiveLayout) -> tuple[str, ...]:
    """Return the components of a distro's archive that a driver needs besides ``main``.

    Raises:
        NotFoundError: The archive has no such components.
    """
    if entry is None:
        return ()
    components = components_of(entry.recipe, distros.source_names(distro))
    foreign = [name for name in components if name not in layout.components]
    if foreign:
        raise NotFoundError(
            f"'{entry.recipe.name}' is made from Debian's packages, in its components"
            f" {', '.join(foreign)}; {distro.id} {distro.version} has no such components.",
            resolution="Take a driver whose source is an archive or a git repository"
            " ('provision drivers' lists them).",
        )
    return components
