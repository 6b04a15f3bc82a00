"""Where the kernel's ``sign-file`` comes from: the host's headers, or the package that a Pin names.

The build's container has it too, but the private key must not go there (docs/decisions/0080).
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from debian.debfile import DebError, DebFile

from provision.archive import ArchiveIndex, IndexedPackage
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import download
from provision.files import write_atomic
from provision.pin import Pin
from provision.progress import Note, Progress, silent

# Places of the headers: the link that every distro has, Debian's and Fedora's own.
_PLACES = (
    "lib/modules/{kernel}/build/scripts/sign-file",
    "usr/lib/modules/{kernel}/build/scripts/sign-file",
    "usr/src/kernels/{kernel}/scripts/sign-file",
    "usr/src/linux-headers-{kernel}/scripts/sign-file",
)
_ANY = ("usr/lib/linux-kbuild-*/scripts/sign-file", "usr/src/kernels/*/scripts/sign-file")
_PACKAGE = "linux-kbuild-"
_NAME = "scripts/sign-file"


def find_sign_file(pin: Pin, *, root: Path = Path("/")) -> Path | None:
    """Return the sign-file of a host, that of the kernel itself first; None: it has none.

    What it writes is the same whichever kernel's it is.
    """
    paths = [root / place.format(kernel=pin.kernel.release) for place in _PLACES]
    paths += [path for pattern in _ANY for path in sorted(root.glob(pattern), reverse=True)]
    return next((path for path in paths if path.is_file()), None)


def fetch_sign_file(
    pin: Pin,
    open_index: Callable[[], ArchiveIndex],
    *,
    cache: Path,
    progress: Progress = silent,
) -> Path:
    """Return the sign-file of the headers that a Pin names, from the distro's signed archive.

    Args:
        pin: Names the package and its version.
        open_index: Opens the archive; not called if the program is cached.
        cache: Folder for what can be had again.
        progress: Told what is downloaded.

    Raises:
        NotFoundError: The archive has no such package any more, or the Pin names none.
        ProvisionError: The package holds no sign-file.
    """
    part = next((p for p in pin.headers if p.name.startswith(_PACKAGE)), None)
    if part is None:
        raise _no_tool(pin)
    program = cache / "sign-file" / f"{part.name}_{part.version}_{pin.kernel.architecture}"
    if program.is_file():
        return program
    with closing(open_index()) as index:
        package = next((p for p in index.versions(part.name) if p.version == part.version), None)
        if package is None:
            raise _no_tool(pin)
        progress(Note(f"fetching the kernel's sign-file ({part.name} {part.version})"))
        _fetch(index, package, program, progress)
    return program


def _fetch(index: ArchiveIndex, package: IndexedPackage, program: Path, progress: Progress) -> None:
    is_security = package.suite.endswith("-security") and index.security_mirror is not None
    mirror = index.security_mirror if is_security else index.mirror
    packed = program.with_name(f"{program.name}.deb")
    try:
        download(
            f"{mirror}/{package.filename}",
            sha256=package.sha256,
            destination=packed,
            progress=progress,
        )
        write_atomic(program, _member(packed), mode=0o755)
    finally:
        packed.unlink(missing_ok=True)


def _member(package: Path) -> bytes:
    try:
        with closing(DebFile(filename=str(package))) as deb, deb.data.tgz() as files:
            names = [name for name in files.getnames() if name.endswith(_NAME)]
            stream = files.extractfile(names[0]) if names else None
            content = stream.read() if stream else None
    except (DebError, tarfile.TarError) as error:
        raise ProvisionError(f"The package '{package.name}' can't be unpacked: {error}") from error
    if content is None:
        raise ProvisionError(f"The package '{package.name}' holds no {_NAME}.")
    return content


def _no_tool(pin: Pin) -> NotFoundError:
    return NotFoundError(
        "The kernel's program sign-file was not found, with which modules are signed.",
        resolution=f"Install the headers of the kernel {pin.kernel.release} on this host.",
    )
