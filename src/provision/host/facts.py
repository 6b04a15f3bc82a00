"""All facts of a host together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distro import LinuxDistribution

from provision.errors import NotFoundError
from provision.host.engines import Engine, find_engines
from provision.host.immutability import immutable_kind
from provision.host.kernel import kernel_release, machine
from provision.host.pci import PciDevice, pci_devices
from provision.host.security import lockdown, secure_boot, selinux
from provision.rootfs import in_root

_OS_RELEASES = ("etc/os-release", "usr/lib/os-release")


@dataclass(frozen=True, slots=True)
class Distro:
    """A distribution, as its os-release says.

    Attributes:
        id: ``debian``, ``fedora``, ….
        version: Its version; empty for one that has none (a rolling release).
        codename: Empty if it has none.
        like: The distros that it is derived from, the closest first.
        variant: An edition such as ``coreos``; empty if it has none.
        name: For people.
        build_id: Which build of the distro's image it is; empty for hosts of packages.
    """

    id: str
    version: str
    codename: str
    like: tuple[str, ...]
    variant: str
    name: str
    build_id: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a host is.

    Attributes:
        kernel: Release of the running kernel; of a root that isn't running, the newest complete
            one in it; None: it has none.
        arch: As ``uname -m`` prints it.
        secure_boot: ``enabled``, ``disabled``, ``absent`` (no UEFI) or ``unknown``.
        lockdown: ``none``, ``integrity`` or ``confidentiality``; None: the kernel hasn't got it.
        selinux: ``enforcing``, ``permissive``, ``disabled`` or ``absent``.
        immutable: ``ostree``, ``flatcar``, ``transactional``, ``read-only`` (/usr); None: it isn't.
    """

    distro: Distro
    kernel: str | None
    arch: str
    engines: tuple[Engine, ...]
    secure_boot: str
    lockdown: str | None
    selinux: str
    immutable: str | None
    pci: tuple[PciDevice, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the facts as what ``json.dumps`` takes."""
        return asdict(self)


def read_facts(root: Path = Path("/")) -> Facts:
    """Return the facts of the host whose root is given.

    Raises:
        NotFoundError: There is no os-release under the root, so it is no host's root.
    """
    distro = _distro(root)
    return Facts(
        distro=distro,
        kernel=kernel_release(root),
        arch=machine(root),
        engines=find_engines(root),
        secure_boot=secure_boot(root),
        lockdown=lockdown(root),
        selinux=selinux(root),
        immutable=immutable_kind(root, distro.id),
        pci=pci_devices(root),
    )


def _distro(root: Path) -> Distro:
    """Read os-release.

    Source: https://www.freedesktop.org/software/systemd/man/latest/os-release.html
    """
    places = [in_root(root, name) for name in _OS_RELEASES]
    file = next((place for place in places if place.is_file()), places[-1])
    known = LinuxDistribution(include_lsb=False, include_uname=False, os_release_file=str(file))
    fields = known.os_release_info()
    if not fields:
        raise NotFoundError(
            f"There is no os-release under '{root}', so it is no host's root.",
            details="\n".join(f"looked for {root / name}" for name in _OS_RELEASES),
        )
    return Distro(
        # Not the library's id, which renames some: this is what other tools call it too.
        id=fields.get("id", "linux"),
        version=fields.get("version_id", ""),
        # Not the library's own, which looks into other files of this machine too.
        codename=known.os_release_attr("codename").lower(),
        like=tuple(fields.get("id_like", "").split()),
        variant=fields.get("variant_id", ""),
        name=fields.get("pretty_name", "Linux"),
        build_id=fields.get("build_id", ""),
    )
