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
        address: Where it is, and whose keys sign it.
        components: Those of its components that were read.
        enabled: Those of them that every build may take packages from.
    """

    address: SuiteAddress
    components: tuple[str, ...]
    enabled: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([str(self.address), *self.components])


class ArchiveIndex:
    """What can be installed of a distro.

    Args:
        distro: The distro.
        architecture: Debian's name of it.
        tables: Its packages; or what reads them, which is called when the first is asked for.
        suites: Where they come from; the release itself among them.
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
        """Whether an answer takes no download."""
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
        """Address of its security updates; None: there are none."""
        found = (s.address for s in self.suites)
        return next((address.uri for address in found if address.suite.endswith("-security")), None)

    @property
    def is_snapshot(self) -> bool:
        """Whether it counts although its time of validity is over."""
        return any(suite.address.snapshot for suite in self.suites)

    @property
    def keyring(self) -> bytes | None:
        """The keys that sign it, where they are not the distro's own; None: they are.

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
    """Return the folder for what can be had again: the system's for root, else the user's.

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
        root: Root of the host whose apt configuration says where packages come from.
        cache: Where indexes are kept; None: ``default_cache()``.
        progress: Receives what is read, and how far downloads are.
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
    """Return the index of a distro's archive, asking the archive where ours is too old.

    Lists of packages that are not cached are downloaded when the first package is asked for, or by
    ``ArchiveIndex.read``; what is said below of them is raised then.

    Args:
        distro: Which distro.
        layout: How its archive is laid out.
        access: How the host reads it.
        architecture: As ``uname -m`` prints it.
        components: Components needed besides those that are always read.

    Raises:
        NotFoundError: No mirror, no keyring, or no such section or architecture.
        UnreachableError: The archive can't be reached, and its index is not cached.
        SignatureError: Its index is not signed by a trusted key.
        ProvisionError: Its index is out of date or broken.
        OSError: The cache can't be written.
    """
    debian_name = debian_architecture(architecture)
    addresses = access.suites(distro, layout)
    sections = tuple(dict.fromkeys([*layout.enabled, *components]))
    with access.reading() as pool:
        found = [
            (cache, release)
            for cache, release in pool.map(
                suite_release, [SuiteCache(p, access.folder) for p in addresses]
            )
            if release is not None
        ]
        releases = [(cache.address, release) for cache, release in found]
        _check(distro, addresses, releases, sections, debian_name)
        wanted = list(_wanted(found, sections, debian_name))
        is_cached = all(want[0].has_table(*want[1:]) for want in wanted)
        tables = (
            _tables(wanted, pool, access.progress)
            if is_cached
            else partial(_read_later, wanted, access)
        )
    return ArchiveIndex(
        distro=distro,
        architecture=debian_name,
        tables=tables,
        suites=[_suite(address, release, sections, layout) for address, release in releases],
    )


Want = tuple[SuiteCache, ReleaseFile, str, str]


def _suite(
    address: SuiteAddress, release: ReleaseFile, sections: Sequence[str], layout: ArchiveLayout
) -> Suite:
    read = tuple(name for name in sections if name in release.components)
    return Suite(address, read, tuple(name for name in read if name in layout.enabled))


def _wanted(
    found: Iterable[tuple[SuiteCache, ReleaseFile]], sections: Sequence[str], architecture: str
) -> Iterator[Want]:
    for cache, release in found:
        for section in sections:
            for name in release.architectures_to_read(architecture):
                yield cache, release, section, name


def _read_later(wanted: Sequence[Want], access: ArchiveAccess) -> list[PackageTable]:
    """Return the packages of sections, after the lock of the cache was given back."""
    with access.reading() as pool:
        return _tables(wanted, pool, access.progress)


def _tables(
    wanted: Sequence[Want], pool: ThreadPoolExecutor, progress: Progress
) -> list[PackageTable]:
    """Return the packages of sections; some suites lack some of them."""
    found = pool.map(lambda want: want[0].table(*want[1:], progress), wanted)
    return [table for table in found if table is not None]


def suite_release(cache: SuiteCache) -> tuple[SuiteCache, ReleaseFile | None]:
    """Return a suite's Release file; None where it turns out to be another archive.

    Raises:
        ProvisionError: It can't be had, or is not what it should be.
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
    sections: Sequence[str],
    architecture: str,
) -> None:
    """Raise NotFoundError unless the release itself is there, with all that is wanted of it."""
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
        )
    offered = frozenset[str]().union(*(release.components for _, release in found))
    missing = [section for section in sections if section not in offered]
    if missing:
        raise NotFoundError(
            f"The archive of {distro.id} {distro.version} has no section {', '.join(missing)};"
            f" it has {', '.join(sorted(offered))}.",
            resolution="A partial mirror may lack it; name a complete one in"
            " /etc/provision/provision.toml.",
            details=looked,
        )
