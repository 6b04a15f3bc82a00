"""Builds the cells of a fleet and pushes them, signed, to its registry.

Cells that the registry has are not built. If two machines build the same cell, the image that is
signed first stays (docs/decisions/23-matrix-and-fleets.md).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from provision.build.image import Built
from provision.build.workspace import Settings
from provision.engine.docker_api import Engine
from provision.errors import ProvisionError, UsageError
from provision.fleet.fleet_file import Fleet, cell_id
from provision.fleet.matrix.cells import Cell, Planned
from provision.fleet.matrix.results import Results
from provision.fleet.matrix.runner import Outcome
from provision.pin import Pin
from provision.progress import Note, report
from provision.registry.find import Connect, connect, tag_of
from provision.registry.keys import Signer
from provision.registry.manifests import Writable, find_digest
from provision.registry.names import HostTag, Reference, parse_reference
from provision.registry.publish import (
    EngineImage,
    PinTagConflictError,
    add_operator_tags,
    publish,
    pushed_reference,
    retag_existing,
)
from provision.registry.signatures import signature_tag

# What a row has of a cell's result.
_RESULT = {"digest", "reason", "message", "resolution", "first_error", "log", "seconds"}


@dataclass
class FleetRegistry:
    """The registry of a fleet; takes the images of a ``MatrixRun``."""

    settings: Settings
    # The hosts' registry: ``registry.example:5000/drivers``.
    address: str
    # Signs pushed images; None: nothing is pushed, or images stay unsigned.
    signer: Signer | None = None
    # Whether hosts need signed images.
    is_signed: bool = True
    connected: Connect = connect
    # What was pushed by this run: name with digest, by cell.
    pushed: dict[Cell, str] = field(default_factory=dict)
    present: set[Cell] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

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
        is_there = digest is not None and (
            not self.is_signed or find_digest(client, signature_tag(digest)) is not None
        )
        if is_there:
            with self._lock:
                self.present.add(cell)
        return is_there

    def add_operator_tags(self, cells: Iterable[Cell]) -> None:
        """Set the tags of a GPU operator that images of present cells lack."""
        for cell in cells:
            add_operator_tags(self.settings, self._client(cell), self.signer)

    def publish(self, cell: Cell, engine: Engine, built: Built, pin: Pin) -> None:
        """Push and sign the image of a built cell; an image that was pushed meanwhile stays.

        Raises:
            PinTagConflictError: There is another build of its Pin that no trusted key has signed.
        """
        reference = self.reference(cell)
        if tag_of(pin).text != reference.tag:
            raise ProvisionError(
                f"'{reference}' is not pushed: the tag of the built image is '{tag_of(pin).text}'.",
                resolution="Name the cell as 'provision matrix FLEET --list' does.",
            )
        if self.has(cell):
            report(Note(f"{reference} was pushed meanwhile; nothing is pushed"))
            return
        try:
            pushed, _ = publish(
                self.settings,
                EngineImage(engine, built.image_id, pin, self.signer),
                str(reference),
                connected=self.connected,
            )
        except PinTagConflictError:
            if not self._name_theirs(cell, pin):
                raise
            return
        # The second name would keep the image in the engine.
        with suppress(ProvisionError):
            engine.remove(pushed.reference, with_parents=False)
        with self._lock:
            self.pushed[cell] = str(pushed_reference(pushed))

    def _name_theirs(self, cell: Cell, pin: Pin) -> bool:
        """Give another builder's image of a Pin the name of a cell; return whether that worked."""
        digest = retag_existing(self.settings, self._client(cell), pin, self.signer)
        if digest is None:
            return False
        report(Note(f"{self.reference(cell)}: hosts get another build of this Pin, {digest}"))
        with self._lock:
            self.present.add(cell)
        return True

    def _client(self, cell: Cell) -> Writable:
        return self.connected(self.settings, self.reference(cell))


def fleet_registry(settings: Settings, fleet: Fleet | None, signer: Signer | None) -> FleetRegistry:
    """Return the registry of a fleet; without one, that of provision.toml."""
    address = settings.config.registry.address
    if fleet is None:
        if address is None:
            raise UsageError(
                "No registry is named to push to.",
                resolution="Set [registry] address in /etc/provision/provision.toml, or name a"
                " fleet.toml.",
            )
        return FleetRegistry(settings, address, signer)
    if address is None:
        # The authorities, TLS settings and credentials of [registry] then apply to it.
        settings = with_registry(settings, address=fleet.registry)
    return FleetRegistry(settings, fleet.registry, signer, is_signed=not fleet.unsigned)


def with_registry(settings: Settings, **members: object) -> Settings:
    """Return settings with other members of [registry]."""
    registry = settings.config.registry.model_copy(update=members)
    return replace(settings, config=settings.config.model_copy(update={"registry": registry}))


def split_present(
    registry: FleetRegistry, planned: Iterable[Planned]
) -> tuple[list[Planned], list[Cell]]:
    """Return the cells that are to be built, and those that the registry has."""
    lacking: list[Planned] = []
    present: list[Cell] = []
    for one in planned:
        if one.refusal is None and registry.has(one.cell):
            present.append(one.cell)
            report(Note(f"present {one.cell}"))
        else:
            lacking.append(one)
    return lacking, present


def pushed_rows(
    registry: FleetRegistry,
    cells: Sequence[Cell],
    present: Sequence[Cell],
    outcome: Outcome,
    results: Results,
) -> list[dict[str, Any]]:
    """Return what became of each cell of a fleet, as JSON documents.

    Args:
        present: The cells that the registry had before.
        outcome: That of the run for the others.
    """
    troubles, left = dict(outcome.troubles), {*outcome.left}
    # Includes cells that another machine built meanwhile, whatever their result here.
    there = {*present, *registry.present} - registry.pushed.keys()
    rows = []
    for cell in cells:
        result = None if cell in there else results.read(cell)
        said = result.model_dump(mode="json", include=_RESULT) if result else {}
        if cell in registry.pushed:
            more = {"state": "pushed", **said}
        elif error := troubles.get(cell):
            more = {"state": "trouble", "message": error.message, "resolution": error.resolution}
            more["details"] = error.details
        elif cell in there:
            more = {"state": "present"}
        elif cell in left or result is None or result.state == "built":
            # A cell that was built earlier but is not in the registry has not succeeded.
            more = {"state": "left"}
        else:
            more = {"state": result.state, **said}
        name = registry.pushed.get(cell, str(registry.reference(cell)))
        rows.append({**cell_document(cell), "reference": name, **more})
    return rows


def cell_document(cell: Cell) -> dict[str, Any]:
    """Return a cell as a JSON document."""
    return {
        "id": cell_id(cell),
        "driver": cell.row.driver,
        "version": cell.row.version,
        "flavour": cell.row.flavour,
        "distro": cell.column.distro,
        "kernel": cell.column.kernel,
    }
