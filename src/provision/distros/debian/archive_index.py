"""The index of a distro's archive for one architecture: all its suites and components together.

``archive_reading`` reads it from the archive, or from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from provision.distros.debian.packages_file import IndexedPackage, PackageTable, newest_first
from provision.distros.debian.suites import (
    SuiteAddress,
)
from provision.pin import DistroPin


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
