"""Checksums that vendors publish beside their files, kept as they were first seen.

A checksum from the server that has the file reveals damage, but not a forger who controls both. So
the first answer is kept in ``.known-sums.json`` beside the store, and counts as right. A later
answer that differs is an error that names both, with their times.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic import ConfigDict, Field

from provision.documents import Frozen, load_json
from provision.errors import (
    ConfigError,
    NotFoundError,
    ProvisionError,
    UnreachableError,
    UsageError,
    WrongContentError,
    redact,
)
from provision.fetch import get_small
from provision.files import lock, write_atomic
from provision.pin import Sha256
from provision.progress import Note, report

# A list of sums of some thousand files.
_MAX_SUMS = 4 << 20
# As sha256sum(1) prints it, in text and binary mode.
_LINE = re.compile(r"([0-9A-Fa-f]{64})\s+\*?(\S.*)")
_BY_HAND = (
    "If the file is elsewhere, or has no published sum, add a release with its 'url' and 'sha256'"
    " to driver.toml; 'sha256sum FILE' prints it."
)
_FILE = ".known-sums.json"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def published_sum(url: str, checksums: str) -> str:
    """Return the sha256 of a file as its vendor publishes it.

    Only HTTPS authenticates the server, so plain HTTP is refused, except on this machine itself.

    Args:
        checksums: Address of the sums: lines of ``sha256sum``.
    """
    content = _asked(url, checksums)
    sums = _sums_of(content.decode("utf-8", "replace"), url, checksums)
    if not sums:
        raise NotFoundError(
            f"'{checksums}' has no sha256 of '{url}'.",
            resolution=f"See which files it names: curl -sSL {checksums}. {_BY_HAND}",
        )
    if len(sums) > 1:
        raise ProvisionError(
            f"'{checksums}' has different sums of '{url}'.",
            resolution="Try again later: it may be in the middle of an update.",
            details="\n".join(sorted(sums)),
        )
    return sums.pop()


def _asked(url: str, checksums: str) -> bytes:
    parts = urlsplit(checksums)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise UsageError(
            f"'{checksums}' can't vouch for a checksum: it is not https.",
            resolution="Name an address that begins with https:// as 'checksums', or give the"
            " file's 'sha256' itself.",
        )
    try:
        return get_small(checksums, limit=_MAX_SUMS)
    except NotFoundError as error:
        raise UnpublishedError(
            f"The vendor publishes no checksum of '{url}' at '{checksums}'.",
            resolution=_BY_HAND,
            details=error.message,
        ) from error


def parse_sums(text: str) -> Mapping[str, set[str]]:
    """Return the sums of a list by file name without folder.

    Other lines are left out, because some vendors sign their lists in the clear.
    """
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if match := _LINE.fullmatch(line.strip()):
            found.setdefault(match[2].rpartition("/")[2], set()).add(match[1].lower())
    return found


def _sums_of(text: str, url: str, checksums: str) -> set[str]:
    sums = parse_sums(text)
    if not sums:
        raise ProvisionError(
            f"'{checksums}' holds no sha256.",
            resolution=f"Something else answered in its place: curl -sSL {checksums}",
            details=text.strip().splitlines()[0][:200] if text.strip() else "it is empty",
        )
    return sums.get(unquote(urlsplit(url).path.rpartition("/")[2]), set())


class UnpublishedError(NotFoundError):
    """The vendor has no checksum of a file, nor the file: it may be announced, or withdrawn."""


class KnownSum(Frozen):
    """The first checksum of a file."""

    sha256: Sha256
    said_by: str
    first: str


class KnownSums(Frozen):
    """All first checksums, by the address of the file."""

    schema_version: int = Field(default=1, alias="schema")
    sums: dict[str, KnownSum] = Field(default_factory=dict)

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


class SumRecord(NamedTuple):
    """The vendors' checksums of files, as this machine first read them."""

    folder: Path
    again: bool = False
    ask: Callable[[str, str], str] = published_sum

    def sum_of(self, url: str, sums: str) -> str:
        """Return the first sha256 of a file."""
        with lock(self.folder / ".known-sums.lock"):
            record = _load(self.folder / _FILE)
            known = record.sums.get(url)
            if known is not None and not self.again:
                return known.sha256
            try:
                said = self.ask(url, sums)
            except (UnreachableError, NotFoundError) as error:
                if known is None:
                    raise
                report(Note(f"{error.message} The sum of {known.first} counts."))
                return known.sha256
            if known is not None and said != known.sha256:
                now = datetime.now(UTC).isoformat(timespec="seconds")
                raise WrongContentError(
                    f"The vendor's checksum of '{redact(url)}' is not what it was.",
                    resolution="Nothing was built. A released file does not change: ask the vendor,"
                    " and compare with other machines. If the new file is right, write its sha256"
                    " into the release of that version in driver.toml, which then counts.",
                    details=f"{known.first}: {known.said_by} said {known.sha256}\n"
                    f"{now}: {redact(sums)} says {said}",
                )
            if known is None:
                self._keep(record, url, sums, said)
            return said

    def _keep(self, record: KnownSums, url: str, sums: str, sha256: str) -> None:
        shown = redact(sums)
        report(Note(f"{shown} says sha256 {sha256}; it is kept and counts from now on"))
        first = datetime.now(UTC).isoformat(timespec="seconds")
        entry = KnownSum(sha256=sha256, said_by=shown, first=first)
        new = KnownSums(sums={**record.sums, url: entry})
        text = new.model_dump_json(by_alias=True, indent=1)
        write_atomic(self.folder / _FILE, f"{text}\n", mode=0o600)


def _load(path: Path) -> KnownSums:
    try:
        return load_json(path, KnownSums)
    except NotFoundError:
        return KnownSums()
    except ConfigError as error:
        raise ProvisionError(
            f"'{path}', which has the checksums that vendors were first seen with, is damaged.",
            resolution=f"Take it from a backup, or begin a new record: mv {path} {path}.damaged",
            details=error.details,
        ) from error
