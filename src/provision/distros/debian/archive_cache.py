"""The cache of an archive's indexes, and when the archive is asked again.

A suite has one folder with the signed text, the time of its last check, and a table for each
Packages file. Processes that read or change it hold the lock of ``ArchiveAccess.reading``.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from provision.distros.debian.packages_file import PackageTable, parse_packages, write_table
from provision.distros.debian.release_file import (
    MAX_PACKED,
    IndexFile,
    ReleaseFile,
    parse_release,
    read_chunks,
    read_packed,
)
from provision.distros.debian.suites import SuiteAddress
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import Signed, UnreachableError, download, get_signed
from provision.files import write_atomic
from provision.progress import Note, Progress

log = logging.getLogger(__name__)

# Seconds for which an index counts as current, and seconds until an archive is tried again.
MAX_AGE = 15 * 60
_RETRY_AFTER = 60


@dataclass(frozen=True, slots=True)
class Known:
    """The cached state of a suite.

    Attributes:
        signed: Its signed text.
        release: The parsed text.
        checked: Unix time at which the archive last confirmed that it is current; 0 if unknown.
        tried: Unix time of the last request, with or without an answer.
    """

    signed: Signed
    release: ReleaseFile
    checked: float
    tried: float


class SuiteCache:
    """The cache of one suite.

    Args:
        address: The suite.
        folder: Folder of all suites' caches.
    """

    def __init__(self, address: SuiteAddress, folder: Path) -> None:
        self.address = address
        # With another keyring, other texts may count as signed.
        key = "\n".join([address.uri, address.suite, *(str(ring) for ring in address.keyrings)])
        self.folder = folder / hashlib.sha256(key.encode()).hexdigest()[:16]

    @property
    def url(self) -> str:
        """Address of the suite's folder."""
        return f"{self.address.uri}/dists/{self.address.suite}"

    def release(self, *, now: float) -> ReleaseFile:
        """Return the suite's Release file; an outdated one in the cache is downloaded again.

        Raises:
            UnreachableError: The archive can't be reached, and nothing is cached.
            SignatureError: The downloaded file is not signed by a trusted key.
            ProvisionError: It is that of another suite, or out of date; or the archive can't be
                reached, and the cached file is out of date.
        """
        known = self._load()
        if known and 0 <= now - known.checked < MAX_AGE and not self._is_expired(known, now):
            return known.release
        if known and known.tried > known.checked and 0 <= now - known.tried < _RETRY_AFTER:
            return self._kept(known, now, "can't be reached")
        try:
            signed = get_signed(
                f"{self.url}/InRelease",
                keyrings=self.address.keyrings,
                known=known.signed if known else None,
                patient=known is None,
            )
        except UnreachableError:
            if known is None:
                raise
            self._store(replace(known, tried=now))
            return self._kept(known, now, "can't be reached")
        return self._accept(signed, known, now)

    def table(
        self, release: ReleaseFile, component: str, architecture: str, progress: Progress
    ) -> PackageTable | None:
        """Return a component's packages; None if the suite has no such component.

        Raises:
            NotFoundError: The archive doesn't have what its Release file lists.
            UnreachableError: It can't be reached, and this index is not cached.
        """
        index = release.packages_file(component, architecture)
        if index is None:
            return None
        stem = _stem(component, architecture)
        path = self._table_path(index, stem)
        if not path.exists():
            self._read_packages(release, index, path, progress)
            # Older tables, and drafts of killed processes.
            for old in [*self.folder.glob(f"{stem}*"), *self.folder.glob(f".*{stem}*")]:
                if old != path:
                    old.unlink()
        return PackageTable(
            path,
            suite=self.address.suite,
            component=component,
            uri=self.address.uri,
            is_automatic=release.is_automatic,
        )

    def has_table(self, release: ReleaseFile, component: str, architecture: str) -> bool:
        """Return whether a component's packages are cached, or the suite lacks the component."""
        index = release.packages_file(component, architecture)
        return index is None or self._table_path(index, _stem(component, architecture)).exists()

    def _table_path(self, index: IndexFile, stem: str) -> Path:
        return self.folder / f"{stem}{index.sha256[:32]}.sqlite"

    def sources(self, release: ReleaseFile, component: str, progress: Progress) -> bytes | None:
        """Return the text of a component's Sources file; None if the suite lacks the component.

        Raises:
            NotFoundError: The archive doesn't have what its Release file lists.
            UnreachableError: It can't be reached, and this index is not cached.
        """
        index = release.sources_file(component)
        if index is None:
            return None
        stem = f"{component}-source-"
        path = self.folder / f"{stem}{index.sha256[:32]}{Path(index.path).suffix}"
        if not path.exists():
            self._download(release, index, path, progress)
            for old in self.folder.glob(f"{stem}*"):
                if old != path:
                    old.unlink()
        return read_packed(path, index)

    def _read_packages(
        self, release: ReleaseFile, index: IndexFile, path: Path, progress: Progress
    ) -> None:
        folder, _, name = index.path.rpartition("/")
        packed = path.with_name(f".{path.name}.{name}")
        try:
            self._download(release, index, packed, progress)
            progress(Note(f"reading the index {self.address} {folder}"))
            write_table(path, parse_packages(read_chunks(packed, index)))
        finally:
            packed.unlink(missing_ok=True)

    def _download(
        self, release: ReleaseFile, index: IndexFile, packed: Path, progress: Progress
    ) -> None:
        folder = index.path.rpartition("/")[0]
        url = f"{self.url}/{index.path}"
        get = partial(
            download,
            sha256=index.sha256,
            destination=packed,
            limit=min(index.size, MAX_PACKED),
            progress=progress,
        )
        if release.has_by_hash:
            hashed = f"{self.url}/{folder}/by-hash/SHA256/{index.sha256}"
            try:
                get(hashed)
            except NotFoundError:
                # A copy of an archive may have left these files out.
                log.debug("%s: no such file; taking %s", hashed, url)
            else:
                return
        get(url)

    def _accept(self, signed: Signed, known: Known | None, now: float) -> ReleaseFile:
        """Store a downloaded Release file, unless it is older than the cached one.

        Source: https://wiki.debian.org/DebianRepository/Format#Date.2C_Valid-Until
        """
        new = Known(signed, self._parse(signed), now, now)
        if known is not None and self._is_older(new.release, known.release):
            # It is a replay, or from one of several mirrors that differ for a while. It doesn't
            # count as an answer: the next run asks again.
            self._store(replace(known, tried=now))
            return self._kept(known, now, "answered with an older index than before")
        if self._is_expired(new, now):
            raise self._expired(new.release, "It is what the archive sent just now.")
        self._store(new)
        return new.release

    def _kept(self, known: Known, now: float, why: str) -> ReleaseFile:
        """Return the cached Release file, as long as it is valid."""
        if self._is_expired(known, now):
            raise self._expired(
                known.release, f"The cached index is the newest: {self.address} {why}."
            )
        checked = datetime.fromtimestamp(known.checked, UTC) if known.checked else None
        as_of = checked or known.release.date
        age = f" as of {as_of:%Y-%m-%d %H:%M} UTC" if as_of else ""
        log.warning("%s %s; using its index%s", self.address, why, age)
        return known.release

    def _is_older(self, release: ReleaseFile, before: ReleaseFile) -> bool:
        if self.address.snapshot or before.date is None:
            return False
        return release.date is None or release.date < before.date

    def _is_expired(self, known: Known, now: float) -> bool:
        until = known.release.valid_until
        return not self.address.snapshot and until is not None and until.timestamp() < now

    def _expired(self, release: ReleaseFile, details: str) -> ProvisionError:
        return ProvisionError(
            f"The index of '{self.address}' is out of date: it was valid until"
            f" {release.valid_until:%Y-%m-%d %H:%M} UTC.",
            resolution="Check this machine's clock (date) and that it reaches the archive, or use"
            " another mirror: this one may have stopped following the archive. For a mirror that"
            " keeps an old state on purpose: [distros.ID.archive] snapshot = true in"
            " /etc/provision/provision.toml.",
            details=details,
        )

    def _parse(self, signed: Signed) -> ReleaseFile:
        name = f"{self.url}/InRelease"
        release = parse_release(signed.payload, name=name)
        if self.address.suite not in release.names:
            raise ProvisionError(
                f"'{name}' is the index of '{' or '.join(release.names) or 'nothing'}', not of"
                f" '{self.address.suite}'.",
                resolution="Its signature is good, so it was put in another's place: don't"
                " use this mirror.",
            )
        return release

    def _load(self) -> Known | None:
        try:
            payload = (self.folder / "Release").read_bytes()
            release = self._parse(Signed(payload, None, None))
        except (FileNotFoundError, ProvisionError):
            # It was never written or is damaged, and is read again.
            return None
        try:
            state = json.loads((self.folder / "state.json").read_bytes())
            signed = Signed(payload, state["etag"], state["last_modified"])
            checked, tried = float(state["checked"]), float(state["tried"])
            # Raises ValueError for a time that could not be shown.
            datetime.fromtimestamp(checked, UTC)
        except (FileNotFoundError, ArithmeticError, ValueError, KeyError, TypeError):
            # The text still says which index is the newest so far, so that an older one is refused.
            signed = Signed(payload, None, None)
            checked = tried = 0.0
        return Known(signed, release, checked, tried)

    def _store(self, known: Known) -> None:
        write_atomic(self.folder / "Release", known.signed.payload)
        state = {
            "place": str(self.address),
            "etag": known.signed.etag,
            "last_modified": known.signed.last_modified,
            "checked": known.checked,
            "tried": known.tried,
        }
        write_atomic(self.folder / "state.json", json.dumps(state, indent=1) + "\n")


def _stem(component: str, architecture: str) -> str:
    """Return the beginning of the name of a component's table."""
    return f"{component}-{architecture}-"
