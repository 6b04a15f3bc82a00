"""The file that names the cells of a fleet, and the registry that has their images.

Cells that the registry has are not built. If two machines build the same cell, the image that is
signed first stays (docs/decisions/06-registries.md).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import RegistryAddress
from provision.distros import find_distro
from provision.documents import Frozen, how_to_correct, load_toml
from provision.errors import ConfigError, Mistake, ProvisionError, UsageError
from provision.fleet import (
    Cell,
    DistroName,
    KernelPattern,
    Planned,
    Selection,
    plan_cells,
)
from provision.fleet.offers import find_offers
from provision.pin import Pin
from provision.progress import Note, report
from provision.registry import HostTag, Reference, parse_reference
from provision.registry.find import Connect, connect
from provision.registry.publish import retag_existing
from provision.registry.repositories import Writable, find_digest
from provision.registry.signatures import Signer, signature_tag

# The word of fleet.toml for all kernels of an archive, and the word of the matrix.
_ARCHIVE, _ALL = "archive", "all"
_MOST_CELLS = 10_000


class Fleet(Frozen):
    """A fleet.toml."""

    described_in: ClassVar[str | None] = "docs/how-to/build-for-a-fleet.md"

    # The hosts' registry: ``registry.example:5000/drivers``.
    registry: RegistryAddress
    # Whether images are pushed without a signature.
    unsigned: bool = False
    distros: tuple[DistroName, ...] = ()
    kernels: tuple[KernelPattern, ...] = Field(default=("latest-3",), min_length=1)
    builds: tuple[Selection, ...] = Field(min_length=1)

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


def cell_id(cell: Cell) -> str:
    """Return the name of a cell: ``nvidia/535.261.03/open/debian:12/6.1.0-49-amd64``."""
    return "/".join(cell.members().values())


@dataclass(frozen=True, slots=True)
class FleetRegistry:
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

    def _client(self, cell: Cell) -> Writable:
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


def cell_document(cell: Cell) -> dict[str, Any]:
    """Return a cell as a JSON document."""
    return {"id": cell_id(cell), **cell.members()}
