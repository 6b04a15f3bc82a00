"""Has the signed package with a superseded kernel's headers from the archive of its distro."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from provision.build.solve_request import SolveRequest
from provision.distros import Spec
from provision.distros.rpm_based.solver_messages import HeadersGoneError
from provision.distros.rpm_based.superseded import (
    archive_of_headers,
    archived_files,
    header_addresses,
)
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError, download_any
from provision.progress import Note, Progress

# Fedora's kernel-devel has some 25 MB.
_LIMIT = 256 << 20


def find_archived(
    request: SolveRequest,
    keys: Callable[[], tuple[str, ...]],
    gone: HeadersGoneError,
    progress: Progress,
) -> tuple[Spec, Mapping[str, bytes]]:
    """Download the headers of a kernel that the repositories have dropped.

    Nothing vouches for the download yet: the script that gets it checks the package's signature, as
    that of every other package.

    Args:
        request: What is solved for.
        keys: Lists the last eight digits of the ids of the distro's keys.
        gone: What the repositories' lack led to, raised again where nothing else has them.
        progress: Told what is downloaded.

    Returns:
        What to ask the solver for, and files for its scripts, by path below ``WORK``.

    Raises:
        HeadersGoneError: The distro has no such archive, or that has no signed copy.
        UnreachableError: The archive can't be reached.
    """
    archive = archive_of_headers(request.distro)
    # Who names repositories wants nothing from elsewhere, unless the archive is named as well.
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
    looked = "\n".join(["no signed copy in the archive:", *tried]) if tried else ""
    raise HeadersGoneError(
        gone.message,
        resolution=gone.resolution,
        details="\n".join(filter(None, [gone.details, looked])),
    )


def _downloaded(url: str, progress: Progress) -> bytes:
    with tempfile.TemporaryDirectory(prefix="provision-headers-") as folder:
        path = Path(folder, "headers.rpm")
        download_any(url, destination=path, limit=_LIMIT, progress=progress)
        return path.read_bytes()
