"""The package store: every file that builds install, once, under the sha256 of its content.

Beside the files lie the closures that were solved: which packages a base image, a kernel and a set
of tools need, so that nothing is solved twice. Whatever is in the store is whole: files appear
under their names by a rename. Losing all of it costs time, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

from pydantic import Field

from provision.documents import Frozen, load_json
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError, WrongContentError, download
from provision.files import lock, sha256_file, write_atomic
from provision.pin import ClosurePackage, DistroPin, PackagePin, Sha256
from provision.progress import Note, Progress, silent

_CHUNK = 1 << 20
_DAY_S = 24 * 3600.0
# What the names of files begin with that are not whole yet.
_DRAFT = ".draft-"
# A draft of a process that is still at work is younger.
_DRAFT_S = _DAY_S
# Folders of work in progress (provision.engine.scratch), but for that of base images: a killed
# debootstrap may have left file systems mounted there.
_SCRATCH = ("developer", "git-login", "host-python", "import", "verify")


class Closure(Frozen):
    """What was solved: the packages of a kernel's builds on a base image.

    Attributes:
        distro: The distro.
        kernel: The kernel's release.
        architecture: As ``uname -m`` prints it.
        cc_version_text: What the kernel's configuration says of its compiler.
        compiler: The compiler's package; None: the compiler is no package.
        headers: The packages that hold the kernel's headers.
        tools: The tools that were asked for, at their exact versions.
        packages: Everything that is installed.
        urls: Addresses of the files, by sha256.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    distro: DistroPin
    kernel: str
    architecture: str
    cc_version_text: str
    compiler: PackagePin | None
    headers: tuple[PackagePin, ...]
    tools: tuple[PackagePin, ...] = ()
    packages: tuple[ClosurePackage, ...] = ()
    urls: dict[Sha256, tuple[str, ...]] = Field(default_factory=dict)


class PackageGoneError(NotFoundError):
    """A file that is neither in the store nor, by now, at any of its addresses.

    Attributes:
        sha256: Its checksum.
    """

    def __init__(self, message: str, *, sha256: str, resolution: str, details: str | None) -> None:
        super().__init__(message, resolution=resolution, details=details)
        self.sha256 = sha256


class PackageStore:
    """The package store of a state folder.

    Args:
        state: Folder of provision's own state.

    Attributes:
        folder: The store.
        files: Its folder of files, each under its sha256.
        trees: Its folder of what is known of kernel trees.
        runfiles: Its folder of what is known of NVIDIA's .run files.
        commits: Its folder of commits of git repositories.
    """

    def __init__(self, state: Path) -> None:
        self.folder = state / "packages"
        self.files = self.folder / "sha256"
        self.trees = self.folder / "trees"
        self.runfiles = self.folder / "runfiles"
        self.commits = self.folder / "commits"
        self._closures = self.folder / "closures"
        self._state = state

    def path(self, sha256: str) -> Path:
        """Return where the file with a checksum is, or would be."""
        return self.files / sha256

    def whole(self, sha256: str) -> Path | None:
        """Return a file that is of use now, if its content is what it should be; None: it is not.

        Others copy files here by hand, and disks fail. Garbage collection goes by the time of use.
        """
        path = self.path(sha256)
        if not path.is_file() or sha256_file(path) != sha256:
            return None
        with suppress(OSError):
            os.utime(path)
        return path

    def add(self, content: IO[bytes], *, sha256: str, name: str) -> Path:
        """Take a file whose content is known beforehand.

        Args:
            content: The file.
            sha256: Its checksum.
            name: What messages call it.

        Raises:
            ProvisionError: It has other content.
            OSError: The disk is full.
        """
        path = self.path(sha256)
        got, draft = self.receive(content)
        try:
            if got != sha256:
                raise ProvisionError(
                    f"'{name}' is not the file that was solved for: its sha256 is wrong.",
                    resolution="Run the command again.",
                    details=f"expected {sha256}\ngot      {got}",
                )
            # Not synced: a file counts by its content, so what a power cut damages is had again.
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        return path

    def receive(self, content: IO[bytes]) -> tuple[str, Path]:
        """Write a file beside those of the store; returns its checksum, and where it is.

        Args:
            content: The file.

        Raises:
            OSError: The disk is full.
        """
        self.files.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.files, prefix=_DRAFT)
        try:
            digest = hashlib.sha256()
            with os.fdopen(handle, "wb") as stream:
                os.fchmod(stream.fileno(), 0o644)
                while chunk := content.read(_CHUNK):
                    digest.update(chunk)
                    stream.write(chunk)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return digest.hexdigest(), Path(name)

    def fetch(
        self,
        sha256: str,
        urls: Iterable[str],
        *,
        name: str,
        size: int | None = None,
        progress: Progress = silent,
    ) -> Path:
        """Have a file in the store: from there, or from the first address that has it.

        One that is there and damaged is had again.

        Args:
            sha256: Its checksum.
            urls: Its addresses.
            name: What messages call it.
            size: Its size in bytes, if that is known.
            progress: Receives how far it is.

        Raises:
            PackageGoneError: No address has it; says what was tried.
            UnreachableError: None can be reached.
            WrongContentError: Each address has another file.
        """
        if found := self.whole(sha256):
            return found
        path = self.path(sha256)
        tried: list[str] = []
        unreachable = False
        wrong: list[WrongContentError] = []
        for url in urls:
            progress(Note(f"Downloading {name}"))
            limit = {} if size is None else {"limit": size}
            try:
                download(url, sha256=sha256, destination=path, progress=progress, **limit)
            except UnreachableError as error:
                unreachable = True
                tried.append(f"{url}: {error.details or error.message}")
            except WrongContentError as error:
                wrong.append(error)
                tried.append(f"{url}: {error.message}")
            except ProvisionError as error:
                tried.append(f"{url}: {error.message}")
            else:
                return path
        if wrong and len(wrong) == len(tried):
            raise wrong[0]
        raise self._missing(name, sha256, tried, unreachable=unreachable)

    def closure(self, key: str) -> Closure | None:
        """Return a closure that was solved before; None where it was not, or is damaged."""
        path = self._closure_path(key)
        try:
            closure = load_json(path, Closure)
        except ProvisionError:
            return None
        # Garbage collection goes by when it was last of use.
        with suppress(OSError):
            os.utime(path)
        return closure

    def keep(self, key: str, closure: Closure) -> None:
        """Keep a closure for the next time."""
        text = closure.model_dump_json(by_alias=True, indent=1)
        # A mirror's address may have a password.
        write_atomic(self._closure_path(key), f"{text}\n", mode=0o600)

    @contextmanager
    def solving(self, key: str, progress: Progress) -> Iterator[None]:
        """Hold the lock of a closure: of two that want it, one solves."""

        def waiting() -> None:
            progress(Note("Another process is solving for the same packages; waiting for it"))

        with lock(self._state / "locks" / f"solve-{key[:32]}", on_wait=waiting):
            yield

    def collect(
        self, kernels: Iterable[str], *, days: float, dry_run: bool = False
    ) -> list[tuple[str, int]]:
        """Remove closures that were of no use for some time, and files that none of them needs.

        Args:
            kernels: Releases of kernels whose closures stay, whatever their age.
            days: For how long the others stay, and files that no closure names, after their last
                use.
            dry_run: Only say what would be removed.

        Returns:
            What was removed: a name and its size in bytes.
        """
        wanted = frozenset(kernels)
        oldest = time.time() - days * _DAY_S
        gone: list[tuple[Path, int]] = []
        needed: set[str] = set()
        for path, used, size in _entries(self._closures):
            closure = _readable(path)
            if closure is None or (closure.kernel not in wanted and used < oldest):
                gone.append((path, size))
            else:
                needed.update(package.sha256 for package in closure.packages)
        for folder in (self.trees, self.runfiles, self.commits, self.files):
            for path, used, size in _entries(folder):
                # A draft of a killed run, or what nothing names any more.
                limit = time.time() - _DRAFT_S if path.name.startswith(".") else oldest
                if path.name not in needed and used < limit:
                    gone.append((path, size))
        gone += self._left_behind()
        for path, _size in gone if not dry_run else ():
            _remove(path)
        return [(path.name, size) for path, size in gone]

    def _left_behind(self) -> list[tuple[Path, int]]:
        """Return what killed runs left in folders that only the same run again would empty."""
        limit = time.time() - _DRAFT_S
        places = [path for path in self.runfiles.glob(".*") if path.is_dir()]
        places += (self._state / "developer-containers").glob("*")
        places += [self._state / name for name in _SCRATCH]
        found = []
        for path in places:
            with suppress(FileNotFoundError):
                if path.lstat().st_mtime < limit:
                    found.append((path, _size_of(path)))
        return found

    def _closure_path(self, key: str) -> Path:
        return self._closures / f"{key}.json"

    def _missing(
        self, name: str, sha256: str, tried: list[str], *, unreachable: bool
    ) -> ProvisionError:
        message = (
            f"The file '{name}' (sha256 {sha256[:12]}…) is not in the package store, or is damaged"
            f" there, and {'no address has it' if tried else 'no address of it is known'}."
        )
        resolution = (
            f"Copy it to '{self.path(sha256)}' from a machine whose store has it (the"
            " same path there), name a mirror that keeps old packages (the distro's vault or"
            " snapshot service) in /etc/provision/provision.toml, or resolve again with --update."
        )
        details = "\n".join(["tried:", *tried]) if tried else None
        if unreachable:
            return UnreachableError(message, resolution=resolution, details=details)
        return PackageGoneError(message, sha256=sha256, resolution=resolution, details=details)


def closure_key(inputs: Mapping[str, object]) -> str:
    """Return the name under which a closure is kept: a digest of all that it was solved for."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _entries(folder: Path) -> list[tuple[Path, float, int]]:
    """Return the files of a folder, each with the time of its last use and its size in bytes."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        # Drafts of other processes come and go.
        with suppress(FileNotFoundError):
            status = path.stat()
            if path.is_file():
                found.append((path, _last_use(status), status.st_size))
    return found


def _size_of(path: Path) -> int:
    """Return the bytes of a file, or of the files in a folder."""
    inside = [Path(top, name) for top, _, names in os.walk(path) for name in names]
    return sum(one.lstat().st_size for one in (inside if path.is_dir() else [path]))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _last_use(status: os.stat_result) -> float:
    # What was copied here may have kept its old date, which is not when it came.
    return max(status.st_mtime, status.st_ctime)


def _readable(path: Path) -> Closure | None:
    try:
        return load_json(path, Closure)
    except ProvisionError:
        return None
