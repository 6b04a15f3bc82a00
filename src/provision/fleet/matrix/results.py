"""The results of a compatibility matrix: one JSON file for each cell.

``docs/reference/matrix-cell.schema.json`` is made from these types. Files are written whole or not
at all, under the cell's lock; reading takes no lock.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

import provision
from provision.build.diagnosis import SourceError
from provision.documents import Frozen, load_json
from provision.errors import ConfigError, InUseError, NotFoundError, ProvisionError, redact
from provision.files import in_root, lock, remove_drafts, write_atomic
from provision.fleet.matrix.cells import Cell, Column, DistroName, Row
from provision.host import STORE
from provision.pin import ImageDigest, KernelRelease, Name, Version

SCHEMA = 1
State = Literal["built", "failed", "not-supported"]
Reason = Literal["compile", "build", "missing", "failed"]
_DAY_S = 24 * 3600
# Of the year 9999, the last one that can be shown.
_LAST_SECOND = 253_402_300_799
# An older result says little about today's archives.
UNUSED_DAYS = 365.0


class Result(Frozen):
    """The result of a cell.

    Attributes:
        schema_version: Of the format; a greater one was written by a newer provision.
        driver: The driver.
        version: Its version.
        flavour: Its flavour.
        distro: Such as ``debian:12``.
        kernel: The kernel's release.
        state: How it ended.
        digest: Of the Pin that was built; None if there is no Pin.
        reason: Why it failed: ``compile`` (a compiler refused the source), ``build`` (another
            step), ``missing`` (headers, kernel, driver or version), ``failed`` (all else).
        phase: Whether deciding the Pin failed, or the build.
        message: The error in one line; for an unsupported cell, why it is unsupported.
        resolution: What to do.
        details: The compiler's complaints, or a program's last lines.
        first_error: The compiler's first complaint.
        errors: How many complaints it had.
        instruction: The step of the Dockerfile that failed.
        excerpt: The build's output around the first complaint, or its last lines.
        log: File with the whole output.
        image: Name of the artifact image, where it was kept.
        size: Bytes of the artifact image.
        seconds: The duration, by part.
        finished: Unix time.
        made_by: Version of provision.
        forced: Whether it was built although it is known to fail (``--force``).
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    driver: Name
    version: Version
    flavour: Name
    distro: DistroName
    kernel: KernelRelease
    state: State
    digest: ImageDigest | None = None
    reason: Reason | None = None
    phase: Literal["resolve", "build"] | None = None
    message: str | None = None
    resolution: str | None = None
    details: str | None = None
    first_error: SourceError | None = None
    errors: int = Field(default=0, ge=0, le=2**63 - 1)
    instruction: str | None = None
    excerpt: tuple[str, ...] = ()
    log: str | None = None
    image: str | None = None
    size: int | None = Field(default=None, ge=0, le=2**63 - 1)
    seconds: dict[str, Annotated[float, Field(ge=0, le=2**63 - 1, allow_inf_nan=False)]] = Field(
        default_factory=dict
    )
    finished: int = Field(ge=0, le=_LAST_SECOND)
    made_by: str
    forced: bool = False

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    @property
    def cell(self) -> Cell:
        """The cell of this result."""
        row = Row(self.driver, self.version, self.flavour)
        return Cell(row, Column(self.distro, self.kernel))

    @property
    def cause(self) -> str:
        """The reason in one line: the compiler's first complaint, or the message."""
        first = self.first_error
        return redact(f"{first.place}: {first.text}" if first else self.message or self.state)

    @property
    def is_final(self) -> bool:
        """Whether building the same Pin again would have the same result."""
        is_excluded = self.state == "not-supported" and self.digest is not None
        return self.state == "built" or self.reason == "compile" or is_excluded


def result_of(cell: Cell, state: State, **more: Any) -> Result:  # noqa: ANN401 - members of Result
    """Return a new result of a cell; ``more`` are further members."""
    return Result(
        **cell.members(),
        state=state,
        finished=int(time.time()),
        made_by=provision.__version__,
        **more,
    )


def matrix_folder(root: Path) -> Path:
    """Return the folder of a host's matrix."""
    return in_root(root, STORE / "matrix")


@dataclass(slots=True)
class Outcome:
    """The outcome of a run."""

    # Cells that were built in this run, with or without success.
    built: list[Cell] = field(default_factory=list)
    unchanged: list[Cell] = field(default_factory=list)
    troubles: list[tuple[Cell, ProvisionError]] = field(default_factory=list)
    # Cells that the run did not reach.
    left: list[Cell] = field(default_factory=list)


class BusyError(Exception):
    """Another process is building the cell."""


class Results:
    """The results below a folder.

    Args:
        folder: Need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cells = folder / "cells"

    def path(self, cell: Cell) -> Path:
        """Return the path of a cell's result, which may not exist."""
        row, column = cell.row, cell.column
        distro = column.distro.replace(":", "@")
        name = f"{row.version}@{row.flavour}.json"
        return self._cells / row.driver / distro / column.kernel / name

    def read(self, cell: Cell) -> Result | None:
        """Return the result of a cell; None if there is no readable file.

        Raises:
            ProvisionError: A newer provision wrote it.
        """
        path = self.path(cell)
        try:
            return load_json(path, Result)
        except NotFoundError:
            return None
        except ConfigError as error:
            if _is_newer(error):
                raise ProvisionError(
                    f"'{path}' can't be replaced: {_NEWER}.",
                    resolution="Install that version of provision again, or keep the results of"
                    " this one elsewhere: --state DIR.",
                ) from error
            return None

    def write(self, result: Result) -> None:
        """Write the result of a cell; the caller holds its lock."""
        path = self.path(result.cell)
        remove_drafts(path)
        text = result.model_dump_json(by_alias=True, indent=1)
        write_atomic(path, f"{text}\n")

    def load(self, driver: str | None = None) -> tuple[list[Result], list[str]]:
        """Return the results, and a line for each file that can't be read."""
        found: list[Result] = []
        problems: list[str] = []
        for path in sorted(self._cells.glob(f"{driver or '*'}/*/*/[!.]*.json")):
            try:
                result = load_json(path, Result)
            except NotFoundError:
                # Garbage collection has removed it.
                continue
            except ProvisionError as error:
                problems.append(_problem(path, error))
                continue
            if self.path(result.cell) == path:
                found.append(result)
            else:
                problems.append(f"{path}: its content belongs to another cell than its name")
        return found, problems

    @contextmanager
    def claimed(self, cell: Cell) -> Iterator[None]:
        """Hold the lock of a cell, so that only one of two matrices builds it.

        Raises:
            BusyError: Another process holds it.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(lock(lock_path(self.folder, "cell", str(cell)), limit=0))
            except InUseError as error:
                raise BusyError from error
            yield

    def collect(self, kernels: Iterable[str], *, dry_run: bool = False) -> list[tuple[str, int]]:
        """Remove results that are older than a year, except for kernels of this host.

        Returns:
            The name of each removed cell, and the bytes of its file.
        """
        kept = set(kernels)
        oldest = time.time() - UNUSED_DAYS * _DAY_S
        gone = []
        for result in self.load()[0]:
            path = self.path(result.cell)
            if result.kernel in kept or result.finished >= oldest or not path.is_file():
                continue
            gone.append((str(result.cell), path.stat().st_size))
            if not dry_run:
                path.unlink(missing_ok=True)
        return gone


def lock_path(folder: Path, kind: str, name: str) -> Path:
    """Return the path of a lock below the folder of a matrix."""
    return folder / "locks" / f"{kind}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


_NEWER = f"it was written by a newer provision (this one knows format {SCHEMA})"


def _is_newer(error: ConfigError) -> bool:
    return any(mistake.path == "schema" for mistake in error.mistakes)


def _problem(path: Path, error: ProvisionError) -> str:
    if isinstance(error, ConfigError) and _is_newer(error):
        return f"{path}: {_NEWER}"
    return f"{error.message}: {(error.details or '').replace(chr(10), '; ')}".rstrip(": ")
