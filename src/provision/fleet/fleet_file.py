"""fleet.toml: the drivers that are built for a fleet, and the cells that follow from it.

A machine that builds a cell needs only its name, not the other cells or the state of the archives.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError, model_validator

from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import RegistryAddress
from provision.distros import find_distro
from provision.documents import Frozen, how_to_correct, load_toml
from provision.errors import ConfigError, Mistake, ProvisionError, UsageError
from provision.fleet.matrix.cells import Cell, Column, Planned, Row, Selection, plan_cells
from provision.fleet.matrix.offers import find_offers
from provision.fleet.matrix.results import DistroName
from provision.pin import AbsolutePath, KernelRelease, Name, Version

# The word of fleet.toml for all kernels of an archive, and the word of the matrix.
_ARCHIVE, _ALL = "archive", "all"
_KERNEL = r"archive|all|latest(-[1-9][0-9]{0,3})?|[0-9][A-Za-z0-9._+~*?\[\]!-]*"
Kernel = Annotated[str, StringConstraints(pattern=rf"^({_KERNEL})$", max_length=128)]
Key = Annotated[str, StringConstraints(pattern=r"^(/|pkcs11:)[^\x00\n]*$")]
_MOST_CELLS = 10_000


class Build(Frozen):
    """One ``[[builds]]``: drivers, and their kernels."""

    # Names of the catalogue, or ``all``.
    drivers: tuple[Name, ...] = Field(min_length=1)
    # Versions, branches, kinds of branches, ``latest``, ``latest-N`` or ``all``.
    versions: tuple[Version, ...] = Field(default=("production",), min_length=1)
    # Names, ``default`` or ``all``.
    flavours: tuple[Name, ...] = Field(default=("default",), min_length=1)
    # Such as ``debian:12``; empty: those of the file.
    distros: tuple[DistroName, ...] = ()
    # Releases, patterns, ``latest-N`` or ``archive``; empty: those of the file.
    kernels: tuple[Kernel, ...] = ()
    # Whether cells are built for kernels that a recipe does not name.
    force: bool = False


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
    kernels: tuple[Kernel, ...] = Field(default=("latest-3",), min_length=1)
    builds: tuple[Build, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Fleet:
        if self.unsigned and self.sign_key is not None:
            raise ValueError("sign_key: can't be combined with unsigned = true; remove one of them")
        return self

    def selections(self) -> list[Selection]:
        """Return the selection of each build."""
        return [
            Selection(
                drivers=build.drivers,
                distros=build.distros or self.distros,
                kernels=tuple(
                    _ALL if name == _ARCHIVE else name for name in build.kernels or self.kernels
                ),
                flavours=build.flavours,
                versions=build.versions,
                force=build.force,
            )
            for build in self.builds
        ]


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
    row, column = cell.row, cell.column
    return f"{row.driver}/{row.version}/{row.flavour}/{column.distro}/{column.kernel}"


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
