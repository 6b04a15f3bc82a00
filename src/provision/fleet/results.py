"""The results of a matrix: one JSON file for each cell, a grid of them, and its HTML page.

``docs/reference/matrix-cell.schema.json`` is made from these types. The page needs no server, no
network and no other file. Its content comes from builds and hosts, so all of it is escaped. Its
policy forbids loading files and running scripts other than its own.
"""

import base64
import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import ConfigDict, Field

import provision
from provision.build.output import SourceError
from provision.distros import version_key
from provision.documents import Frozen, load_json
from provision.errors import ExitCode, NotFoundError, ProvisionError, redact
from provision.files import in_root, remove_drafts, write_atomic
from provision.fleet import Cell, Column, DistroName, Row
from provision.host import STORE
from provision.host.kernels import kernel_order
from provision.pin import ImageDigest, KernelRelease, Name, Version
from provision.store.state import DOES_NOT_LOAD, DoesNotLoad

State = Literal["built", "failed", "not-supported"]
Reason = Literal["compile", "build", "missing", DoesNotLoad, "failed"]
# Of the year 9999, the last one that can be shown.
_LAST_SECOND = 253_402_300_799
_LONGEST_TEXT = 16_000


class Result(Frozen):
    """The result of a cell.

    Attributes:
        schema_version: Of the format.
        driver: The driver.
        version: Its version.
        flavour: Its flavour.
        distro: Such as ``debian:12``.
        kernel: The kernel's release.
        state: How it ended.
        digest: Of the Pin that was built; None if there is no Pin.
        reason: Why it failed: ``compile`` (a compiler refused the source), ``build`` (another
            step), ``missing`` (headers, kernel, driver or version), ``does-not-load`` (its
            kernel does not take the modules), ``failed`` (all else).
        phase: Whether deciding the Pin failed, or the build.
        message: The error in one line; for an unsupported cell, why it is unsupported.
        resolution: What to do.
        details: The compiler's complaints, or a program's last lines.
        first_error: The compiler's first complaint.
        errors: How many complaints it had.
        instruction: The step of the Dockerfile that failed.
        excerpt: The build's output around the first complaint, or its last lines.
        log: File with the whole output.
        size: Bytes of the artifact image.
        seconds: The duration, by part.
        is_tried: Whether the kernel took the modules, in a virtual machine.
        finished: Unix time.
        made_by: Version of provision.
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
    size: int | None = Field(default=None, ge=0, le=2**63 - 1)
    seconds: dict[str, Annotated[float, Field(ge=0, le=2**63 - 1, allow_inf_nan=False)]] = Field(
        default_factory=dict
    )
    is_tried: bool = False
    finished: int = Field(ge=0, le=_LAST_SECOND)
    made_by: str

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

    def holds_for(self, digest: str) -> bool:
        """Return whether building a Pin would have this result again."""
        is_final = self.state != "failed" or self.reason in {"compile", DOES_NOT_LOAD}
        return is_final and self.digest == digest


def result_of(cell: Cell, state: State, **more: Any) -> Result:  # noqa: ANN401 - members of Result
    """Return a new result of a cell; ``more`` are further members."""
    return Result(
        **cell.members(),
        state=state,
        finished=int(time.time()),
        made_by=provision.__version__,
        **more,
    )


def failed_result(cell: Cell, error: Mapping[str, Any], *, digest: str | None) -> Result:
    """Return the result of a cell that ended with an error, given as JSON has it.

    Without the digest of a Pin, deciding that failed. A driver that excludes the kernel itself, as
    a dkms.conf can, is unsupported; it has not failed.
    """
    document = {
        "digest": digest,
        "message": error["message"][:_LONGEST_TEXT],
        "resolution": error["resolution"],
    }
    if error["reason"] == "build" and error["exit_code"] == ExitCode.NOT_FOUND:
        return result_of(cell, "not-supported", **document)
    complaints = [
        SourceError(**one | {"excerpt": tuple(one["excerpt"])})
        for one in error.get("source_errors") or ()
    ]
    return result_of(
        cell,
        "failed",
        **document,
        reason=error["reason"] if error["reason"] in get_args(Reason) else "failed",
        phase="build" if digest else "resolve",
        details=error["details"] and error["details"][:_LONGEST_TEXT],
        first_error=complaints[0] if complaints else None,
        errors=len(complaints),
        instruction=error.get("instruction"),
        excerpt=tuple(error.get("excerpt") or ()),
        log=error.get("log"),
    )


def matrix_folder(root: Path) -> Path:
    """Return the folder of a host's matrix."""
    return in_root(root, STORE / "matrix")


def result_path(folder: Path, cell: Cell) -> Path:
    """Return the path of a cell's result, which may not exist."""
    row, column = cell.row, cell.column
    distro = column.distro.replace(":", "@")
    name = f"{row.version}@{row.flavour}.json"
    return folder / "cells" / row.driver / distro / column.kernel / name


def read_result(folder: Path, cell: Cell) -> Result | None:
    """Return the result of a cell; None if there is none that can be read."""
    try:
        return load_json(result_path(folder, cell), Result)
    except ProvisionError:
        return None


def write_result(folder: Path, result: Result) -> None:
    """Write the result of a cell in place of an earlier one."""
    path = result_path(folder, result.cell)
    remove_drafts(path)
    write_atomic(path, f"{result.model_dump_json(by_alias=True, indent=1)}\n")


def read_results(folder: Path) -> tuple[list[Result], list[str]]:
    """Return the results below a folder, and a line for each file that can't be read."""
    found: list[Result] = []
    problems: list[str] = []
    for path in sorted((folder / "cells").glob("*/*/*/[!.]*.json")):
        try:
            result = load_json(path, Result)
        except NotFoundError:
            # Someone has removed it.
            continue
        except ProvisionError as error:
            problems.append(f"{path}: {(error.details or error.message).replace(chr(10), '; ')}")
            continue
        if result_path(folder, result.cell) == path:
            found.append(result)
        else:
            problems.append(f"{path}: its content belongs to another cell than its name")
    return found, problems


NOT_BUILT = "not-built"
# A symbol and words beside the colour, for print and for readers who see no colours.
LOOKS = {
    "built": ("✓", "built"),
    "loads": ("✔", "built, and its kernel loads it"),
    "failed": ("✗", "failed"),
    "not-supported": ("⊘", "not supported"),
    NOT_BUILT: ("·", "not built yet"),
}


class MatrixReport(NamedTuple):
    """A matrix as a grid."""

    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    # Results by cell; a cell without one was not built yet.
    results: Mapping[Cell, Result]

    def result(self, row: Row, column: Column) -> Result | None:
        """Return the result of a cell; None if it was not built yet."""
        return self.results.get(Cell(row, column))

    def state(self, row: Row, column: Column) -> str:
        """Return the state of a cell: one that ``LOOKS`` has."""
        result = self.result(row, column)
        if result is None:
            return NOT_BUILT
        return "loads" if result.is_tried else result.state

    @property
    def counts(self) -> dict[str, int]:
        """The number of cells by state; every state is included."""
        found = Counter(self.state(row, column) for row in self.rows for column in self.columns)
        return {state: found[state] for state in LOOKS}

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        return {
            "counts": self.counts,
            "cells": [
                self._cell(Cell(row, column)) for column in self.columns for row in self.rows
            ],
        }

    def _cell(self, cell: Cell) -> dict[str, Any]:
        result = self.results.get(cell)
        if result is None:
            return {**cell.members(), "state": NOT_BUILT}
        return result.model_dump(mode="json", by_alias=True)


def report_of_cells(cells: Iterable[Cell], folder: Path) -> MatrixReport:
    """Return the report of cells with their results."""
    listed = list(cells)
    found = {cell: result for cell in listed if (result := read_result(folder, cell))}
    rows = tuple(dict.fromkeys(cell.row for cell in listed))
    return MatrixReport(rows, tuple(dict.fromkeys(cell.column for cell in listed)), found)


def report_of_results(results: Iterable[Result]) -> MatrixReport:
    """Return the report of all results: the newest version and kernel first."""
    known = {result.cell: result for result in results}
    if not known:
        raise NotFoundError(
            "The matrix has no results.",
            resolution="Build cells: provision matrix --drivers all --build",
        )
    rows = sorted({c.row for c in known}, key=lambda row: version_key(row.version), reverse=True)
    columns = sorted(
        {c.column for c in known}, key=lambda one: kernel_order(one.kernel), reverse=True
    )
    return MatrixReport(
        tuple(sorted(rows, key=lambda row: row.driver)),
        tuple(sorted(columns, key=lambda column: column.distro)),
        known,
    )


_TEMPLATE = "matrix/page.html.j2"
_STYLE = "matrix/page.css"
_SCRIPTS = ("page/shared.js", "matrix/page.js")
_REASONS = {
    "compile": "does not compile",
    "build": "a step of the build failed",
    "missing": "something is missing",
    DOES_NOT_LOAD: "the kernel does not take it",
    "failed": "failed",
}


def render_page(report: MatrixReport, templates: Path, *, time: float) -> str:
    """Return the page of a report; ``time`` is the Unix time of the page."""
    style = (templates / _STYLE).read_text()
    script = "".join((templates / one).read_text() for one in _SCRIPTS)
    template = Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(_TEMPLATE)
    return template.render(
        style=Markup(style),  # noqa: S704 - our own files, not what a build or a host says
        script=Markup(script),  # noqa: S704 - the same
        policy=_policy(style, script),
        made=_shown_time(time),
        version=provision.__version__,
        counts=[(state, *LOOKS[state], count) for state, count in report.counts.items()],
        # Each with its number of kernels, in the order of the columns.
        distros=list(Counter(column.distro for column in report.columns).items()),
        columns=report.columns,
        drivers=list(dict.fromkeys(row.driver for row in report.rows)),
        rows=[
            {"row": row, "cells": [_cell(report, row, column) for column in report.columns]}
            for row in report.rows
        ],
        details=[
            _detail(result)
            for column in report.columns
            for row in report.rows
            if (result := report.result(row, column))
        ],
    )


def _cell(report: MatrixReport, row: Row, column: Column) -> dict[str, Any]:
    state = report.state(row, column)
    symbol, words = LOOKS[state]
    result = report.result(row, column)
    return {
        "id": _identity(Cell(row, column)) if result else None,
        "state": state,
        "symbol": symbol,
        "words": words,
        "column": column,
        "hint": result.cause if result and result.state != "built" else "",
    }


def _detail(result: Result) -> dict[str, Any]:
    symbol, words = LOOKS["loads" if result.is_tried else result.state]
    return {
        "id": _identity(result.cell),
        "symbol": symbol,
        "words": words,
        "why": _REASONS.get(result.reason or "", ""),
        "made": _shown_time(result.finished),
        "result": result,
    }


def _identity(cell: Cell) -> str:
    return f"cell-{hashlib.sha256(str(cell).encode()).hexdigest()[:16]}"


def _shown_time(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"


def _policy(style: str, script: str) -> str:
    """Return the policy that names the page's own style and script by their digests.

    Source: https://www.w3.org/TR/CSP3/#grammardef-hash-source
    """
    digests = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    ]
    parts = [
        "default-src 'none'",
        f"style-src 'sha256-{digests[0]}'",
        f"script-src 'sha256-{digests[1]}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(parts)
