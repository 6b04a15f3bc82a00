"""Gives a cell of a compatibility matrix its result: a known one, or that of a build.

A result is a fact about its cell: a compiler's refusal, a missing header, a success. An error that
says nothing about the cell, such as a full disk, is raised.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from provision.build.diagnosis import BuildError, kind_of
from provision.build.image import (
    KERNEL_STAGE,
    TOOLS_STAGE,
    Built,
    build_image,
    find,
    layers_of,
    remove_layers,
)
from provision.build.request import BuildSettings, DriverRequest
from provision.build.resolve import Resolved, resolve_pin
from provision.build.workspace import Settings
from provision.engine.docker_api import Engine, EngineError
from provision.engine.stream import StepRecord
from provision.errors import ExitCode, InUseError, ProvisionError, redact
from provision.fetch import UnreachableError
from provision.fleet.matrix.cells import Cell, Column, Planned
from provision.fleet.matrix.results import FirstError, Result, Results, result_of
from provision.fleet.matrix.shared_layers import SharedLayers
from provision.host.kernels import find_kernels
from provision.progress import Progress

if TYPE_CHECKING:
    from provision.fleet.prebuild import FleetRegistry

# Stands in place of a kernel: the layers that all kernels of a distro begin with.
TOOLS = "tools"
_FULL = "no space left on device"
_LONGEST_TEXT = 16_000
_LONGEST_LINE = 400
_LINES_BEFORE, _LINES_AFTER, _LAST_LINES = 5, 25, 40


def shared_by(column: Column) -> tuple[Column, Column]:
    """Return the columns whose cells share layers with a cell: its kernel's and its distro's."""
    return column, Column(column.distro, TOOLS)


Retry = Literal["failed", "all"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run."""

    jobs: int = 1
    # Whether cells whose Pin has not changed are built again: those that failed, or all.
    retry: Retry | None = None
    keep_images: bool = False
    # Whether to go on after an error of the machine, such as a full disk.
    keep_going: bool = False
    # Network of the containers that download; None: what provision.toml says.
    network: str | None = None
    # Whether cells are built for kernels that a recipe does not name.
    force: bool = False
    # Takes the images of cells; None: only their results are kept.
    publisher: FleetRegistry | None = None

    @property
    def compilers(self) -> int | None:
        """Number of compilers of each build; None: that of a single build."""
        processors = len(os.sched_getaffinity(0))
        return max(1, processors // self.jobs) if self.jobs > 1 else None


class CellBuilder:
    """Decides about cells, and builds them."""

    def __init__(
        self, settings: Settings, results: Results, options: RunOptions, layers: SharedLayers
    ) -> None:
        self._settings = settings
        self._results = results
        self._options = options
        self._layers = layers
        self._begun = int(time.time())
        self._own = _own_images(settings)

    def decide(
        self, planned: Planned, engine: Callable[[], Engine], progress: Progress
    ) -> tuple[str, Result | None]:
        """Decide about a cell, and build it if necessary; the caller holds its lock.

        Args:
            engine: Connects to the engine; called if the cell has to be resolved.

        Returns:
            Its state, and its result if that is new; the result is not written yet.
        """
        cell = planned.cell
        known = self._results.read(cell)
        if planned.refusal is not None:
            return _refused(planned, known)
        publisher = self._options.publisher
        if publisher is not None and publisher.has(cell):
            return "built", None
        if known is not None and known.finished > self._begun and not self._is_lacking(known):
            # Another matrix has built it meanwhile.
            return known.state, None
        # Without an engine, nothing can be decided.
        connected = engine()
        try:
            options = self._options
            resolved = resolve_cell(
                self._settings,
                cell,
                connected,
                network=options.network,
                force=options.force,
                progress=progress,
            )
        except ProvisionError as error:
            refuse_trouble(error)
            result = failed_result(cell, error, phase="resolve")
            return result.state, result
        if known is not None and self._still_holds(known, resolved, connected):
            return known.state, None
        with ExitStack() as stack:
            for column in shared_by(cell.column):
                stack.enter_context(self._layers.using(column))
            result = self._build(cell, resolved, connected, progress)
        return result.state, result

    def _still_holds(self, known: Result, resolved: Resolved, engine: Engine) -> bool:
        """Whether a known result still holds: the same Pin, and no option for a build."""
        if known.digest != resolved.pin.digest or not known.is_final or self._is_lacking(known):
            return False
        retry = self._options.retry
        if retry == "all" or (retry == "failed" and known.state == "failed"):
            return False
        needs_image = self._options.keep_images and known.state == "built"
        return not needs_image or find(engine, resolved.pin) is not None

    def _is_lacking(self, known: Result) -> bool:
        """Whether a cell was built, but its image is not at the publisher."""
        return self._options.publisher is not None and known.state == "built"

    def _build(self, cell: Cell, resolved: Resolved, engine: Engine, progress: Progress) -> Result:
        """Build a cell, and keep or remove its image and layers."""
        options, pin = self._options, resolved.pin
        how = BuildSettings(jobs=options.compilers, rebuild=options.retry == "all")
        try:
            built = build_image(self._settings, engine, resolved, how, progress=progress)
        except ProvisionError as error:
            if isinstance(error, BuildError) and not options.keep_images:
                remove_layers(engine, layers_of(error.steps))
                self._note_layers(cell, error.steps)
            refuse_trouble(error)
            return failed_result(cell, error, phase="build", digest=pin.digest)
        if options.publisher is not None:
            options.publisher.publish(cell, engine, built, pin, progress)
        kept = self._is_kept(cell, built)
        if not kept:
            self._note_layers(cell, built.steps)
            with suppress(ProvisionError):
                engine.remove(built.image_id, with_parents=True)
        return result_of(
            cell,
            "built",
            digest=pin.digest,
            size=built.size,
            image=built.image if kept else None,
            seconds={name: round(taken, 3) for name, taken in built.phases().items()},
        )

    def _is_kept(self, cell: Cell, built: Built) -> bool:
        """Whether an image stays: it is older, an option keeps it, or this host may install it."""
        is_own = (cell.row.driver, cell.column.kernel) in self._own
        return self._options.keep_images or not built.built or is_own

    def _note_layers(self, cell: Cell, steps: Sequence[StepRecord]) -> None:
        stages = (KERNEL_STAGE, TOOLS_STAGE)
        for column, stage in zip(shared_by(cell.column), stages, strict=True):
            self._layers.note(column, layers_of(steps, stage=stage))


def resolve_cell(
    settings: Settings,
    cell: Cell,
    engine: Engine,
    *,
    network: str | None,
    force: bool,
    progress: Progress,
) -> Resolved:
    """Return the Pin of a cell, with what its build needs here.

    Args:
        network: Network of the containers that download; None: what provision.toml says.
        force: Whether the recipe need not name the kernel.
    """
    row, column = cell.row, cell.column
    request = DriverRequest(
        row.driver,
        kernel=column.kernel,
        distro=column.distro,
        version=row.version,
        flavour=row.flavour,
        network=network,
        force=force,
    )
    return resolve_pin(settings, lambda: engine, request, progress=progress)


def _refused(planned: Planned, known: Result | None) -> tuple[str, Result | None]:
    """Return the decision about a cell that the recipe does not support."""
    if known is not None and known.forced and known.state != "not-supported":
        # A forced build says more than the recipe.
        return known.state, None
    if known is not None and (known.state, known.message) == ("not-supported", planned.refusal):
        return known.state, None
    return "not-supported", result_of(
        planned.cell, "not-supported", message=planned.refusal, resolution=planned.resolution
    )


def _own_images(settings: Settings) -> frozenset[tuple[str, str]]:
    """Return driver and kernel of images that this host may install; ``gc`` removes these."""
    kernels = find_kernels(settings.root).bootable
    return frozenset((driver, kernel) for driver in settings.config.drivers for kernel in kernels)


def refuse_trouble(error: ProvisionError) -> None:
    """Raise an error that says nothing about the cell.

    Raises:
        ProvisionError: The error, if other cells would fail in the same way.
    """
    is_outside = isinstance(error, BuildError) and error.is_outside
    is_full = _FULL in f"{error.message}\n{error.details or ''}".lower()
    alike = (UnreachableError, EngineError, InUseError)
    if is_outside or is_full or isinstance(error, alike):
        raise error


def failed_result(
    cell: Cell,
    error: ProvisionError,
    *,
    phase: Literal["resolve", "build"],
    digest: str | None = None,
) -> Result:
    """Return the result of a cell that ended with an error.

    A driver that excludes the kernel itself, as a dkms.conf can, is unsupported; it has not failed.
    """
    said: dict[str, Any] = {
        "digest": digest,
        "message": error.message[:_LONGEST_TEXT],
        "resolution": error.resolution,
    }
    if isinstance(error, BuildError) and error.exit_code is ExitCode.NOT_FOUND:
        return result_of(cell, "not-supported", **said)
    return result_of(
        cell,
        "failed",
        **said,
        reason=kind_of(error),
        phase=phase,
        details=error.details[:_LONGEST_TEXT] if error.details else None,
        **(_of_build(error) if isinstance(error, BuildError) else {}),
    )


def _of_build(error: BuildError) -> dict[str, Any]:
    """Return the further members of a result for a build that failed."""
    lines = list(error.step.lines) if error.step else []
    said: dict[str, Any] = {
        "instruction": error.step.instruction if error.step else None,
        "log": str(error.log) if error.log else None,
        "errors": len(error.source_errors),
        "excerpt": tuple(redact(line[:_LONGEST_LINE]) for line in _excerpt(error, lines)),
    }
    if error.source_errors:
        first = error.source_errors[0]
        said["first_error"] = FirstError(
            file=first.file,
            line=first.line,
            text=redact(first.text[:_LONGEST_LINE]),
            excerpt=tuple(line[:_LONGEST_LINE] for line in first.excerpt),
        )
    return said


def _excerpt(error: BuildError, lines: Sequence[str]) -> Sequence[str]:
    """Return the part of a step's output that shows why it failed."""
    if not error.source_errors:
        return lines[-_LAST_LINES:]
    first = error.source_errors[0]
    place = first.file if first.line is None else f"{first.file}:{first.line}:"
    at = next((number for number, line in enumerate(lines) if place in line), None)
    if at is None:
        return lines[-_LAST_LINES:]
    return lines[max(0, at - _LINES_BEFORE) : at + _LINES_AFTER]
