"""Builds the cells of a fleet.toml and pushes them, signed, to the fleet's registry.

A machine that builds a cell needs only its name, not the other cells or the state of the archives.

Cells that the registry has are not built. If two machines build the same cell, the image that is
signed first stays (docs/decisions/23-matrix-and-fleets.md).
"""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError, model_validator

from provision.build.image import Built
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import RegistryAddress
from provision.distros import find_distro
from provision.documents import Frozen, how_to_correct, load_toml
from provision.engine.docker_api import Engine
from provision.errors import ConfigError, Mistake, ProvisionError, UsageError
from provision.fleet.matrix.cells import (
    Cell,
    Column,
    DistroName,
    KernelPattern,
    Planned,
    Row,
    Selection,
    plan_cells,
)
from provision.fleet.matrix.offers import find_offers
from provision.fleet.matrix.results import Outcome, Results
from provision.pin import AbsolutePath, KernelRelease, Name, Pin, Version
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

# The word of fleet.toml for all kernels of an archive, and the word of the matrix.
_ARCHIVE, _ALL = "archive", "all"
Key = Annotated[str, StringConstraints(pattern=r"^(/|pkcs11:)[^\x00\n]*$")]
_MOST_CELLS = 10_000


class Fleet(Frozen):
    """A fleet.toml."""

    described_in: ClassVar[str | None] = "docs/reference/fleet-toml.md"

    # The hosts' registry: ``registry.example:5000/drivers``.
    registry: RegistryAddress
    # Private key that signs images: a file, or a PKCS#11 URI; None: that of provision.toml.
    sign_key: Key | None = None
    # File with its password or PIN; None: that of provision.toml.
    sign_password_file: AbsolutePath | None = None
    # Whether images are pushed without a signature.
    unsigned: bool = False
    jobs: int = Field(default=1, ge=1, le=64)
    # Network of the containers that download; None: what provision.toml says.
    network: str | None = None
    distros: tuple[DistroName, ...] = ()
    kernels: tuple[KernelPattern, ...] = Field(default=("latest-3",), min_length=1)
    builds: tuple[Selection, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Fleet:
        if self.unsigned and self.sign_key is not None:
            raise ValueError("sign_key: can't be combined with unsigned = true; remove one of them")
        return self

    def selections(self) -> list[Selection]:
        """Return the builds, with what the file says for those that don't."""
        found = []
        for build in self.builds:
            kernels = [_ALL if k == _ARCHIVE else k for k in build.kernels or self.kernels]
            more = {"distros": build.distros or self.distros, "kernels": tuple(kernels)}
            found.append(build.model_copy(update=more))
        return found


def load_fleet(path: Path, catalogue: Catalogue) -> Fleet:
    """Read fleet.toml."""
    wrong: list[Mistake] = []
    fleet = None
    try:
        fleet = load_toml(path, Fleet)
    except ConfigError as error:
        wrong += error.mistakes
        if any(not mistake.path for mistake in wrong):
            raise
    seen = {mistake.path for mistake in wrong}
    # A name of the right form may still be unknown.
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    wrong += [one for one in _unknown(raw, catalogue) if one.path not in seen]
    if fleet is None or wrong:
        raise ConfigError(str(path), wrong, resolution=how_to_correct(path, Fleet))
    return fleet


def _unknown(raw: Mapping[str, Any], catalogue: Catalogue) -> Iterator[Mistake]:
    builds = raw.get("builds")
    tables = [("", raw)]
    if isinstance(builds, list):
        tables += [(f"builds.{at}.", one) for at, one in enumerate(builds) if isinstance(one, dict)]
    for place, table in tables:
        for at, name in _texts(table, "distros"):
            try:
                find_distro(name)
            except ProvisionError as error:
                hint = f" {error.resolution}" if error.resolution else ""
                yield Mistake(f"{place}distros.{at}", f"{error.message}{hint}")
        for at, name in _texts(table, "drivers"):
            if name != _ALL and name not in catalogue.names:
                text = f"there is no driver '{name}'; 'provision drivers' lists the drivers"
                yield Mistake(f"{place}drivers.{at}", text)
        if place and not table.get("distros") and not raw.get("distros"):
            text = 'missing, and the file has no default either: distros = ["debian:12"]'
            yield Mistake(f"{place}distros", text)


def _texts(table: Mapping[str, Any], key: str) -> Iterator[tuple[int, str]]:
    found = table.get(key)
    for at, one in enumerate(found if isinstance(found, list) else ()):
        if isinstance(one, str):
            yield at, one


def fleet_cells(settings: Settings, path: Path, fleet: Fleet) -> list[Planned]:
    """Return all cells of a fleet, each once, in the order of the file."""
    found: dict[Cell, Planned] = {}
    wrong: list[Mistake] = []
    for at, selection in enumerate(fleet.selections()):
        try:
            offers = find_offers(settings, selection)
            planned = plan_cells(selection, offers)
        except UsageError as error:
            text = " ".join(filter(None, (error.message, error.resolution)))
            wrong.append(Mistake(f"builds.{at}", f"{text} {error.details or ''}".strip()))
            continue
        for one in planned:
            # If one build refuses a cell and another forces it, it is built.
            known = found.get(one.cell)
            if known is None or known.refusal is not None:
                found[one.cell] = one
    if len(found) > _MOST_CELLS:
        text = f"these are {len(found)} cells, and the limit is {_MOST_CELLS}; name fewer kernels"
        wrong.append(Mistake("builds", text))
    if wrong:
        raise ConfigError(str(path), wrong, resolution=how_to_correct(path, Fleet))
    return list(found.values())


_ROW: TypeAdapter[tuple[str, str, str]] = TypeAdapter(tuple[Name, Version, Name])
_COLUMN: TypeAdapter[tuple[str, str]] = TypeAdapter(tuple[DistroName, KernelRelease])


def cell_id(cell: Cell) -> str:
    """Return the name of a cell: ``nvidia/535.261.03/open/debian:12/6.1.0-49-amd64``."""
    return "/".join(cell.members().values())


def read_cell(text: str) -> Cell:
    """Return the cell of a name."""
    parts = text.split("/")
    try:
        driver, version, flavour = _ROW.validate_python(tuple(parts[:3]))
        distro, kernel = _COLUMN.validate_python(tuple(parts[3:]))
    except ValidationError as error:
        raise UsageError(
            f"'{text}' is not a cell.",
            resolution="Name it as 'provision matrix FLEET --list' does:"
            " DRIVER/VERSION/FLAVOUR/DISTRO:VERSION/KERNEL.",
        ) from error
    return Cell(Row(driver, version, flavour), Column(distro, kernel))


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
    return {"id": cell_id(cell), **cell.members()}
