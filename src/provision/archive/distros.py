"""The distros whose archives are known: their releases, suites and signing keys."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from provision.errors import NotFoundError
from provision.pin import DistroPin


@dataclass(frozen=True, slots=True)
class Family:
    """What the releases of one distro have in common.

    Attributes:
        id: As in os-release.
        origin: What its indexes say about where they come from.
        keyrings: Where its own package puts the keys that sign its indexes.
        components: The sections of its archive.
        codenames: Codename by version.
    """

    id: str
    origin: str
    keyrings: tuple[str, ...]
    components: tuple[str, ...]
    codenames: Mapping[str, str]

    def suites(self, codename: str) -> tuple[str, str, str]:
        """Return a release's suites: itself, its updates, its security updates."""
        return codename, f"{codename}-updates", f"{codename}-security"

    def releases(self) -> list[str]:
        """Return its releases as ``id:version``, oldest first."""
        return [f"{self.id}:{version}" for version in self.codenames]


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "debian": Family(
            id="debian",
            origin="Debian",
            keyrings=(
                "/usr/share/keyrings/debian-archive-keyring.gpg",
                "/usr/share/keyrings/debian-archive-keyring.pgp",
            ),
            components=("main", "contrib", "non-free", "non-free-firmware"),
            # https://www.debian.org/releases/
            codenames=MappingProxyType({"12": "bookworm", "13": "trixie"}),
        )
    }
)

# https://www.debian.org/ports/ against what `uname -m` prints.
_DEBIAN_ARCHITECTURES = MappingProxyType(
    {
        "x86_64": "amd64",
        "aarch64": "arm64",
        "ppc64le": "ppc64el",
        "s390x": "s390x",
        "riscv64": "riscv64",
    }
)


def known_distros() -> list[str]:
    """Return the distros that drivers can be built for, as ``id:version``."""
    return [release for family in FAMILIES.values() for release in family.releases()]


def find_distro(text: str, *, others: Iterable[str] = ()) -> DistroPin:
    """Return the distro that a text such as ``debian:12`` or ``debian:bookworm`` names.

    Args:
        text: What somebody wrote.
        others: Further distros, with other archives, that a message names.

    Raises:
        NotFoundError: There is no such distro, or none that is supported.
    """
    name, _, release = text.partition(":")
    family = FAMILIES.get(name)
    if family is not None:
        for version, codename in family.codenames.items():
            if release in {version, codename}:
                return DistroPin(id=family.id, version=version, codename=codename)
    known = [*known_distros(), *others]
    # Another release of a known distro is no misspelling.
    close = [] if family else difflib.get_close_matches(text, known, n=1, cutoff=0.5)
    raise NotFoundError(
        f"The distro '{text}' is not supported.",
        resolution=(f"Did you mean '{close[0]}'? " if close else "")
        + f"There are {', '.join(known)}.",
    )


def debian_architecture(machine: str) -> str:
    """Return Debian's name for an architecture as ``uname -m`` prints it.

    Raises:
        NotFoundError: Debian has no such architecture, or none that is supported.
    """
    try:
        return _DEBIAN_ARCHITECTURES[machine]
    except KeyError:
        raise NotFoundError(
            f"The architecture '{machine}' is not supported.",
            resolution=f"There are {', '.join(_DEBIAN_ARCHITECTURES)}.",
        ) from None
