"""The files of kernel trees in the package store, by their sha256.

Beside them lies what is known of each tree: from which state of a folder it was packed, or from
which address it came. A tree of which nothing has changed is neither packed nor downloaded again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field

from provision.build.package_store import PackageStore
from provision.documents import Frozen, load_json
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import download, download_summed
from provision.files import sha256_file, sync_directory, write_atomic
from provision.pin import Pin, Sha256, TreePin
from provision.pipeline.workspace import Settings
from provision.progress import Progress

# Names of files may be no UTF-8.
_AS_THEY_ARE = ("utf-8", "surrogateescape")


class SeenTree(Frozen):
    """A tree that lies in the package store.

    Attributes:
        fingerprint: Of the state of the folder or file that it was made from.
        tree: Of its tar file.
        size: Bytes of that file.
        config: Text of the kernel's configuration in it; None: it was not looked for.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    fingerprint: str
    tree: Sha256
    size: int
    config: str | None = None


class TreeStore:
    """The files of kernel trees in the package store, by their sha256.

    Losing one costs a download, or packing it again.

    Args:
        settings: The host.
    """

    def __init__(self, settings: Settings) -> None:
        store = PackageStore(settings.state)
        self._folder = store.files
        self._seen = store.trees

    def seen(self, origin: str, fingerprint: str | None = None) -> SeenTree | None:
        """Return what is known of a tree whose file is there; None: it has to be had again.

        Its file is not read: what was damaged there is found when it goes into a build.

        Args:
            origin: Where the tree comes from: an address, or a path on the host.
            fingerprint: Of its state there now; None: any counts.
        """
        path = self._record(origin)
        try:
            found = load_json(path, SeenTree)
            size = self.path(found.tree).stat().st_size
        except (OSError, ProvisionError):
            return None
        if size != found.size or fingerprint not in {None, found.fingerprint}:
            return None
        # Garbage collection goes by the time of use.
        for used in (path, self.path(found.tree)):
            with suppress(OSError):
                os.utime(used)
        return found

    def remember(
        self, origin: str, fingerprint: str, tree: str, *, config: str | None = None
    ) -> SeenTree:
        """Keep what is known of a tree, for ``seen``.

        Raises:
            OSError: Its file is not there, or the folder can't be written.
        """
        size = self.path(tree).stat().st_size
        known = SeenTree(fingerprint=fingerprint, tree=tree, size=size, config=config)
        # An address may hold a password.
        text = known.model_dump_json(by_alias=True)
        write_atomic(self._record(origin), f"{text}\n", mode=0o600)
        return known

    def _record(self, origin: str) -> Path:
        return self._seen / f"{hashlib.sha256(origin.encode()).hexdigest()}.json"

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

    def take(self, draft: Path, *, sync: bool = True) -> str:
        """Keep a file of the store's disk under its sha256.

        Args:
            draft: The file.
            sync: Whether it survives a power cut; not needed where it is compared with its sha256
                before each use.

        Raises:
            OSError: The folder can't be written.
        """
        digest = sha256_file(draft)
        self._folder.mkdir(parents=True, exist_ok=True)
        draft.chmod(0o644)
        if sync:
            with draft.open("rb") as stream:
                os.fsync(stream.fileno())
        draft.replace(self.path(digest))
        if sync:
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


def fingerprint(path: Path) -> str:
    """Return a digest of the state of a folder or file, without reading any content.

    Of each file in it: name, kind, size, inode and both times of change. Whatever changes a file's
    content sets the second of them (ctime), which no program can set back.

    Raises:
        OSError: It is not there, or can't be listed.
    """
    digest = hashlib.sha256()
    waiting = [(path.resolve(), "")]
    while waiting:
        folder, name = waiting.pop()
        status = folder.lstat()
        said = (name, status.st_mode, status.st_size, status.st_ino)
        digest.update(f"{said} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode(*_AS_THEY_ARE))
        if folder.is_symlink() or not folder.is_dir():
            continue
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            if entry.is_dir(follow_symlinks=False):
                waiting.append((Path(entry.path), f"{name}/{entry.name}"))
                continue
            status = entry.stat(follow_symlinks=False)
            said = (f"{name}/{entry.name}", status.st_mode, status.st_size, status.st_ino)
            times = f"{status.st_mtime_ns} {status.st_ctime_ns}\n"
            digest.update(f"{said} {times}".encode(*_AS_THEY_ARE))
    return digest.hexdigest()


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
