"""The files of kernel trees in the package store, by their sha256.

Beside them lies a record of each tree: the state of the folder that it was packed from, or its
address. An unchanged tree is neither packed nor downloaded again.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field

from provision.build.package_store import PackageStore
from provision.build.workspace import Settings
from provision.documents import Frozen, load_json
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import download, download_summed
from provision.files import sha256_file, sync_directory, write_atomic
from provision.pin import Pin, Sha256, TreePin
from provision.progress import Progress
from provision.run import run

# Names of files may be other bytes than UTF-8.
_CONFIG = ".config"
_PACK_SECONDS = 900.0
_AS_THEY_ARE = ("utf-8", "surrogateescape")
_GZIP = b"\x1f\x8b"
# Of a configuration or a Module.symvers; the largest of these have some 5 MB.
_LARGEST = 256 << 20
# The same files give the same bytes at any time and for any user.
SAME_BYTES = (
    "--sort=name",
    "--mtime=@0",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--format=gnu",
)


class SeenTree(Frozen):
    """The record of a tree in the package store.

    Attributes:
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
    """

    def __init__(self, settings: Settings) -> None:
        store = PackageStore(settings.state)
        self._folder = store.files
        self._seen = store.trees

    def seen(self, origin: str, fingerprint: str | None = None) -> SeenTree | None:
        """Return the record of a tree whose file is there; None: it has to be fetched again.

        The file is not read: a build finds out whether it is damaged.

        Args:
            origin: The origin of the tree: an address, or a path on the host.
            fingerprint: The present fingerprint of the origin; None: any counts.
        """
        path = self._record(origin)
        try:
            found = load_json(path, SeenTree)
            size = self.path(found.tree).stat().st_size
        except (OSError, ProvisionError):
            return None
        if size != found.size or fingerprint not in {None, found.fingerprint}:
            return None
        # Garbage collection looks at the time of use.
        for used in (path, self.path(found.tree)):
            with suppress(OSError):
                os.utime(used)
        return found

    def remember(
        self, origin: str, fingerprint: str, tree: str, *, config: str | None = None
    ) -> SeenTree:
        """Write the record of a tree, for ``seen``."""
        size = self.path(tree).stat().st_size
        known = SeenTree(fingerprint=fingerprint, tree=tree, size=size, config=config)
        # An address may hold a password.
        text = known.model_dump_json(by_alias=True)
        write_atomic(self._record(origin), f"{text}\n", mode=0o600)
        return known

    def _record(self, origin: str) -> Path:
        return self._seen / f"{hashlib.sha256(origin.encode()).hexdigest()}.json"

    def path(self, sha256: str) -> Path:
        """Return the path of a file that is or would be there."""
        return self._folder / sha256

    def add(self, content: bytes) -> str:
        """Add a file with some content; return its sha256."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as stream:
            stream.write(content)
        return self.take(Path(stream.name))

    def take(self, draft: Path, *, sync: bool = True) -> str:
        """Move a file of the same file system into the store; return its sha256.

        Args:
            sync: Whether it has to survive a power cut; not needed if its sha256 is checked before
                each use.
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
        """Download a file into the store; return its sha256."""
        download(url, sha256=sha256, destination=self.path(sha256), progress=progress)
        self.path(sha256).touch()
        return sha256

    def fetch_summed(self, url: str, progress: Progress) -> str:
        """Download a file that a checksum beside it verifies (``.md5``); return its sha256."""
        draft = self.draft()
        try:
            download_summed(url, destination=draft, progress=progress)
            return self.take(draft)
        finally:
            draft.unlink(missing_ok=True)

    def draft(self) -> Path:
        """Return a new empty file in the folder of the store."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as stream:
            return Path(stream.name)


def fingerprint(path: Path) -> str:
    """Return the fingerprint of a folder or file, without reading any content.

    It covers name, kind, size, inode, mtime and ctime of each file. Each change of the content sets
    ctime, which no program can set back.
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
    """Return the files of a Pin's kernel tree in the store, by path in the build context."""
    store = PackageStore(settings.state)
    names = {
        "tree.tar": tree.tree,
        "config": tree.config,
        "Module.symvers": tree.symvers,
        "compiler.tar": tree.compiler,
    }
    files = {f"kernel/{name}": store.path(digest) for name, digest in names.items() if digest}
    # Admins copy files here, and nothing in the build compares them with the Pin.
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


def config_in(tar: Path) -> str:
    """Return the .config of a prepared tree: the topmost, if its archive has several."""
    # Not files of the kernel's source with that ending: kernel/configs/hardening.config.
    listed = run(
        ["tar", "--list", "--no-anchored", "--file", tar, _CONFIG],
        why="look for the configuration in a kernel tree",
        check=False,
        timeout=_PACK_SECONDS,
    )
    names = [line for line in listed.stdout.splitlines() if line.rpartition("/")[2] == _CONFIG]
    if not names:
        raise ProvisionError(
            "The kernel tree has no .config, so the compiler that it needs is unknown.",
            resolution="Name the kernel's configuration as 'config' of [[trees]] in"
            " /etc/provision/provision.toml.",
            details=listed.stderr.strip() or None,
        )
    return run(
        ["tar", "--extract", "--to-stdout", "--file", tar, min(names, key=_depth)],
        why="read the configuration in a kernel tree",
        timeout=_PACK_SECONDS,
    ).stdout


def _depth(name: str) -> int:
    return name.count("/")


def read_plain(path: Path) -> bytes:
    """Return the content of a file that may be packed by gzip."""
    with path.open("rb") as file:
        is_packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        try:
            with gzip.open(file) if is_packed else file as stream:
                content: bytes = stream.read(_LARGEST + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ProvisionError(
                f"'{path}' is a damaged gzip file: {error}.", resolution="Copy it again."
            ) from error
    if len(content) > _LARGEST:
        raise ProvisionError(
            f"'{path}' has more than {_LARGEST >> 20} MiB: it is neither the configuration of a"
            " kernel nor its Module.symvers.",
            resolution="Name the right file under [[trees]] in /etc/provision/provision.toml.",
        )
    return content


def pack(folder: Path, draft: Path) -> None:
    """Write a folder as a tar file; the same files give the same bytes."""
    run(
        ["tar", "--create", *SAME_BYTES, "--file", draft, "--directory", folder, "."],
        why="pack a kernel tree",
        timeout=_PACK_SECONDS,
    )
