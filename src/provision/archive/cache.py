"""What is kept of an archive between two runs, and when it is asked again.

One folder a suite: the signed text, when it was checked, and a table for each Packages file.
Whoever reads or changes it holds the lock (``provision.archive.index``).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import lzma
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from provision.archive.packages import PackageTable, parse_packages, write_table
from provision.archive.places import Place
from provision.archive.release_file import IndexFile, ReleaseFile, parse_release
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import Signed, UnreachableError, download, get_signed
from provision.files import write_atomic
from provision.progress import Note, Progress

log = logging.getLogger(__name__)

# Seconds for which an index counts as current, and after which an unreachable one is tried again.
MAX_AGE = 15 * 60
_RETRY_AFTER = 60


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a suite.

    Attributes:
        signed: Its signed text.
        checked: Unix time when the archive last said that this is current.
        tried: Unix time when it was last asked, with or without an answer.
    """

    signed: Signed
    checked: float
    tried: float


class SuiteCache:
    """The cache of one suite.

    Args:
        place: The suite.
        folder: Folder of all suites' caches.
    """

    def __init__(self, place: Place, folder: Path) -> None:
        self.place = place
        # Another keyring is another opinion on what is signed.
        key = "\n".join([place.uri, place.suite, *(str(ring) for ring in place.keyrings)])
        self.folder = folder / hashlib.sha256(key.encode()).hexdigest()[:16]

    @property
    def url(self) -> str:
        """Address of the suite's folder."""
        return f"{self.place.uri}/dists/{self.place.suite}"

    def release(self, *, now: float) -> ReleaseFile:
        """Return the suite's Release file, asking the archive where ours is too old.

        Raises:
            UnreachableError: The archive can't be reached, and nothing is cached.
            SignatureError: What it sent is not signed by a trusted key.
            ProvisionError: What it sent is out of date.
        """
        known = self._load()
        if known and 0 <= now - known.checked < MAX_AGE:
            return self._parse(known.signed)
        if known and known.tried > known.checked and 0 <= now - known.tried < _RETRY_AFTER:
            return self._outdated(known)
        try:
            signed = get_signed(
                f"{self.url}/InRelease",
                keyrings=self.place.keyrings,
                known=known.signed if known else None,
                patient=known is None,
            )
        except UnreachableError:
            if known is None:
                raise
            self._store(Known(known.signed, known.checked, now))
            return self._outdated(known)
        return self._accept(signed, known, now)

    def table(
        self, release: ReleaseFile, component: str, architecture: str, progress: Progress
    ) -> PackageTable | None:
        """Return a section's packages; None if the suite has no such section.

        Raises:
            NotFoundError: The archive doesn't have what its Release file lists.
            UnreachableError: It can't be reached, and this index is not cached.
        """
        index = release.packages_file(component, architecture)
        if index is None:
            return None
        stem = f"{component}-{architecture}-"
        path = self.folder / f"{stem}{index.sha256[:32]}.sqlite"
        if not path.exists():
            self._read_packages(release, index, path, progress)
            # Older ones, and what a process that was killed has left.
            for old in [*self.folder.glob(f"{stem}*"), *self.folder.glob(f".*{stem}*")]:
                if old != path:
                    old.unlink()
        return PackageTable(path, suite=self.place.suite, component=component)

    def sources(self, release: ReleaseFile, component: str, progress: Progress) -> bytes | None:
        """Return the text of a section's Sources file; None if the suite has no such section.

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
        return _unpack(path)

    def _read_packages(
        self, release: ReleaseFile, index: IndexFile, path: Path, progress: Progress
    ) -> None:
        folder, _, name = index.path.rpartition("/")
        packed = path.with_name(f".{path.name}.{name}")
        try:
            self._download(release, index, packed, progress)
            progress(Note(f"reading the index {self.place} {folder}"))
            write_table(path, parse_packages(_unpack(packed)))
        finally:
            packed.unlink(missing_ok=True)

    def _download(
        self, release: ReleaseFile, index: IndexFile, packed: Path, progress: Progress
    ) -> None:
        folder = index.path.rpartition("/")[0]
        url = f"{self.url}/{index.path}"
        if release.has_by_hash:
            hashed = f"{self.url}/{folder}/by-hash/SHA256/{index.sha256}"
            try:
                download(hashed, sha256=index.sha256, destination=packed, progress=progress)
            except NotFoundError:
                # A copy of an archive may have left these files out.
                log.debug("%s: no such file; taking %s", hashed, url)
            else:
                return
        download(url, sha256=index.sha256, destination=packed, progress=progress)

    def _accept(self, signed: Signed, known: Known | None, now: float) -> ReleaseFile:
        release = self._parse(signed)
        if release.valid_until and release.valid_until < datetime.fromtimestamp(now, UTC):
            raise ProvisionError(
                f"The index of '{self.place}' is out of date: it was valid until"
                f" {release.valid_until:%Y-%m-%d %H:%M} UTC.",
                resolution="Check this machine's clock, or use another mirror: this one has"
                " stopped following the archive.",
            )
        before = self._parse(known.signed) if known else None
        if known and before and before.date and release.date and release.date < before.date:
            # Mirrors behind one name differ for a while; going back would change Pins to and fro.
            log.warning("%s answered with an older index; keeping the newer one", self.place)
            signed, release = known.signed, before
        self._store(Known(signed, now, now))
        return release

    def _outdated(self, known: Known) -> ReleaseFile:
        log.warning(
            "%s can't be reached; using its index as of %s UTC",
            self.place,
            f"{datetime.fromtimestamp(known.checked, UTC):%Y-%m-%d %H:%M}",
        )
        return self._parse(known.signed)

    def _parse(self, signed: Signed) -> ReleaseFile:
        return parse_release(signed.payload, name=f"{self.url}/InRelease")

    def _load(self) -> Known | None:
        try:
            state = json.loads((self.folder / "state.json").read_bytes())
            payload = (self.folder / "Release").read_bytes()
            signed = Signed(payload, state["etag"], state["last_modified"])
            return Known(signed, float(state["checked"]), float(state["tried"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            # Never written, or damaged: read anew.
            return None

    def _store(self, known: Known) -> None:
        write_atomic(self.folder / "Release", known.signed.payload)
        state = {
            "place": str(self.place),
            "etag": known.signed.etag,
            "last_modified": known.signed.last_modified,
            "checked": known.checked,
            "tried": known.tried,
        }
        write_atomic(self.folder / "state.json", json.dumps(state, indent=1) + "\n")


def _unpack(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    return gzip.decompress(data) if path.suffix == ".gz" else data
