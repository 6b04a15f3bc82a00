"""Builds the cells of a matrix, each by a process of ``provision build --pin``, and writes results.

A result is a fact about its cell: a compiler's refusal, a missing header, a success. An error of
the machine (a full disk, an engine or archive that does not answer) ends the run instead, because
other cells would fail in the same way.

Cells that the registry has are not built. If two machines build the same cell, the image that is
signed first stays (docs/decisions/06-registries.md).
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, NamedTuple

from provision.build.image import (
    TOOLCHAIN_KERNEL_LABEL,
    built_here,
    remove_layers,
    remove_toolchain,
)
from provision.build.request import DriverRequest
from provision.build.resolve import pin_document, resolve_pin
from provision.build.workspace import Settings
from provision.errors import ExitCode, ProvisionError, UsageError
from provision.files import lock
from provision.fleet import Cell, Fleet, Planned
from provision.fleet.offers import ensure_base_images
from provision.fleet.results import (
    Result,
    failed_result,
    read_result,
    result_of,
    write_result,
)
from provision.host.kernels import find_kernels
from provision.pin import Pin
from provision.progress import Note, report
from provision.registry import HostTag, Reference, parse_reference
from provision.registry.find import Connect, connect
from provision.registry.publish import retag_existing
from provision.registry.repositories import Repository, find_digest
from provision.registry.signatures import Signer, signature_tag
from provision.run import run

_LONGEST_BUILD_S = 24 * 3600.0
# The reasons of errors of a push; those of a build have others.
_OF_PUSH = frozenset({"failed", "untrusted"})
_FULL = "no space left on device"
_LAST_LINES = 20
# setpriv(1): a build doesn't outlive this process, however that ends.
_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")

# An error, as ``ProvisionError.document`` has it.
Trouble = Mapping[str, Any]


class FleetRegistry(NamedTuple):
    """The registry of a fleet."""

    settings: Settings
    # The hosts' registry: ``registry.example:5000/drivers``.
    address: str
    # Signs pushed images; None: nothing is pushed, or images stay unsigned.
    signer: Signer | None = None
    # Whether hosts need signed images.
    is_signed: bool = True
    connected: Connect = connect

    def reference(self, cell: Cell) -> Reference:
        """Return the name that hosts look for."""
        row, column = cell.row, cell.column
        tag = HostTag(row.version, row.flavour, column.kernel, column.distro)
        return parse_reference(f"{self.address}/{row.driver}:{tag.text}")

    def has(self, cell: Cell) -> bool:
        """Return whether the registry has a cell, with a signature if hosts need one.

        Hosts verify the signature. An image without one is built again: its builder may have died
        between push and signature, and content of a registry is not trusted.
        """
        client = self._client(cell)
        digest = find_digest(client, str(client.reference.tag))
        return digest is not None and (
            not self.is_signed or find_digest(client, signature_tag(digest)) is not None
        )

    def has_other_build(self, cell: Cell, pin: Pin) -> bool:
        """Return whether the registry got a cell from another builder meanwhile.

        If that one has another name, it gets this one too.
        """
        with suppress(ProvisionError):
            if self.has(cell):
                return True
            digest = retag_existing(self.settings, self._client(cell), pin, self.signer)
            if digest is not None:
                report(
                    Note(f"{self.reference(cell)}: hosts get another build of this Pin, {digest}")
                )
                return True
        return False

    def _client(self, cell: Cell) -> Repository:
        return self.connected(self.settings, self.reference(cell))


def fleet_registry(settings: Settings, fleet: Fleet | None, signer: Signer | None) -> FleetRegistry:
    """Return the registry of a fleet; without one, that of provision.toml."""
    address = fleet.registry if fleet else settings.config.registry.address
    if address is None:
        raise UsageError(
            "No registry is named to push to.",
            resolution="Set [registry] address in /etc/provision/provision.toml, or name a"
            " fleet.toml.",
        )
    return FleetRegistry(settings, address, signer, is_signed=fleet is None or not fleet.unsigned)


def resolve_cell(settings: Settings, cell: Cell) -> Pin:
    """Return the Pin of a cell; what a recipe knows of it, the plan of the cells has decided."""
    return resolve_pin(settings, DriverRequest(**cell.members(), force=True))


def run_cell(words: Sequence[str], stdin: bytes | None = None) -> Mapping[str, Any]:
    """Run this ``provision`` with ``--json``, and return what it prints."""
    argv = [*_WITH_PARENT, sys.executable, "-P", "-m", "provision", *words]
    ended = run(
        argv,
        why="build a cell",
        check=False,
        env=dict(os.environ),
        stdin=stdin,
        timeout=_LONGEST_BUILD_S,
    )
    try:
        document: Mapping[str, Any] = json.loads(ended.stdout)
    except ValueError:
        raise ProvisionError(
            f"'provision build' ended with status {ended.returncode}, and printed no result.",
            resolution="Run it by itself: provision build --pin FILE",
            details="\n".join(ended.stderr.splitlines()[-_LAST_LINES:]),
            is_outside=True,
        ) from None
    return document


class RunOptions(NamedTuple):
    """The options of a run."""

    jobs: int = 1
    # Whether to go on after an error of the machine, such as a full disk.
    keep_going: bool = False
    # Further words of ``provision build``, and its standard input.
    words: tuple[str, ...] = ()
    stdin: bytes | None = None
    # Whether each kernel loads what was built for it, in a virtual machine.
    is_tried: bool = False
    # Where images are pushed; None: only the results of cells are kept.
    registry: FleetRegistry | None = None
    resolve: Callable[[Settings, Cell], Pin] = resolve_cell
    build: Callable[[Sequence[str], bytes | None], Mapping[str, Any]] = run_cell


@dataclass(slots=True)
class Outcome:
    """The outcome of a run; a cell that is nowhere in it was built earlier, or not reached."""

    # Cells that were built in this run, with or without success.
    built: list[Cell] = field(default_factory=list)
    # What was pushed: name with digest.
    pushed: dict[Cell, str] = field(default_factory=dict)
    # Cells that the registry has, or got from another builder.
    present: list[Cell] = field(default_factory=list)
    troubles: dict[Cell, Trouble] = field(default_factory=dict)


def is_trouble(error: Trouble) -> bool:
    """Return whether an error says nothing about its cell: other cells would fail alike."""
    is_full = _FULL in f"{error['message']}\n{error['details'] or ''}".lower()
    return bool(error["is_outside"]) or is_full


def build_cells(
    settings: Settings, planned: Sequence[Planned], folder: Path, options: RunOptions
) -> Outcome:
    """Get a result for every cell that has none, or push every cell that the registry lacks.

    One run at a time uses the folder of the results (``InUseError``).
    """
    waiting = f"Another run writes to {folder}"
    with lock(folder / "lock", waiting=waiting, limit=0), TemporaryDirectory() as pins:
        return _Run(settings, folder, options, Path(pins)).run(planned)


class _Run:
    """A run. Its threads only wait for processes; all else happens in the thread that calls."""

    def __init__(self, settings: Settings, folder: Path, options: RunOptions, pins: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._options = options
        self._pins = pins
        self._outcome = Outcome()
        self._running: dict[Cell, Pin] = {}
        self._ended: SimpleQueue[tuple[Cell, Trouble | BaseException]] = SimpleQueue()
        self._columns: Counter[str] = Counter()
        self._is_over = False
        # The distros whose base images are there.
        self._based: set[str] = set()
        # Images of these the host may install.
        self._bootable = frozenset(find_kernels(settings.root).bootable)

    def run(self, planned: Sequence[Planned]) -> Outcome:
        self._columns.update(one.cell.column.kernel for one in planned)
        for one in planned:
            while len(self._running) >= self._options.jobs:
                self._finish(*self._ended.get())
            if self._is_over:
                break
            self._begin(one)
        while self._running:
            self._finish(*self._ended.get())
        return self._outcome

    def _begin(self, planned: Planned) -> None:
        cell, known = planned.cell, read_result(self._folder, planned.cell)
        if planned.refusal is not None:
            # A forced build says more than the recipe.
            if known is None or known.state == "not-supported":
                more = {"message": planned.refusal, "resolution": planned.resolution}
                write_result(self._folder, result_of(cell, "not-supported", **more))
            self._done(cell)
            return
        registry = self._options.registry
        try:
            if registry is not None and registry.has(cell):
                self._outcome.present.append(cell)
                self._done(cell)
                return
        except ProvisionError as error:
            self._failed(cell, error.document(), None)
            return
        if cell.column.distro not in self._based:
            # A missing base image is a single error, and not a failure of every cell.
            ensure_base_images(self._settings, [planned])
            self._based.add(cell.column.distro)
        try:
            pin = self._options.resolve(self._settings, cell)
        except ProvisionError as error:
            self._failed(cell, error.document(), None)
            return
        if known is not None and self._is_enough(known, pin):
            self._done(cell)
            return
        self._running[cell] = pin
        words = self._words(cell, pin)
        # It ends with the process if it does not end by itself.
        Thread(target=copy_context().run, args=(self._build, cell, words), daemon=True).start()

    def _is_enough(self, known: Result, pin: Pin) -> bool:
        """Return whether a result stands for what a build of this run would give."""
        if not known.holds_for(pin.digest):
            return False
        is_untried = self._options.is_tried and not known.is_tried
        return known.state != "built" or (self._options.registry is None and not is_untried)

    def _words(self, cell: Cell, pin: Pin) -> list[str]:
        options = self._options
        file = self._pins / f"{pin.short_digest}.json"
        file.write_text(json.dumps(pin_document(pin)))
        words = ["build", "--pin", str(file), "--json", *options.words]
        if options.is_tried:
            words.append("--trial")
        if options.registry is not None:
            words += ["--push", str(options.registry.reference(cell))]
        if options.jobs > 1:
            compilers = len(os.sched_getaffinity(0)) // options.jobs
            words += ["--jobs", str(max(1, compilers))]
        return words

    def _build(self, cell: Cell, words: Sequence[str]) -> None:
        try:
            document = self._options.build(words, self._options.stdin)
        except BaseException as error:
            self._ended.put((cell, error))
        else:
            self._ended.put((cell, document))

    def _finish(self, cell: Cell, document: Trouble | BaseException) -> None:
        if isinstance(document, ProvisionError):
            document = {"error": document.document()}
        elif isinstance(document, BaseException):
            raise document
        pin = self._running.pop(cell)
        if error := document.get("error"):
            self._failed(cell, error, pin)
            return
        self._record(
            result_of(
                cell,
                "built",
                digest=pin.digest,
                size=document["size"],
                seconds=document["seconds"],
                is_tried=bool(document.get("boot")),
            )
        )
        if pushed := document["pushed"]:
            self._outcome.pushed[cell] = f"{pushed['reference']}@{pushed['digest']}"
        is_own = (
            cell.row.driver in self._settings.config.drivers
            and cell.column.kernel in self._bootable
        )
        if document["built"] and not is_own:
            with suppress(ProvisionError):
                self._settings.engine().remove(document["image_id"], with_parents=True)
        self._done(cell)

    def _failed(self, cell: Cell, error: Trouble, pin: Pin | None) -> None:
        registry = self._options.registry
        if pin is not None and registry is not None and registry.has_other_build(cell, pin):
            # Another builder was faster.
            self._outcome.present.append(cell)
            self._done(cell)
            return
        is_of_call = pin is not None and error["exit_code"] == ExitCode.USAGE
        is_of_push = pin is not None and registry is not None and error["reason"] in _OF_PUSH
        if is_trouble(error) or is_of_call or is_of_push:
            self._outcome.troubles[cell] = error
            self._is_over = self._is_over or not self._options.keep_going
            report(Note(f"trouble {cell}: {error['message']}"))
            self._done(cell)
            return
        if layers := error.get("layers"):
            # No other build can use them; they often have a gigabyte.
            remove_layers(self._settings.engine(), layers)
        result = failed_result(cell, error, digest=pin.digest if pin else None)
        self._record(result)
        self._done(cell)

    def _record(self, result: Result) -> None:
        write_result(self._folder, result)
        self._outcome.built.append(result.cell)
        cause = f": {result.cause}" if result.state == "failed" else ""
        report(Note(f"{result.state:<7} {result.cell}{cause}"))

    def _done(self, cell: Cell) -> None:
        kernel = cell.column.kernel
        self._columns[kernel] -= 1
        if self._columns[kernel] == 0 and kernel not in self._bootable and self._outcome.built:
            with suppress(ProvisionError):
                self._remove_toolchains(kernel)

    def _remove_toolchains(self, kernel: str) -> None:
        """Remove the toolchains of a kernel; one that another process uses stays, for ``gc``."""
        engine, state = self._settings.engine(), self._settings.state
        for image in built_here(engine, f"{TOOLCHAIN_KERNEL_LABEL}={kernel}", state):
            with suppress(ProvisionError):
                remove_toolchain(engine, image, state)
