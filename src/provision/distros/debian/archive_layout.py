"""How a distro lays out its archive: suites, components and signing keys. Data types only."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from provision.errors import NotFoundError

# https://www.debian.org/ports/ against what `uname -m` prints. Ubuntu has the same names.
_ARCHITECTURES = MappingProxyType(
    {
        "x86_64": "amd64",
        "aarch64": "arm64",
        "ppc64le": "ppc64el",
        "s390x": "s390x",
        "riscv64": "riscv64",
    }
)


@dataclass(frozen=True, slots=True)
class ArchiveLayout:
    """What the archives of a distro's releases have in common.

    Attributes:
        origin: What its indexes say about where they come from.
        keyrings: Where its own package puts the keys that sign its indexes.
        keyring_package: That package.
        components: Its components.
        enabled: Those that hold kernels, compilers and tools, and are always read.
        codenames: Of all its releases, oldest first.
        security_in_archive: Whether a complete mirror has the security suite too. Debian's
            security updates are an archive of their own.
    """

    origin: str
    keyrings: tuple[str, ...]
    keyring_package: str
    components: tuple[str, ...]
    enabled: tuple[str, ...]
    codenames: tuple[str, ...]
    security_in_archive: bool = False

    def suites(self, codename: str) -> tuple[str, str, str]:
        """Return a release's suites: itself, its updates, its security updates."""
        return codename, f"{codename}-updates", f"{codename}-security"

    def backports(self, codename: str) -> str:
        """Return the suite of a release that holds newer kernels for those who ask for them."""
        return f"{codename}-backports"


def debian_architecture(machine: str) -> str:
    """Return Debian's name for an architecture as ``uname -m`` prints it.

    Raises:
        NotFoundError: Debian has no such architecture, or none that is supported.
    """
    try:
        return _ARCHITECTURES[machine]
    except KeyError:
        raise NotFoundError(
            f"The architecture '{machine}' is not supported.",
            resolution=f"There are {', '.join(_ARCHITECTURES)}.",
        ) from None
