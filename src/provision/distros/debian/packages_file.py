"""One Packages file as a table that answers in well under a millisecond.

Reading the text costs seconds (63,000 packages in Debian 12's main section), so it is read once;
the table is made under a temporary name and never changes afterwards.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from provision.distros.debian.relations import VersionKey, version_key
from provision.errors import ProvisionError
from provision.files import sync_directory

# https://wiki.debian.org/DebianRepository/Format#A.22Packages.22_Indices
_FIELDS = (b"Package", b"Version", b"Architecture", b"Filename", b"SHA256", b"Size", b"Depends")
_READ = frozenset(_FIELDS)
# As large as the table takes it.
_SIZE = re.compile(r"[0-9]{1,15}")
_CREATE = """
    CREATE TABLE packages (
        name TEXT, version TEXT, architecture TEXT, filename TEXT, sha256 TEXT, size INTEGER,
        depends TEXT, PRIMARY KEY (name, version, architecture)
    ) WITHOUT ROWID"""
_INSERT = "INSERT OR REPLACE INTO packages VALUES (?, ?, ?, ?, ?, ?, ?)"
_SELECT = """
    SELECT name, version, architecture, filename, sha256, size, depends
    FROM packages WHERE name >= ? AND name < ?"""


@dataclass(frozen=True, slots=True)
class IndexedPackage:
    """A package that an archive has.

    Attributes:
        filename: Path of the file, relative to the archive's address.
        sha256: Of the file.
        size: Of the file, in bytes.
        depends: Its Depends field.
        suite: The suite that it is in.
        component: The component that it is in.
        uri: Address of the archive.
        is_automatic: Whether it is installed without being asked for; backports are not.
    """

    name: str
    version: str
    architecture: str
    filename: str
    sha256: str
    size: int
    depends: str
    suite: str
    component: str
    uri: str = ""
    is_automatic: bool = True

    @property
    def url(self) -> str:
        """Address of the file."""
        return f"{self.uri}/{self.filename}"


Row = tuple[str, str, str, str, str, int, str]


def parse_packages(chunks: Iterable[bytes]) -> Iterator[Row]:
    """Yield the packages of a Packages file, which comes in pieces, as rows of the table.

    It reads only the required fields, line by line: the general parsers take ten times as long
    (docs/decisions/13-what-resolve-reads.md).

    Raises:
        ProvisionError: A package lacks a name, a version or a valid size.
    """
    rest = b""
    for chunk in chunks:
        *stanzas, rest = (rest + chunk).split(b"\n\n")
        yield from _rows(stanzas)
    yield from _rows([rest])


def _rows(stanzas: Iterable[bytes]) -> Iterator[Row]:
    for stanza in stanzas:
        fields = dict.fromkeys(_FIELDS, b"")
        for line in stanza.split(b"\n"):
            key, colon, value = line.partition(b":")
            if colon and key in _READ:
                fields[key] = value.strip()
        if any(fields.values()):
            yield _row(fields)


def _row(fields: dict[bytes, bytes]) -> Row:
    name, version, architecture, filename, sha256, size, depends = (
        fields[key].decode(errors="replace") for key in _FIELDS
    )
    if not (name and version and _SIZE.fullmatch(size)):
        raise ProvisionError(
            f"The package index has a broken entry (package '{name}').",
            resolution="Try again later, or use another mirror.",
        )
    return name, version, architecture, filename, sha256, int(size), depends


def write_table(path: Path, rows: Iterable[Row]) -> None:
    """Make a table; it appears under its name only when it is complete.

    The caller holds the cache's lock.

    Raises:
        OSError: The folder can't be written, or the disk is full.
    """
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(draft)) as connection, connection:
            # No journal: a draft that a crash leaves behind is thrown away.
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute(_CREATE)
            # Within one suite a package may stand twice, in all and in its architecture's index.
            connection.executemany(_INSERT, rows)
        draft.replace(path)
    except sqlite3.OperationalError as error:
        raise OSError(f"could not write '{draft}': {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(path.parent)


class PackageTable:
    """A Packages file that has been read.

    Args:
        path: What ``write_table`` made.
        suite: The suite that it belongs to.
        component: The component that it belongs to.
        uri: Address of the archive.
        is_automatic: Whether its packages are installed without being asked for.
    """

    def __init__(
        self,
        path: Path,
        *,
        suite: str,
        component: str,
        uri: str = "",
        is_automatic: bool = True,
    ) -> None:
        self.suite = suite
        self.component = component
        self.uri = uri
        self.is_automatic = is_automatic
        self._path = path
        # Immutable: no lock files beside it, so that a read-only cache works too.
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        try:
            self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        except sqlite3.DatabaseError as error:
            raise _damaged(path, error) from error

    def named(self, name: str) -> list[IndexedPackage]:
        """Return every version of a package."""
        # No name lies between a name and itself with a zero byte.
        return self._between(name, name + "\0")

    def starting(self, prefix: str) -> list[IndexedPackage]:
        """Return the packages whose names start with a text."""
        # Above every character that a name may have.
        return self._between(prefix, prefix + "\x7f")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _between(self, first: str, end: str) -> list[IndexedPackage]:
        try:
            rows: list[Row] = self._connection.execute(_SELECT, (first, end)).fetchall()
        except sqlite3.DatabaseError as error:
            raise _damaged(self._path, error) from error
        return [
            IndexedPackage(
                name,
                version,
                architecture,
                filename,
                sha256,
                size,
                depends,
                suite=self.suite,
                component=self.component,
                uri=self.uri,
                is_automatic=self.is_automatic,
            )
            for name, version, architecture, filename, sha256, size, depends in rows
        ]


def newest_first(packages: Iterable[IndexedPackage]) -> list[IndexedPackage]:
    """Return packages by version, the newest first; after them those that are not automatic.

    Raises:
        ProvisionError: One has a version that is not valid.
    """
    return sorted(packages, key=_key, reverse=True)


def _key(package: IndexedPackage) -> tuple[bool, VersionKey]:
    """Return the place of a package among others of its name.

    A suite that is not automatic counts where no other has the package, as apt has it:
    apt_preferences(5), the priority 100 of ``NotAutomatic`` with ``ButAutomaticUpgrades``.
    """
    try:
        return package.is_automatic, version_key(package.version)
    except ValueError as error:
        raise ProvisionError(
            f"The package index of {package.suite} has '{package.name}' in a version that is"
            f" not valid: '{package.version}'.",
            resolution="Use another mirror.",
        ) from error


def _damaged(path: Path, error: sqlite3.DatabaseError) -> ProvisionError:
    return ProvisionError(
        f"The cached package index '{path}' is damaged: {error}.",
        resolution="Delete that file; it is made again.",
    )
