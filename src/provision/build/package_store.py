"""The package store: every file that builds install, once, under the sha256 of its content.

Beside the files lie the solved closures: the packages that a base image, a kernel and some tools
need. So nothing is solved twice. All files are complete, because they appear by a rename. Losing
the store costs time, and nothing else.
"""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

from pydantic import Field

from provision.documents import Frozen, load_if_readable
from provision.errors import NotFoundError, ProvisionError, UnreachableError, WrongContentError
from provision.fetch import download
from provision.files import (
    lock,
    mark_used,
    remove_scratch,
    sha256_file,
    sync_directory,
    write_atomic,
)
from provision.pin import ClosurePackage, DistroPin, PackagePin, Sha256
from provision.progress import Note, report

_CHUNK = 1 << 20
_DAY_S = 24 * 3600.0
# The prefix of files that are not complete yet.
_DRAFT = ".draft-"
# Older drafts belong to processes that were killed.
_DRAFT_S = _DAY_S


class Closure(Frozen):
    """A solution: the packages of a kernel's builds on a base image."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    distro: DistroPin
    kernel: str
    architecture: str
    cc_version_text: str
    compiler: PackagePin | None
    headers: tuple[PackagePin, ...]
    tools: tuple[PackagePin, ...] = ()
    packages: tuple[ClosurePackage, ...] = ()
    # Addresses of the files, by sha256.
    urls: dict[Sha256, tuple[str, ...]] = Field(default_factory=dict)


class PackageGoneError(NotFoundError):
    """A file that is neither in the store nor at any of its addresses."""

    def __init__(self, message: str, *, sha256: str, resolution: str, details: str | None) -> None:
        super().__init__(message, resolution=resolution, details=details)
        self.sha256 = sha256


class PackageStore:
    """The package store of a state folder."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "packages"
        self.files = self.folder / "sha256"
        self.trees = self.folder / "trees"
        self.runfiles = self.folder / "runfiles"
        self.commits = self.folder / "commits"
        # What packages of kernels were unpacked for, by ``provision.kmod.guest_packages``.
        self.boot = self.folder / "boot"
        self.locks = state / "locks"
        self._closures = self.folder / "closures"
        self._answers = self.folder / "answers"
        self.state = state

    def path(self, sha256: str) -> Path:
        """Return where the file with a checksum is, or would be."""
        return self.files / sha256

    def whole(self, sha256: str) -> Path | None:
        """Return a file and mark it as used; None: it is missing or damaged.

        Admins copy files here, and disks fail.
        """
        path = self.path(sha256)
        if not path.is_file() or sha256_file(path) != sha256:
            return None
        mark_used(path)
        return path

    def add(self, content: IO[bytes], *, sha256: str, name: str) -> Path:
        """Add a file with a known checksum."""
        path, digest = self.path(sha256), hashlib.sha256()
        with self.draft() as draft:
            with draft.open("wb") as stream:
                while chunk := content.read(_CHUNK):
                    digest.update(chunk)
                    stream.write(chunk)
            if digest.hexdigest() != sha256:
                raise ProvisionError(
                    f"'{name}' is not the file that was solved for: its sha256 is wrong.",
                    resolution="Run the command again.",
                    details=f"expected {sha256}\ngot      {digest.hexdigest()}",
                )
            # Not synced: a file that a power cut damages is found out and fetched again.
            draft.chmod(0o644)
            draft.replace(path)
        return path

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield a new file beside those of the store; it is removed unless it is taken."""
        self.files.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.files, prefix=_DRAFT)
        os.close(handle)
        try:
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def take(self, draft: Path, *, sync: bool = True) -> str:
        """Move a file of the same file system into the store; return its sha256."""
        digest = sha256_file(draft)
        self.files.mkdir(parents=True, exist_ok=True)
        draft.chmod(0o644)
        if sync:
            with draft.open("rb") as stream:
                os.fsync(stream.fileno())
        draft.replace(self.path(digest))
        if sync:
            sync_directory(self.files)
        return digest

    def add_bytes(self, content: bytes) -> str:
        """Add a file with some content; return its sha256."""
        with self.draft() as draft:
            draft.write_bytes(content)
            return self.take(draft)

    def fetch(
        self, sha256: str, urls: Iterable[str], *, name: str, size: int | None = None
    ) -> Path:
        """Return a file of the store; download it if it is missing or damaged.

        Raises:
            PackageGoneError: No address has it, and all that were tried answered.
            UnreachableError: One of them may have it, and can't be reached.
        """
        if found := self.whole(sha256):
            return found
        errors: list[tuple[str, ProvisionError]] = []
        limit = {} if size is None else {"limit": size}
        for url in urls:
            path = self.path(sha256)
            try:
                download(url, sha256=sha256, destination=path, **limit)
            except ProvisionError as error:
                errors.append((url, error))
            else:
                return path
        raise self._missing(name, sha256, errors)

    def kept(self, key: str) -> Closure | None:
        """Return a solved closure and mark it as used; None: it is missing or damaged."""
        path = self._closure_path(key)
        closure = load_if_readable(path, Closure)
        if closure is not None:
            mark_used(path)
        return closure

    def keep(self, key: str, closure: Closure) -> None:
        """Keep a closure for the next time."""
        text = closure.model_dump_json(by_alias=True, indent=1)
        # A mirror's address may have a password.
        write_atomic(self._closure_path(key), f"{text}\n", mode=0o600)

    def answer(self, key: str, *, max_age: float) -> bytes | None:
        """Return what was said of an archive; None: nothing, or before ``max_age`` seconds."""
        path = self._answers / key
        try:
            if 0 <= time.time() - path.stat().st_mtime < max_age:
                return path.read_bytes()
        except FileNotFoundError:
            pass
        return None

    def last_answer(self, key: str, error: UnreachableError) -> bytes:
        """Return what was said before, of the last seven days, where nobody can be asked now."""
        kept = self.answer(key, max_age=7 * _DAY_S)
        if kept is None:
            raise error
        report(Note(f"{error.message} Its last answer is used."))
        return kept

    def keep_answer(self, key: str, answer: bytes) -> None:
        """Keep what was said of an archive, and that it was said now."""
        path = self._answers / key
        write_atomic(path, answer, mode=0o600)
        # A file that already has this content is not written again.
        os.utime(path)

    @contextmanager
    def solving(self, key: str) -> Iterator[None]:
        """Hold the lock of a closure, so that only one of several processes solves it."""
        waiting = "Another process is solving for the same packages; waiting for it"
        with lock(self.locks / f"solve-{key[:32]}", waiting=waiting):
            yield

    def collect(
        self, kernels: Iterable[str], *, days: float, dry_run: bool = False
    ) -> list[tuple[str, int]]:
        """Remove closures that were not used for some time, and files that no closure needs.

        Args:
            kernels: Releases of kernels whose closures stay, whatever their age.
            days: Days after the last use for which other closures stay, and files that no closure
                names.

        Returns:
            The name of each removed file and its size in bytes.
        """
        kept_kernels = frozenset(kernels)
        oldest = time.time() - days * _DAY_S
        gone: list[tuple[Path, int]] = []
        needed: set[str] = set()
        for path, used, size in _entries(self._closures):
            closure = load_if_readable(path, Closure)
            if closure is None or (closure.kernel not in kept_kernels and used < oldest):
                gone.append((path, size))
            else:
                needed.update(package.sha256 for package in closure.packages)
        for folder in (
            self.trees,
            self.runfiles,
            self.commits,
            self.boot,
            self.files,
            self._answers,
        ):
            for path, used, size in _entries(folder):
                # A draft of a killed run, or a file that no closure names any more.
                limit = time.time() - _DRAFT_S if path.name.startswith(".") else oldest
                if path.name not in needed and used < limit:
                    gone.append((path, size))
        if not dry_run:
            remove_scratch(self.state)
            for path, _size in gone:
                path.unlink(missing_ok=True)
        return [(path.name, size) for path, size in gone]

    def _closure_path(self, key: str) -> Path:
        return self._closures / f"{key}.json"

    def _missing(
        self, name: str, sha256: str, errors: Sequence[tuple[str, ProvisionError]]
    ) -> ProvisionError:
        wrong = [error for _url, error in errors if isinstance(error, WrongContentError)]
        if wrong and len(wrong) == len(errors):
            return wrong[0]
        message = (
            f"The file '{name}' (sha256 {sha256[:12]}…) is not in the package store, or is damaged"
            f" there, and {'no address has it' if errors else 'no address of it is known'}."
        )
        resolution = (
            f"Copy it to '{self.path(sha256)}' from a machine whose store has it (the"
            " same path there), name a mirror that keeps old packages (the distro's vault or"
            " snapshot service) in /etc/provision/provision.toml, or resolve again with --refresh."
        )
        tried = [f"{url}: {_reason(error)}" for url, error in errors]
        details = "\n".join(["tried:", *tried]) if tried else None
        if any(isinstance(error, UnreachableError) for _url, error in errors):
            return UnreachableError(message, resolution=resolution, details=details)
        return PackageGoneError(message, sha256=sha256, resolution=resolution, details=details)


def _reason(error: ProvisionError) -> str:
    is_unreachable = isinstance(error, UnreachableError)
    return (error.details if is_unreachable else None) or error.message


def closure_key(inputs: Mapping[str, object]) -> str:
    """Return the name under which a closure is kept: a digest of all that it was solved for."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _entries(folder: Path) -> list[tuple[Path, float, int]]:
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        # Drafts of other processes come and go.
        with suppress(FileNotFoundError):
            status = path.stat()
            if path.is_file():
                found.append((path, _last_use(status), status.st_size))
    return found


def _last_use(status: os.stat_result) -> float:
    # A copied file may keep its old modification time; its change time is that of the copy.
    return max(status.st_mtime, status.st_ctime)
