"""Rocky Linux and openSUSE Leap, made of Debian's packages; their own dnf, zypper, rpm read them.

What each is called, has and publishes was written by hand after their os-release and repositories.

`kit.rpm_sites` makes their images and mirrors.
"""

from __future__ import annotations

from dataclasses import dataclass

from kit.kernels import kernels
from kit.rpm_kernels import El, Suse

_EL = """\
NAME="Rocky Linux"
VERSION="{version}"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="{version}"
PLATFORM_ID="platform:el{major}"
PRETTY_NAME="Rocky Linux {version}"
CPE_NAME="cpe:/o:rocky:rocky:{major}::baseos"
"""
_LEAP = """\
NAME="openSUSE Leap"
VERSION="{version}"
ID="opensuse-leap"
ID_LIKE="suse opensuse"
VERSION_ID="{version}"
PRETTY_NAME="openSUSE Leap {version}"
CPE_NAME="cpe:/o:opensuse:leap:{version}"
"""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of a site: its id, where it lies, and what packages begin with that it has."""

    id: str
    path: str
    starts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RpmDistro:
    """A distro's stand-in."""

    id: str
    # VERSION_ID.
    version: str
    # The Debian suite whose packages it is made of.
    suite: str
    # The kernel of that suite whose headers it has, under another name.
    debian_kernel: str
    # The package that solves: `dnf` or `zypper`.
    solver: str
    # The current kernel's headers.
    headers: El | Suse
    # Those of a superseded kernel, which only the vault has.
    old_headers: El | Suse
    # The current ones; a package is in the first that has its start.
    repositories: tuple[Repository, ...]
    # The repository of superseded packages; no image is set up with it.
    vault: Repository
    # The file with the distro's public key in its image.
    key: str
    os_release: str

    @property
    def name(self) -> str:
        """`rocky:9`, as `--distro` has it."""
        return f"{self.id}:{self.version if self.solver == 'zypper' else self.major}"

    @property
    def major(self) -> str:
        """The first part of its version."""
        return self.version.partition(".")[0]


def rocky_9() -> RpmDistro:
    """Rocky Linux 9 on Debian 12's packages."""
    return _rocky("9.6", "bookworm", kernels()[1], El("6.1.0", f"{abi(kernels()[1])}.el9"))


def rocky_10(kernel: str) -> RpmDistro:
    """Rocky Linux 10 on Debian 13's packages, for a kernel whose own name an RPM may have.

    What is built for it, a guest with this kernel of Debian 13 can load. Its headers ask for the
    compiler, as those of EL 10 do.
    """
    version, _, release = kernel.partition("-")
    # Debian's 6.12 calls pahole for every module.
    headers = El(version, release, uname=kernel, requires=("gcc", "make", "pahole"))
    return _rocky("10.0", "trixie", kernel, headers)


def _rocky(version: str, suite: str, debian_kernel: str, headers: El) -> RpmDistro:
    major = version.partition(".")[0]
    current, appstream = f"pub/rocky/{major}", ("cpp", "gcc", "kernel-", "make", "patch")
    return RpmDistro(
        id="rocky",
        version=version,
        suite=suite,
        debian_kernel=debian_kernel,
        solver="dnf",
        headers=headers,
        old_headers=El(headers.version, f"7.el{major}"),
        repositories=(
            Repository("appstream", f"{current}/AppStream/x86_64/os", appstream),
            Repository("baseos", f"{current}/BaseOS/x86_64/os", ("",)),
        ),
        vault=Repository("vault", f"vault/rocky/{version}/AppStream/x86_64/os", ("kernel-",)),
        key=f"/etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-{major}",
        os_release=_EL.format(version=version, major=major),
    )


def leap_15() -> RpmDistro:
    """OpenSUSE Leap 15.6 on Debian 12's packages."""
    kernel = kernels()[1]
    return RpmDistro(
        id="opensuse-leap",
        version="15.6",
        suite="bookworm",
        debian_kernel=kernel,
        solver="zypper",
        headers=Suse("6.1.0", abi(kernel)),
        old_headers=Suse("6.1.0", "7"),
        repositories=(
            Repository("repo-sle-update", "update/leap/15.6/sle", ("kernel-",)),
            Repository("repo-oss", "distribution/leap/15.6/repo/oss", ("",)),
        ),
        vault=Repository("vault", "vault/leap/15.6/sle", ("kernel-",)),
        key="/usr/lib/rpm/gnupg/keys/gpg-pubkey-test.asc",
        os_release=_LEAP.format(version="15.6"),
    )


def abi(kernel: str) -> str:
    """`56` of `6.1.0-56-amd64`."""
    return kernel.split("-")[1]
