"""Checksums that vendors publish, as they were when they were first seen.

A vendor's sum beside a vendor's file finds damage, and not a forger who has both. So what was said
first is kept in ``.known-sums.json`` beside the store and counts ever after; another answer later
is an error that says who said what, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from provision.documents import Frozen, load_json
from provision.errors import ConfigError, NotFoundError, ProvisionError, redact
from provision.fetch.http import UnreachableError
from provision.files import lock, write_atomic
from provision.progress import Note, Progress, silent

_FILE = ".known-sums.json"


class KnownSum(Frozen):
    """What was said of a file.

    Attributes:
        sha256: Of its content.
        said_by: Address of the sums.
        first: When it was first said, as RFC 3339.
    """

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    said_by: str
    first: str


class KnownSums(Frozen):
    """All that were seen, by the file's address."""

    schema_version: int = Field(default=1, alias="schema")
    sums: dict[str, KnownSum] = Field(default_factory=dict)

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


class ChangedSumError(ProvisionError):
    """A vendor says another checksum of a file than before."""


def known_sum(
    url: str,
    sums: str,
    *,
    ask: Callable[[str, str], str],
    state: Path,
    again: bool = False,
    progress: Progress = silent,
) -> str:
    """Return the sha256 that a vendor published of a file, as it was first seen here.

    Args:
        url: The file's address.
        sums: Address of the sums.
        ask: Returns what is said there now, from both addresses.
        state: The folder of the record.
        again: Ask once more although it is known, and compare.
        progress: Receives what goes on.

    Raises:
        NotFoundError: The vendor has no such list, or it lacks the file.
        UnreachableError: It can't be reached, and nothing is known.
        ChangedSumError: It says another sum than before.
        ProvisionError: What answers is no list of sums, or the record of what was seen is damaged.
    """
    with lock(state / ".known-sums.lock"):
        path = state / _FILE
        record = _load(path)
        known = record.sums.get(url)
        if known is not None and not again:
            return known.sha256
        try:
            said = ask(url, sums)
        except (UnreachableError, NotFoundError) as error:
            if known is None:
                raise
            progress(Note(f"{error.message} The sum of {known.first} counts."))
            return known.sha256
        if known is not None and said != known.sha256:
            raise _changed(url, sums, known, said)
        if known is None:
            progress(Note(f"{redact(sums)} says sha256 {said}; it is kept and counts from now on"))
            first = datetime.now(UTC).isoformat(timespec="seconds")
            entry = KnownSum(sha256=said, said_by=redact(sums), first=first)
            new = KnownSums(sums={**record.sums, url: entry})
            write_atomic(path, new.model_dump_json(by_alias=True, indent=1) + "\n", mode=0o600)
        return said


def _load(path: Path) -> KnownSums:
    try:
        return load_json(path, KnownSums)
    except NotFoundError:
        return KnownSums()
    except ConfigError as error:
        raise ProvisionError(
            f"'{path}', which has the checksums that vendors were first seen with, is damaged.",
            resolution=f"Take it from a backup, or start afresh: mv {path} {path}.damaged",
            details=error.details,
        ) from error


def _changed(url: str, sums: str, known: KnownSum, said: str) -> ChangedSumError:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return ChangedSumError(
        f"The vendor's checksum of '{redact(url)}' is not what it was.",
        resolution="Nothing was built. A released file does not change: ask the vendor,"
        " and compare with other machines. If the new file is right, write its sha256 into the"
        " release of that version in driver.toml, which then counts.",
        details=f"{known.first}: {known.said_by} said {known.sha256}\n"
        f"{now}: {redact(sums)} says {said}",
    )
