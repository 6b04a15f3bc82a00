"""The index of a distro's archive for one architecture: all its suites and components together.

It is read from the archive's signed Release files and lists of packages, or from the cache.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from provision.config import Config
from provision.distros.debian.archive_cache import SuiteCache
from provision.distros.debian.packages_file import IndexedPackage, PackageTable, newest_first
from provision.distros.debian.release_file import ReleaseFile
from provision.distros.debian.suites import (
    ArchiveLayout,
    SuiteAddress,
    debian_architecture,
    suite_addresses,
)
from provision.errors import NotFoundError, ProvisionError
from provision.files import lock
from provision.pin import DistroPin
from provision.progress import Note, Progress, silent


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite that an index was read from.

    Attributes:
        address: Its address, and the keys that sign it.
        components: The components that were read.
        enabled: Those of them that every build may take packages from.
    """

    address: SuiteAddress
    components: tuple[str, ...]
    enabled: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([str(self.address), *self.components])


class ArchiveIndex:
    """The packages that can be installed of a distro.

    Args:
        distro: The distro.
        architecture: The architecture, by Debian's name.
        tables: Its packages, or a function that reads them at the first request.
        suites: The suites that they come from, the release itself among them.
    """

    def __init__(
        self,
        *,
        distro: DistroPin,
        architecture: str,
        tables: Sequence[PackageTable] | Callable[[], Sequence[PackageTable]],
        suites: Sequence[Suite],
    ) -> None:
        self.distro = distro
        self.architecture = architecture
        self.suites = tuple(suites)
        self._tables = tables

    @property
    def is_read(self) -> bool:
        """Whether all packages are read, so that no request downloads anything."""
        return not callable(self._tables)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where its packages come from, as in sources.list: "URI suite component…"."""
        return tuple(map(str, self.suites))

    @property
    def mirror(self) -> str:
        """Address of the archive."""
        return next(s.address.uri for s in self.suites if s.address.suite == self.distro.codename)

    @property
    def security_mirror(self) -> str | None:
        """Address of its security updates; None if it has none."""
        found = (s.address for s in self.suites)
        return next((address.uri for address in found if address.suite.endswith("-security")), None)

    @property
    def is_snapshot(self) -> bool:
        """Whether it counts although it is out of date."""
        return any(suite.address.snapshot for suite in self.suites)

    @property
    def keyring(self) -> bytes | None:
        """The keys that sign it; None for the distro's own keys.

        Binary keyrings are sequences of keys:
        https://www.rfc-editor.org/rfc/rfc9580#section-10.1
        """
        addresses = [suite.address for suite in self.suites]
        if not any(address.has_own_keys for address in addresses):
            return None
        files = dict.fromkeys(key for address in addresses for key in address.keyrings)
        return b"".join(dict.fromkeys(file.read_bytes() for file in files))

    def package(self, name: str) -> IndexedPackage | None:
        """Return the newest version of a package; None if it is missing."""
        return next(iter(self.versions(name)), None)

    def versions(self, name: str) -> list[IndexedPackage]:
        """Return every version of a package, the newest first."""
        return newest_first(p for table in self.read() for p in table.named(name))

    def packages_matching(self, prefix: str) -> list[IndexedPackage]:
        """Return the newest version of each package whose name starts with a text, by name."""
        names: dict[str, list[IndexedPackage]] = {}
        for table in self.read():
            for package in table.starting(prefix):
                names.setdefault(package.name, []).append(package)
        return [newest_first(names[name])[0] for name in sorted(names)]

    def close(self) -> None:
        """Close its files."""
        for table in () if callable(self._tables) else self._tables:
            table.close()

    def read(self) -> Sequence[PackageTable]:
        """Return its packages, which are downloaded where they are not cached.

        Raises:
            NotFoundError: The archive doesn't have what it lists.
            UnreachableError: The archive can't be reached.
            ProvisionError: A list is broken.
            OSError: The cache can't be written.
        """
        if callable(self._tables):
            self._tables = self._tables()
        return self._tables


log = logging.getLogger(__name__)
_THREADS = 4
_WAITING = "waiting for another provision to finish reading package indexes"


def default_cache() -> Path:
    """Return the folder for caches: the system's for root, otherwise the user's.

    Source: https://specifications.freedesktop.org/basedir-spec/latest/
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    if named.startswith("/"):
        return Path(named, "provision")
    if os.geteuid() == 0:
        return Path("/var/cache/provision")
    return Path.home() / ".cache/provision"


@dataclass(frozen=True, slots=True)
class ArchiveAccess:
    """How a host reads archives.

    Attributes:
        config: Settings of the host.
        root: Root of the host with the apt configuration that names the archives.
        cache: Folder for indexes; None for ``default_cache()``.
        progress: Receives a note of each index that is read, and the bytes of downloads.
    """

    config: Config = field(default_factory=Config)
    root: Path = Path("/")
    cache: Path | None = None
    progress: Progress = silent

    @property
    def folder(self) -> Path:
        """The folder of the indexes, their keys and their lock."""
        return (self.cache or default_cache()) / "archive"

    def suites(self, distro: DistroPin, layout: ArchiveLayout) -> list[SuiteAddress]:
        """Return the suites of a distro's archive; errors as ``suite_addresses``."""
        settings = self.config.distro(distro.id).archive
        keys = self.folder / "keys"
        return suite_addresses(distro, layout, config=settings, root=self.root, key_folder=keys)

    @contextmanager
    def reading(self) -> Iterator[ThreadPoolExecutor]:
        """Hold the lock of the cache, with threads to read with."""
        with (
            lock(self.folder / "lock", on_wait=lambda: self.progress(Note(_WAITING))),
            ThreadPoolExecutor(_THREADS) as pool,
        ):
            yield pool


def open_index(
    distro: DistroPin,
    layout: ArchiveLayout,
    access: ArchiveAccess,
    *,
    architecture: str,
    components: Iterable[str] = (),
) -> ArchiveIndex:
    """Return the index of a distro's archive; an outdated one in the cache is read again.

    Lists of packages that are not cached are downloaded with the first request for a package, or by
    ``ArchiveIndex.read``, which then raises the errors of these lists.

    Args:
        distro: The distro.
        layout: How its archive is laid out.
        access: How the host reads it.
        architecture: As ``uname -m`` prints it.
        components: Components to read besides those that are always read.

    Raises:
        NotFoundError: There is no mirror, no keyring, or no such component or architecture.
        UnreachableError: The archive can't be reached, and its index is not cached.
        SignatureError: Its index is not signed by a trusted key.
        ProvisionError: Its index is out of date or broken.
        OSError: The cache can't be written.
    """
    debian_name = debian_architecture(architecture)
    addresses = access.suites(distro, layout)
    components_to_read = tuple(dict.fromkeys([*layout.enabled, *components]))
    with access.reading() as pool:
        found = [
            (cache, release)
            for cache, release in pool.map(
                suite_release, [SuiteCache(p, access.folder) for p in addresses]
            )
            if release is not None
        ]
        releases = [(cache.address, release) for cache, release in found]
        _check(distro, addresses, releases, components_to_read, debian_name)
        lists = list(_package_lists(found, components_to_read, debian_name))
        is_cached = all(one.cache.has_table(*one.parts) for one in lists)
        tables = (
            _tables(lists, pool, access.progress)
            if is_cached
            else partial(_read_later, lists, access)
        )
    return ArchiveIndex(
        distro=distro,
        architecture=debian_name,
        tables=tables,
        suites=[
            _suite(address, release, components_to_read, layout) for address, release in releases
        ],
    )


@dataclass(frozen=True, slots=True)
class _PackageList:
    """A list of packages of a suite, for one component and architecture."""

    cache: SuiteCache
    release: ReleaseFile
    component: str
    architecture: str

    @property
    def parts(self) -> tuple[ReleaseFile, str, str]:
        """The arguments of the cache's methods."""
        return self.release, self.component, self.architecture


def _suite(
    address: SuiteAddress, release: ReleaseFile, components: Sequence[str], layout: ArchiveLayout
) -> Suite:
    read = tuple(name for name in components if name in release.components)
    return Suite(address, read, tuple(name for name in read if name in layout.enabled))


def _package_lists(
    found: Iterable[tuple[SuiteCache, ReleaseFile]], components: Sequence[str], architecture: str
) -> Iterator[_PackageList]:
    for cache, release in found:
        for component in components:
            for name in release.architectures_to_read(architecture):
                yield _PackageList(cache, release, component, name)


def _read_later(lists: Sequence[_PackageList], access: ArchiveAccess) -> list[PackageTable]:
    """Return the packages of lists, after the lock of the cache was released."""
    with access.reading() as pool:
        return _tables(lists, pool, access.progress)


def _tables(
    lists: Sequence[_PackageList], pool: ThreadPoolExecutor, progress: Progress
) -> list[PackageTable]:
    """Return the packages of lists; some suites lack some of them."""
    found = pool.map(lambda one: one.cache.table(*one.parts, progress), lists)
    return [table for table in found if table is not None]


def suite_release(cache: SuiteCache) -> tuple[SuiteCache, ReleaseFile | None]:
    """Return a suite's Release file; None if the address is that of another archive.

    Raises:
        ProvisionError: It can't be downloaded, or is not valid.
    """
    address = cache.address
    try:
        release = cache.release(now=time.time())
    except ProvisionError as error:
        if not address.tentative:
            raise
        log.warning("leaving out %s: %s", address, error.message)
        return cache, None
    if address.origin is not None and release.origin != address.origin:
        log.debug("leaving out %s: it is an archive of '%s'", address, release.origin)
        return cache, None
    return cache, release


def _check(
    distro: DistroPin,
    addresses: Sequence[SuiteAddress],
    found: Sequence[tuple[SuiteAddress, ReleaseFile]],
    components: Sequence[str],
    architecture: str,
) -> None:
    """Require the release itself, with the architecture and all components.

    Raises:
        NotFoundError: One of them is missing.
    """
    looked = "\n".join(f"looked in {address}" for address in addresses)
    main = next((release for address, release in found if address.suite == distro.codename), None)
    if main is None:
        raise NotFoundError(
            f"None of the configured archives is that of {distro.id} {distro.version}"
            f" ({distro.codename}).",
            resolution="Name a mirror in /etc/provision/provision.toml:"
            f' [distros.{distro.id}.archive] mirror = "https://…".',
            details=looked,
        )
    if architecture not in main.architectures:
        raise NotFoundError(
            f"The archive of {distro.id} {distro.version} has no architecture {architecture};"
            f" it has {', '.join(sorted(main.architectures - {'all'}))}.",
            details=looked,
            resolution="Name a mirror that has it in /etc/provision/provision.toml:"
            f' [distros.{distro.id}.archive] mirror = "https://…".',
        )
    offered = frozenset[str]().union(*(release.components for _, release in found))
    missing = [component for component in components if component not in offered]
    if missing:
        raise NotFoundError(
            f"The archive of {distro.id} {distro.version} has no component {', '.join(missing)};"
            f" it has {', '.join(sorted(offered))}.",
            resolution="A partial mirror may lack it; name a complete one in"
            " /etc/provision/provision.toml.",
            details=looked,
        )
