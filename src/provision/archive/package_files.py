"""Single files of an archive's packages, each kept once it was read."""

from __future__ import annotations

import hashlib
from pathlib import Path

from provision.archive.deb import read_deb
from provision.archive.packages import IndexedPackage
from provision.fetch import download
from provision.files import write_atomic
from provision.progress import Progress, silent


class PackageFiles:
    """Reads files out of packages, which it downloads for that.

    Args:
        folder: Where what was read is kept.
        progress: Told how far downloads are.
    """

    def __init__(self, folder: Path, *, progress: Progress = silent) -> None:
        self._folder = folder
        self._progress = progress

    def __call__(self, package: IndexedPackage, name: str) -> bytes:
        """Return a file of a package.

        Args:
            package: The package.
            name: Absolute path of the file, as the package installs it.

        Raises:
            NotFoundError: The archive lacks the package, the package lacks the file, or a program
                to unpack it is missing.
            UnreachableError: The archive can't be reached, and the file is not kept.
            ProvisionError: The package is damaged.
        """
        kept = self._folder / f"{package.sha256}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        try:
            return kept.read_bytes()
        except FileNotFoundError:
            pass
        whole = self._folder / f"{package.sha256}.deb"
        try:
            download(
                package.url,
                sha256=package.sha256,
                destination=whole,
                limit=package.size,
                progress=self._progress,
            )
            content = read_deb(whole, name)
        finally:
            whole.unlink(missing_ok=True)
        write_atomic(kept, content)
        return content
