"""A distro's source packages: what its own packages are built from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from debian.deb822 import Sources

from provision.distros.debian.archive_cache import SuiteCache
from provision.distros.debian.archive_reading import ArchiveAccess, suite_release
from provision.distros.debian.relations import version_key
from provision.distros.debian.suites import ArchiveLayout
from provision.errors import NotFoundError, ProvisionError
from provision.pin import DistroPin

_COMPONENT = "main"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source package.

    Attributes:
        name: Its name.
        url: Its address.
        sha256: Its checksum, 64 hexadecimal digits.
        size: Bytes.
    """

    name: str
    url: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class SourcePackage:
    """A source package, as an archive's signed index describes it."""

    name: str
    version: str
    files: tuple[SourceFile, ...]

    def file(self, part: str) -> SourceFile:
        """Return the file with a part such as ``.orig.tar.`` in its name.

        Raises:
            NotFoundError: There is none, or not only one.
        """
        signature = (".asc", ".sig")
        found = [f for f in self.files if part in f.name and not f.name.endswith(signature)]
        if len(found) != 1:
            raise NotFoundError(
                f"The source package {self.name} {self.version} has {len(found)} files"
                f" '*{part}*', not one.",
                details="\n".join(file.name for file in self.files),
            )
        return found[0]


def find_sources(
    name: str,
    distro: DistroPin,
    layout: ArchiveLayout,
    access: ArchiveAccess,
) -> list[SourcePackage]:
    """Return the versions of a source package, the newest first; at least one.

    Args:
        name: Its name.
        distro: Which distro's.
        layout: How its archive is laid out.
        access: How the host reads it.

    Raises:
        NotFoundError: No mirror or keyring is known, or the distro has no such source package.
        UnreachableError: The archive can't be reached, and its index is not cached.
        SignatureError: Its index is not signed by a trusted key.
    """
    addresses = access.suites(distro, layout)
    found: list[SourcePackage] = []
    with access.reading():
        for address in addresses:
            cache, release = suite_release(SuiteCache(address, access.folder))
            text = release and cache.sources(release, _COMPONENT, access.progress)
            found += _packages(text, name, address.uri) if text else ()
    if not found:
        raise NotFoundError(
            f"{distro.id} {distro.version} has no source package '{name}'.",
            resolution="A partial mirror may lack sources; name a complete one in"
            " /etc/provision/provision.toml.",
            details="\n".join(f"looked in {address}" for address in addresses),
        )
    return sorted(found, key=lambda package: version_key(package.version), reverse=True)


def _packages(text: bytes, name: str, uri: str) -> Iterator[SourcePackage]:
    """Yield a package's versions; only its own entries are parsed, of some 35,000.

    Raises:
        ProvisionError: An entry of it lacks something.
    """
    head = f"Package: {name}\n".encode()
    for stanza in text.split(b"\n\n"):
        if stanza.startswith(head):
            try:
                yield _package(Sources(stanza), name, uri)
            except (KeyError, ValueError) as error:
                raise ProvisionError(
                    f"The source index of '{uri}' has a broken entry (package '{name}').",
                    resolution="Try again later, or use another mirror.",
                    details=f"{type(error).__name__}: {error}",
                ) from error


def _package(fields: Sources, name: str, uri: str) -> SourcePackage:
    version = str(fields["Version"])
    # Refuses what is no version, which could not be sorted.
    version_key(version)
    address = f"{uri}/{fields['Directory']}"
    files = tuple(
        SourceFile(row["name"], f"{address}/{row['name']}", row["sha256"], int(row["size"]))
        for row in fields["Checksums-Sha256"]
    )
    return SourcePackage(name, version, files)
