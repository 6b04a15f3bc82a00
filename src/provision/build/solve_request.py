"""The request to a distro's solver, and headers of kernels that its repositories have dropped."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.build.network_access import proxies
from provision.build.package_store import closure_key
from provision.distros import (
    Distro,
    Failure,
    HeaderQuery,
    Release,
    Repository,
    Spec,
    family_of,
)
from provision.distros.entitlements import entitlements_of, lacking_entitlements
from provision.distros.family import AUTHORITIES
from provision.distros.kernel_tree import Toolchain
from provision.distros.rpm_based.dnf import archive_of_headers, archived_files, header_addresses
from provision.distros.rpm_based.solver_messages import HeadersGoneError, missing_entitlement
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError, download_any
from provision.fetch.authorities import authorities_of
from provision.pin import BasePin
from provision.progress import Note, Progress

# Fedora's kernel-devel has some 25 MB.
_LIMIT = 256 << 20


@dataclass(frozen=True, slots=True)
class SolveRequest:
    """The packages that a solver is to find.

    Attributes:
        kernel: The kernel's release; empty: kernels are only listed.
        root: Root of the host, which may hold entitlements.
        toolchain: The compiler for a kernel tree; None: the kernel's headers are packages.
        archive_mirror: Address instead of that of the distro's archive of superseded kernels.
    """

    distro: Distro
    release: Release
    base: BasePin
    kernel: str
    architecture: str
    tools: tuple[str, ...]
    repositories: tuple[Repository, ...] = ()
    root: Path = Path("/")
    network: str | None = None
    toolchain: Toolchain | None = None
    archive_mirror: str | None = None

    @property
    def query(self) -> HeaderQuery:
        """Where the kernel's headers are; nowhere for a kernel tree."""
        if not self.kernel or self.toolchain:
            return HeaderQuery(flavour="", build="", source="", config="")
        return family_of(self.distro).headers(self.distro, self.kernel, self.architecture)

    @property
    def key(self) -> str:
        """The name of the closure: requests with the same key have the same closure."""
        asked: dict[str, object] = {
            "base": self.base.digest,
            "distro": [self.distro.id, self.release.version],
            "kernel": [self.kernel, self.architecture],
            "headers": [spec.text for spec in self.query.specs],
            "built_with": self.toolchain.cc_version_text if self.toolchain else None,
            "compilers": [rule.model_dump() for rule in self.distro.compilers],
            "tools": sorted(self.tools),
            "repositories": [
                [one.id, list(one.urls), {name: key.hex() for name, key in one.keys.items()}]
                for one in self.repositories
            ],
        }
        more = {
            "snapshots": [one.id for one in self.repositories if one.is_snapshot],
            "signed": [one.id for one in self.repositories if one.is_signed],
            # The repositories that the host may use, and not its credentials, which are renewed.
            "entitled": sorted(self._entitled()),
        }
        # Empty values are left out, so that older closures keep their names.
        return closure_key({**asked, **{name: said for name, said in more.items() if said}})

    def entitlements(self) -> dict[str, str]:
        """Return the files of the host's subscriptions: their path by path in the container."""
        if self._needs_entitlements() and lacking_entitlements(self.distro, self.root):
            raise missing_entitlement(self.failure(0, ""))
        return self._entitled()

    def authorities(self) -> dict[str, bytes]:
        """Return the certificates that this host trusts, by path below ``WORK``.

        Images have none of a site's own mirrors, nor of a proxy that reads along; Debian's and
        Ubuntu's have none at all. They are not needed without an https mirror or a proxy.
        """
        urls = [url for one in self.repositories for url in one.urls]
        is_needed = bool(self._entitled() or proxies())
        if not is_needed and not any(url.startswith("https:") for url in urls):
            return {}
        found = authorities_of(self.root)
        return {AUTHORITIES: found.read_bytes()} if found else {}

    def failure(self, status: int, said: str, version: str | None = None) -> Failure:
        """Return the data from which the distro's family explains a failed script."""
        return Failure(
            status=status,
            said=said,
            distro=self.distro,
            release=self.release,
            kernel=self.kernel,
            architecture=self.architecture,
            query=self.query,
            image=self.base.image,
            full_version=version or None,
        )

    def no_compiler(self, text: str, compilers: tuple[Spec, ...]) -> NotFoundError:
        """Return the error for a kernel whose compiler no package has."""
        tried = ", ".join(spec.text for spec in compilers)
        where = (
            "Enable the repository that has it in the base image, or take a base image of the"
            " release that the kernel is from (--base)."
        )
        if self.toolchain is not None:
            where = (
                "Name a distro that has it as 'toolchain' of [[trees]] in"
                ' /etc/provision/provision.toml, such as toolchain = "debian:13".'
            )
        return NotFoundError(
            f"The kernel {self.kernel} was built with a compiler of major version"
            f" {compilers[0].major}, which {self.distro.name} {self.release.version} does not"
            " package.",
            resolution=f"{where} Modules of another compiler may not load, or crash the kernel.",
            details=f"CONFIG_CC_VERSION_TEXT: {text}\nlooked for: {tried}",
        )

    def _needs_entitlements(self) -> bool:
        # Configured repositories replace those that need a subscription; an archive's suites don't.
        return not self.repositories or self.distro.apt is not None

    def _entitled(self) -> dict[str, str]:
        return entitlements_of(self.distro, self.root) if self._needs_entitlements() else {}


def find_archived(
    request: SolveRequest,
    keys: Callable[[], tuple[str, ...]],
    gone: HeadersGoneError,
    progress: Progress,
) -> tuple[Spec, Mapping[str, bytes]]:
    """Download the headers of a kernel that the repositories have dropped.

    The download is not verified here: the script that gets it checks the package's signature, as
    that of every other package.

    Args:
        keys: Lists the last eight digits of the ids of the distro's keys.
        gone: The error of the solver; raised again if the archive lacks the headers too.

    Returns:
        The package to solve for, and files for the solver's scripts, by path below ``WORK``.
    """
    archive = archive_of_headers(request.distro)
    # Configured repositories exclude all others, unless the archive is configured as well.
    if archive is None or (request.repositories and request.archive_mirror is None):
        raise gone
    addresses = header_addresses(archive, request.kernel, keys(), mirror=request.archive_mirror)
    progress(Note(f"The repositories have no headers of {request.kernel}; asking {archive.name}"))
    tried: list[str] = []
    for url in addresses:
        try:
            return archived_files(url, _downloaded(url, progress))
        except UnreachableError as error:
            raise UnreachableError(
                f"{gone.message} {archive.name} may have them, and can't be reached.",
                resolution=error.resolution,
                details=f"{url}: {error.details or error.message}\n{gone.details or ''}".strip(),
            ) from error
        except NotFoundError:
            tried.append(url)
        except ProvisionError as error:
            tried.append(f"{url}: {error.message}")
    raise _no_signed_copy(gone, tried)


def _no_signed_copy(gone: HeadersGoneError, tried: Sequence[str]) -> HeadersGoneError:
    looked = "\n".join(["no signed copy in the archive:", *tried]) if tried else ""
    return HeadersGoneError(
        gone.message,
        resolution=gone.resolution,
        details="\n".join(filter(None, [gone.details, looked])),
    )


def _downloaded(url: str, progress: Progress) -> bytes:
    with tempfile.TemporaryDirectory(prefix="provision-headers-") as folder:
        path = Path(folder, "headers.rpm")
        download_any(url, destination=path, limit=_LIMIT, progress=progress)
        return path.read_bytes()
