"""The files of kernel trees and of drivers' sources in the package store, by their sha256."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from provision.errors import NotFoundError
from provision.fetch import download, download_summed
from provision.files import sha256_file, sync_directory
from provision.image.packages import PackageStore
from provision.pin import Pin, TreePin
from provision.pipeline.settings import Settings
from provision.progress import Progress


class TreeStore:
    """The files of kernel trees in the package store, by their sha256.

    Losing one costs a download, or packing it again.

    Args:
        settings: The host.
    """

    def __init__(self, settings: Settings) -> None:
        self._folder = PackageStore(settings.state).files

    def path(self, sha256: str) -> Path:
        """Return where a file lies, or would."""
        return self._folder / sha256

    def add(self, content: bytes) -> str:
        """Keep a content and return its sha256.

        Raises:
            OSError: The folder can't be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as stream:
            stream.write(content)
        return self.take(Path(stream.name))

    def take(self, draft: Path) -> str:
        """Keep a file of the store's disk under its sha256.

        Raises:
            OSError: The folder can't be written.
        """
        digest = sha256_file(draft)
        self._folder.mkdir(parents=True, exist_ok=True)
        draft.chmod(0o644)
        with draft.open("rb") as stream:
            os.fsync(stream.fileno())
        draft.replace(self.path(digest))
        sync_directory(self._folder)
        return digest

    def fetch(self, url: str, sha256: str, progress: Progress) -> str:
        """Have a download, and return its sha256.

        Raises:
            ProvisionError: As ``provision.fetch.download``.
        """
        download(url, sha256=sha256, destination=self.path(sha256), progress=progress)
        self.path(sha256).touch()
        return sha256

    def fetch_summed(self, url: str, progress: Progress) -> str:
        """Have a download that a file beside it vouches for (``.md5``), and return its sha256.

        Raises:
            ProvisionError: As ``provision.fetch.download_summed``.
        """
        draft = self.draft()
        try:
            download_summed(url, destination=draft, progress=progress)
            return self.take(draft)
        finally:
            draft.unlink(missing_ok=True)

    def draft(self) -> Path:
        """Return a fresh file of this folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as stream:
            return Path(stream.name)


def kept_files(settings: Settings, pin: Pin, tree: TreePin) -> Mapping[str, Path]:
    """Return the files of a Pin's kernel tree in the package store, by path in the build context.

    Raises:
        NotFoundError: The store lacks one, or has another file in its place.
    """
    store = PackageStore(settings.state)
    names = {
        "tree.tar": tree.tree,
        "config": tree.config,
        "Module.symvers": tree.symvers,
        "compiler.tar": tree.compiler,
    }
    files = {f"kernel/{name}": store.path(digest) for name, digest in names.items() if digest}
    # Copied here by hand: nothing in the build compares them with the Pin.
    lacking = [str(path) for path in files.values() if not store.whole(path.name)]
    if lacking:
        raise NotFoundError(
            f"The kernel tree of {pin.kernel.release} that the Pin names is not in the package"
            " store of this machine, or is damaged there.",
            resolution="Copy the files from the machine that resolved it, to the same paths, or"
            " resolve again where the tree is.",
            details="\n".join(lacking),
        )
    return files
