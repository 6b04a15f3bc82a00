"""Which versions the sources of a driver offer for a distro, and what a Pin says of one.

Sources of the kind ``deb`` take packages of the distro's own archive. ``archive`` and ``git`` take
a vendor's releases, which the recipe lists. ``dkms`` is one of these with a dkms.conf. ``runfile``
takes NVIDIA's self-extracting files, by address and checksum. A macro in
``templates/macros/source.j2`` unpacks each kind. Pure: starts no process and uses no network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from provision.catalogue import Recipe, RecipeSource, Variant
from provision.catalogue.source_models import (
    GIT_TOOLS,
    CommitAt,
    DebSource,
    DkmsSource,
    GitRelease,
    RunfileRelease,
    RunfileReleases,
    no_commit_at,
)
from provision.distros import upstream_version, version_key
from provision.distros.archive import Archive, ArchivePackage, parse_depends
from provision.documents import refusing
from provision.errors import NotFoundError, ProvisionError
from provision.explain import fill
from provision.pin import PackageSource, RunfileSource, Source, is_address

# Returns the sha256 that a vendor publishes for a file, given the addresses of the file and of the
# checksums.
PublishedSum = Callable[[str, str], str]
# The script that evaluates the dkms.conf in the build container, and builds.
SCRIPT = "dkms.bash"
# Packages of shared libraries, by Debian's rule for their names; and the C library, which every
# image and every program has.
_LIBRARY = re.compile("lib")
_EVERYWHERE = {"libc6"}
# Packages of DKMS, of every build's container, or of a host with DKMS.
_NEEDLESS = re.compile(
    r"dkms|.*-dkms|debconf.*|kmod|make|patch|adduser|udev|systemd|init-system-helpers|linux-.*"
    r"|gcc|.*-utils"
)
# The architectures that NVIDIA publishes files for.
_ARCHITECTURES = ("x86_64", "aarch64")


def no_published_sum(url: str, sums: str) -> str:
    """Refuse to ask for a vendor's checksums: for callers that only list what is offered."""
    raise ProvisionError(
        f"The checksum of '{url}' would have to be asked for at '{sums}'.",
        resolution=f"Look it up: curl {sums}",
    )


class SourceContext(NamedTuple):
    """The context in which a distro's driver sources are looked up."""

    distro: str
    # Its names in recipes: id, ``id:version`` and family.
    names: tuple[str, ...]
    # Its archive; None if it has no Debian-style archive.
    archive: Archive | None = None
    architecture: str = "x86_64"
    published_sum: PublishedSum = no_published_sum
    commit_at: CommitAt = no_commit_at
    # Versions that the vendor has files for, for sources that serve any version.
    published: tuple[str, ...] = ()
    # Versions that turned out to have no files.
    without: frozenset[str] = frozenset()


class PinnedVersion(NamedTuple):
    """A version of a driver, with its sources as a Pin has them."""

    version: str
    # Of the recipe, from which it is built.
    variant: Variant[RecipeSource]
    sources: tuple[Source, ...]
    urls: Mapping[str, tuple[str, ...]] = {}
    # Packages that its build needs besides those of every build, by Debian's names, and those with
    # the libraries that programs of packages start with.
    needs: tuple[str, ...] = ()


def newest_first(versions: Iterable[str]) -> list[str]:
    """Return versions in Debian's order, the newest first, each once."""
    return sorted(set(versions), key=version_key, reverse=True)


def candidates(
    recipe: Recipe, flavour: str, context: SourceContext
) -> dict[str, Variant[RecipeSource]]:
    """Return the versions of a flavour that can be built for a distro, each with its variant.

    Sources come in the recipe's order, and versions of each source the newest first. Of a version
    that several sources have, the first source is taken, as everywhere.
    """
    found = {}
    for variant in recipe.variants(context.names, flavour):
        versions = versions_of(variant, context.archive)
        if variant.source.takes_any_version:
            versions = newest_first([*versions, *context.published])
        for version in versions:
            if version in context.without:
                continue
            chosen = recipe.variant(context.names, flavour, version)
            if chosen is not None and chosen.label == variant.label:
                found[version] = variant
    return found


def unlisted(
    recipe: Recipe, flavour: str, version: str, context: SourceContext
) -> Variant[RecipeSource] | None:
    """Return the variant of an unlisted version, if its source serves such versions; or None."""
    variant = recipe.variant(context.names, flavour, version)
    return variant if variant is not None and variant.source.takes_any_version else None


def versions_of(variant: Variant[RecipeSource], archive: Archive | None) -> list[str]:
    """Return all versions that a source has, the newest first, served by the recipe or not."""
    source = variant.source
    if not isinstance(source, DebSource) and source.releases:
        return newest_first(release.version for release in source.releases)
    if archive is None or variant.package is None:
        return []
    return list(dict.fromkeys(driver_version(found) for found in archive.versions(variant.package)))


def absence(variant: Variant[RecipeSource], archive: Archive | None) -> str:
    """Return the reason for having no versions, as the end of a sentence."""
    if variant.source.is_packaged:
        if archive is None:
            return f"its source is the package {variant.package} of Debian's archive"
        return f"there is no package {variant.package}"
    by_name = (
        "; ask for a version by name (--version)"
        if isinstance(variant.source, RunfileReleases)
        else ""
    )
    return f"the recipe lists no release for the source '{variant.label}'{by_name}"


def components_of(recipe: Recipe, distro: Collection[str]) -> tuple[str, ...]:
    """Return the components of a distro's archive that a recipe needs besides ``main``."""
    components = {
        component
        for source in recipe.sources
        if source.fits(distro) and isinstance(source, DebSource | DkmsSource)
        for component in source.components
    }
    return tuple(sorted(components - {"main"}))


def packages_of(recipe: Recipe, distro: Collection[str]) -> tuple[str, ...]:
    """Return the packages of a distro's archive that a recipe's sources name; as above."""
    packages = {
        name
        for flavour in recipe.flavours
        for variant in recipe.variants(distro, flavour)
        if isinstance(variant.source, DebSource | DkmsSource)
        for name in (variant.package, *variant.source.userspace, *variant.source.companions)
        if name is not None
    }
    return tuple(sorted(packages))


def tools_of(variant: Variant[RecipeSource]) -> tuple[str, ...]:
    """Return the packages that a build needs besides those of every build, by Debian's names."""
    tools = GIT_TOOLS if variant.source.kind == "git" else ()
    return tuple(sorted({*tools, *variant.build.packages}))


def scripts_of(variant: Variant[RecipeSource]) -> tuple[str, ...]:
    """Return the template files that only builds of this kind of source run."""
    return (SCRIPT,) if isinstance(variant.source, DkmsSource) else ()


def unpacking(
    variant: Variant[RecipeSource], sources: tuple[Source, ...]
) -> tuple[list[Source], list[Source]]:
    """Return the parts that are unpacked before the build, and those that are unpacked after.

    Of packages, only the one with the modules' source is needed before.
    """
    if not variant.source.is_packaged:
        return list(sources), []
    late = [
        source
        for source in sources
        if not (isinstance(source, PackageSource) and source.name == variant.package)
    ]
    return [source for source in sources if source not in late], late


def pin_sources(
    driver: str, version: str, variant: Variant[RecipeSource], context: SourceContext
) -> PinnedVersion:
    """Return a version with its sources."""
    source = variant.source
    sources: tuple[Source, ...]
    urls: dict[str, tuple[str, ...]] = {}
    needs = {*tools_of(variant)}
    if isinstance(source, RunfileReleases):
        sources = (_pin_runfile(driver, source, version, context),)
    elif isinstance(source, DebSource) or (isinstance(source, DkmsSource) and source.is_packaged):
        archive = context.archive
        if archive is None:
            raise NotFoundError(
                f"{context.distro} has no archive: {absence(variant, None)}.",
                resolution="Add a [[source]] for this distro to driver.toml,"
                " or name another distro (--distro).",
            )
        packages = _packages(driver, str(variant.package), source, version, archive)
        sources = tuple(map(_pinned, packages))
        # apt may have other ways to its mirrors, such as mirror+file:.
        urls = {one.sha256: (one.url,) for one in packages if is_address(one.url)}
        needs |= {*_libraries_of(packages, source, archive)}
        needs |= {*_tools_of(packages[0], source, archive)}
    else:
        own = [release for release in source.releases if release.version == version]
        sources = tuple(
            one.source(context.commit_at) if isinstance(one, GitRelease) else one.source()
            for one in own
        )
    return PinnedVersion(version, variant, sources, urls, tuple(sorted(needs)))


def _packages(
    driver: str, package: str, source: DebSource | DkmsSource, version: str, archive: Archive
) -> list[ArchivePackage]:
    """Return the packages with a version's source and user space.

    Companions, such as firmware, have versions of their own: the newest is taken.
    """
    names = dict.fromkeys([package, *source.userspace])
    found = {name: package_of_version(archive, name, version) for name in names}
    missing = [name for name, package in found.items() if package is None]
    if missing:
        raise _other_version(driver, version, missing, archive)
    found |= {name: archive.package(name) for name in source.companions}
    missing = [name for name, package in found.items() if package is None]
    if missing:
        raise _missing_package(missing, archive)
    return [package for package in found.values() if package is not None]


def _tools_of(
    package: ArchivePackage, source: DebSource | DkmsSource, archive: Archive
) -> Iterator[str]:
    """Yield what the source with a dkms.conf depends on, and neither DKMS nor every build has.

    Never DKMS itself, and no package for it: its hooks would build modules in our container.
    """
    if not isinstance(source, DkmsSource):
        return
    groups = parse_depends(package.depends)
    needed = [names for names in groups if not any(map(_NEEDLESS.fullmatch, names))]
    archive.ask(*(name for names in needed for name in names))
    for names in needed:
        found = next((name for name in names if archive.package(name)), None)
        if found is not None:
            yield found


def _libraries_of(
    packages: list[ArchivePackage], source: DebSource | DkmsSource, archive: Archive
) -> tuple[str, ...]:
    """Return the distro's packages of libraries that the programs of packages depend on.

    A package of a library has no programs (Debian Policy 8.2), and its libraries run in containers,
    which have their own. What is in the driver's own components, and not among its packages, the
    recipe leaves out.
    """
    own = {package.name for package in packages}
    wanted = {
        group[0]
        for package in packages
        if not _LIBRARY.match(package.name)
        for group in parse_depends(package.depends)
        if own.isdisjoint(group) and _LIBRARY.match(group[0]) and group[0] not in _EVERYWHERE
    }
    if not wanted:
        return ()
    archive.ask(*wanted)
    found = (archive.package(name) for name in sorted(wanted))
    return tuple(one.name for one in found if one and one.component not in source.components)


def driver_version(package: ArchivePackage) -> str:
    """Return the upstream part of a package's version: no epoch, no Debian revision."""
    return upstream_version(package.version)


def package_of_version(archive: Archive, name: str, version: str) -> ArchivePackage | None:
    """Return the newest package of a name whose upstream version is the given one."""
    return next((p for p in archive.versions(name) if driver_version(p) == version), None)


def _pinned(package: ArchivePackage) -> PackageSource:
    with refusing(f"The package {package.name} {package.version} can't be pinned."):
        return PackageSource(name=package.name, version=package.version, sha256=package.sha256)


def _other_version(driver: str, version: str, names: list[str], archive: Archive) -> NotFoundError:
    absent = [name for name in names if archive.package(name) is None]
    if absent:
        return _missing_package(absent, archive)
    there = {
        name: ", ".join(driver_version(package) for package in archive.versions(name))
        for name in names
    }
    return NotFoundError(
        f"The archive of {archive.distro} has no user space of '{driver}'"
        f" {version}: modules and libraries must be of one version.",
        resolution="Take a version that all of them have (--version), or another flavour"
        " (--flavour).",
        details="\n".join(f"{name}: {versions}" for name, versions in there.items()),
    )


def _missing_package(names: list[str], archive: Archive) -> NotFoundError:
    return NotFoundError(
        f"The archive of {archive.distro} has no package {', '.join(names)}.",
        resolution="Check the name; if it is in another component of the archive, add that to"
        " 'components' in driver.toml.",
        details="\n".join(["looked in:", *(f"  {place}" for place in archive.addresses)]),
    )


def _pin_runfile(
    driver: str, source: RunfileReleases, version: str, context: SourceContext
) -> RunfileSource:
    architecture = context.architecture
    if architecture not in _ARCHITECTURES:
        raise NotFoundError(
            f"There is no .run of '{driver}' {version} for {architecture}.",
            resolution=f"There are files for {', '.join(_ARCHITECTURES)}.",
        )
    same = [release for release in source.releases if release.version == version]
    fitting = [release for release in same if release.architecture == architecture]
    release = (fitting or same or [RunfileRelease(version=version)])[0]
    filled = {"version": version, "arch": architecture}
    url = fill(release.url or source.url or "", filled)
    sha256 = release.sha256
    if sha256 is not None and release.architecture != architecture:
        raise NotFoundError(
            f"The recipe of '{driver}' has {version} for {release.architecture} only, and this"
            f" is {architecture}.",
            resolution="Add a release with that architecture's sha256 to its driver.toml.",
        )
    if sha256 is None:
        sums = fill(release.checksums or source.checksums or "", filled)
        sha256 = context.published_sum(url, sums)
    with refusing(f"The file of '{driver}' {version} can't be pinned."):
        return RunfileSource.model_validate(
            {
                "url": url,
                "sha256": sha256,
                "version": version,
                "architecture": architecture,
                "leave_out": source.leave_out,
            }
        )
