"""The cells of a compatibility matrix, and their choice from what archives and vendors offer.

Options or a fleet.toml select them. ``fleet.offers`` gathers the offers, ``fleet.builds`` builds
them, and ``fleet.results`` holds the result of each cell.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from provision.build.request import VersionRequest
from provision.build.versions import suitable_versions
from provision.catalogue import Catalogue, Recipe
from provision.catalogue.fields import DEFAULT_VERSION, NEWEST_WITHOUT_KINDS, is_of
from provision.config import RegistryAddress
from provision.distros import version_key
from provision.distros.distro import find_distro
from provision.documents import Frozen, how_to_correct, like, load_toml
from provision.errors import ConfigError, Mistake, NotFoundError, ProvisionError, UsageError
from provision.host.kernels import kernel_series
from provision.pin import KernelRelease, Name, Version

DEFAULT = "default"
_LATEST = re.compile(r"latest(?:-([1-9][0-9]{0,3}))?")
_ALL = "all"
_GLOB = re.compile(r"[*?\[]")
_SHOWN = 8
# The word of fleet.toml for all kernels of an archive, and the word of the matrix.
_ARCHIVE = "archive"
_RELEASE: TypeAdapter[str] = TypeAdapter(KernelRelease)
_KERNEL = r"archive|all|latest(-[1-9][0-9]{0,3})?|[0-9][A-Za-z0-9._+~*?\[\]!-]*"
KernelPattern = Annotated[
    str, like(rf"^({_KERNEL})$", "6.1.0-*, archive, all or latest-2", max_length=128)
]
CardId = Annotated[str, like(r"^[0-9a-f]{4}:[0-9a-f]{4}$", "10de:2330")]
DistroName = Annotated[str, like(r"^[a-z0-9][a-z0-9._-]*:[0-9A-Za-z][A-Za-z0-9._-]*$", "debian:12")]


class Row(NamedTuple):
    """A driver in one version and flavour."""

    driver: str
    version: str
    flavour: str

    def __str__(self) -> str:
        return f"{self.driver} {self.version} ({self.flavour})"


class Column(NamedTuple):
    """A kernel of a distro, which is named as ``debian:12``."""

    distro: str
    kernel: str

    def __str__(self) -> str:
        return f"{self.distro} {self.kernel}"


class Cell(NamedTuple):
    """One build of the matrix."""

    row: Row
    column: Column

    def __str__(self) -> str:
        return f"{self.row} on {self.column}"

    @property
    def id(self) -> str:
        """Its name: ``nvidia/535.261.03/open/debian:12/6.1.0-49-amd64``."""
        return "/".join(self.members().values())

    def members(self) -> dict[str, Any]:
        """Return driver, version, flavour, distro and kernel by these names."""
        return self.row._asdict() | self.column._asdict()


class Planned(NamedTuple):
    """A cell of a plan, and why it is not built."""

    cell: Cell
    # Why it is not supported; None: it is to be built.
    refusal: str | None = None
    resolution: str | None = None


class Selection(Frozen):
    """The selection of cells; in a fleet.toml, one ``[[builds]]``."""

    # Names of the catalogue, or ``all``.
    drivers: tuple[Name, ...] = Field(min_length=1)
    # Versions, branches, kinds of branches, ``latest``, ``latest-N`` or ``all``.
    versions: tuple[Version, ...] = Field(default=(DEFAULT_VERSION,), min_length=1)
    # Names, ``default`` or ``all``.
    flavours: tuple[Name, ...] = Field(default=(DEFAULT,), min_length=1)
    # Cards of the hosts, as ``lspci -n`` prints them: ``default`` stands for the flavours that they
    # need, and versions are those that serve them.
    cards: tuple[CardId, ...] = ()
    # Such as ``debian:12``; empty: those of the file, or the host's.
    distros: tuple[DistroName, ...] = ()
    # Releases, patterns (``6.1.0-*``), ``latest``, ``latest-N``, ``all``, ``archive``; empty: those
    # of the file.
    kernels: tuple[KernelPattern, ...] = ()
    # Whether cells that are known to fail are built.
    force: bool = False


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


class Offer(NamedTuple):
    """The versions of a driver in one flavour for a distro."""

    driver: str
    flavour: str
    # Such as ``debian:12``.
    distro: str
    # The newest first.
    versions: tuple[str, ...] = ()
    is_default: bool = True
    # The recipe with the supported kernels; None: nothing is to be built.
    recipe: Recipe | None = None
    refusal: str | None = None
    # The versions that a kind of branch (``lts``) stands for, by its name.
    kinds: Mapping[str, tuple[str, ...]] = {}


class Offers(NamedTuple):
    """The versions and kernels that can be chosen."""

    offers: tuple[Offer, ...]
    # By distro, the newest first; None where they can't be listed and have to be named.
    kernels: Mapping[str, tuple[str, ...] | None] = {}


def plan_cells(selection: Selection, offers: Offers) -> list[Planned]:
    """Return the cells of a selection: every row in every column.

    The cells of a kernel follow each other, because their builds begin with the same layers.
    """
    columns = choose_kernels(selection.kernels, offers.kernels)
    rows = choose_rows(selection, offers.offers, columns)
    by_place = {(o.driver, o.flavour, o.distro): o for o in offers.offers}
    return [
        _planned(Cell(row, column), by_place, force=selection.force)
        for column in columns
        for row in rows
    ]


def _planned(cell: Cell, offers: Mapping[tuple[str, str, str], Offer], *, force: bool) -> Planned:
    row, column = cell.row, cell.column
    offer = offers[row.driver, row.flavour, column.distro]
    if row.version not in offer.versions:
        has = ", ".join(offer.versions[:_SHOWN]) or "no version"
        lacks = f"{column.distro} has no {row.driver} {row.version}: it has {has}"
        refusal = offer.refusal or lacks
        return Planned(cell, refusal.rstrip("."))
    recipe = offer.recipe
    if recipe is None or force:
        return Planned(cell)
    known = recipe.standing(version=row.version, flavour=row.flavour, kernel_release=column.kernel)
    if known.known != "fails" or known.row is None:
        return Planned(cell)
    return Planned(
        cell,
        f"{row.driver} {row.version} is known to fail on {column.kernel}: {known.row.reason}",
        "Build it with --force, or select a version that supports this kernel"
        f" ('provision drivers kernels {row.driver}' lists them).",
    )


def choose_kernels(
    names: Sequence[str], listed: Mapping[str, tuple[str, ...] | None]
) -> list[Column]:
    """Return the selected kernels among those that are ``listed``, by distro, the newest first."""
    chosen: dict[str, list[str]] = {distro: [] for distro in listed}
    problems = []
    for name in names:
        found = {distro: _matching(name, known or ()) for distro, known in listed.items()}
        unlisted = [distro for distro, known in listed.items() if known is None]
        if not any(found.values()):
            # A kernel that no index lists may still be in a tree, or at a snapshot of the archive.
            sole = unlisted or list(listed)
            if len(sole) != 1 or not _is_release(name):
                problems.append(name)
                continue
            found[sole[0]] = [name]
        for distro, releases in found.items():
            chosen[distro] += releases
    if problems:
        raise _no_kernel(problems, listed)
    return [
        Column(distro, release)
        for distro, releases in chosen.items()
        for release in _in_order(dict.fromkeys(releases), listed[distro] or ())
    ]


def _is_release(name: str) -> bool:
    try:
        return bool(_RELEASE.validate_python(name))
    except ValidationError:
        return False


def _matching(name: str, known: Sequence[str]) -> list[str]:
    if name == _ALL:
        return list(known)
    if count := latest_count(name):
        return _newest_of_each_series(known, count)
    return [release for release in known if fnmatchcase(release, name)]


def _newest_of_each_series(known: Sequence[str], count: int) -> list[str]:
    """Return the first kernels of each series: no host leaves its series for backports unasked."""
    taken: Counter[str] = Counter()
    found = []
    for release in known:
        series = kernel_series(release)
        if taken[series] < count:
            taken[series] += 1
            found.append(release)
    return found


def _in_order(releases: Iterable[str], known: Sequence[str]) -> list[str]:
    ranks = {release: rank for rank, release in enumerate(known)}
    return sorted(releases, key=lambda release: ranks.get(release, len(ranks)))


def _no_kernel(problems: Sequence[str], listed: Mapping[str, tuple[str, ...] | None]) -> UsageError:
    lines = []
    for distro, known in listed.items():
        text = "its kernels can't be listed" if known is None else ", ".join(known[:_SHOWN])
        more = ", …" if known and len(known) > _SHOWN else ""
        lines.append(f"{distro}: {text or 'it has none'}{more}")
    return UsageError(
        f"No chosen distro has these kernels: {', '.join(problems)}.",
        resolution="Name kernels that 'provision drivers kernels DRIVER --distro ID:VERSION' lists,"
        " patterns ('6.1.0-*'), latest-N or all. A kernel that is not listed needs a single distro:"
        " --distros ID:VERSION --kernels RELEASE",
        details="\n".join(lines),
    )


def choose_rows(
    selection: Selection, offers: Sequence[Offer], columns: Sequence[Column] = ()
) -> list[Row]:
    """Return the selected drivers, flavours and versions, in this order.

    A driver that has none of the flavours is included with its default one. ``latest`` stands for
    what a host with each of the kernels would install.
    """
    rows: list[Row] = []
    used_flavours: set[str] = set()
    used_versions: set[str] = set()
    for driver, group in groupby(offers, key=lambda offer: offer.driver):
        own = list(group)
        for flavour in _flavours(own, selection.flavours):
            used_flavours.add(flavour)
            own_offers = [offer for offer in own if offer.flavour == flavour]
            versions = set(_versions(selection.versions, own_offers, columns, used_versions))
            newest = sorted(versions, key=version_key, reverse=True)
            rows += [Row(driver, version, flavour) for version in newest]
    _check_used("flavours", selection.flavours, used_flavours, offers)
    _check_used("versions", selection.versions, used_versions, offers)
    if not rows:
        raise NotFoundError(
            "No driver is offered for any of the distros.",
            resolution="'provision drivers' lists the drivers and where their sources come from;"
            " 'provision drivers --distros' lists the distros.",
            details="\n".join(dict.fromkeys(o.refusal for o in offers if o.refusal)),
        )
    return rows


def _flavours(offers: Sequence[Offer], selected: Sequence[str]) -> list[str]:
    known = list(dict.fromkeys(offer.flavour for offer in offers))
    default = {offer.flavour for offer in offers if offer.is_default}
    if _ALL in selected:
        return known
    named = {*selected, *(default if DEFAULT in selected else ())}
    return [name for name in known if name in named] or [n for n in known if n in default]


def _versions(
    names: Sequence[str], offers: Sequence[Offer], columns: Sequence[Column], used: set[str]
) -> Iterator[str]:
    """Yield the chosen versions of a driver and flavour; add names that matched to ``used``."""
    for name in names:
        for offer in offers:
            if name == _ALL:
                found = list(offer.versions)
            elif name in offer.kinds:
                found = list(offer.kinds[name])
            elif count := newest_count(name):
                found = _latest(offer, count, columns)
            else:
                # A branch stands for its versions: 535 for 535.261.03.
                exact = (name,) if name in offer.versions else ()
                found = list(exact or (v for v in offer.versions if is_of(v, name)))
            if found:
                used.add(name)
            yield from found


def _latest(offer: Offer, count: int, columns: Iterable[Column]) -> list[str]:
    """Return the versions that a host takes first for any of the kernels, ``count`` for each."""
    recipe = offer.recipe
    found: dict[str, None] = {}
    if recipe is not None:
        for column in columns:
            if column.distro == offer.distro:
                _, fitting = suitable_versions(
                    recipe, offer.flavour, offer.versions, VersionRequest(), column.kernel
                )
                found.update(dict.fromkeys(islice(fitting, count)))
    return list(found) or list(offer.versions[:count])


def _check_used(what: str, names: Sequence[str], used: set[str], offers: Sequence[Offer]) -> None:
    words = {_ALL, DEFAULT}
    unused = [n for n in names if n not in used | words and not newest_count(n)]
    if not unused:
        return
    known = [
        f"{o.driver} ({o.flavour}), {o.distro}: "
        + (", ".join(o.versions[:_SHOWN]) or o.refusal or "no version")
        for o in offers
    ]
    raise UsageError(
        f"No chosen driver has these {what}: {', '.join(unused)}.",
        resolution=f"Name {what} that are offered (they are listed above), or use --{what} all.",
        details="\n".join(known),
    )


def newest_count(name: str) -> int | None:
    """Return how many of the newest versions a name stands for; None for any other name.

    The default stands for one, of a driver whose branches have no kinds.
    """
    return 1 if name in NEWEST_WITHOUT_KINDS else latest_count(name)


def latest_count(name: str) -> int | None:
    """Return the number in a name such as ``latest-3``; None for any other name."""
    latest = _LATEST.fullmatch(name)
    return int(latest[1] or 1) if latest else None


def has_pattern(name: str) -> bool:
    """Return whether a name is a pattern or keyword, so that the kernels have to be listed."""
    return name == _ALL or bool(_LATEST.fullmatch(name)) or bool(_GLOB.search(name))
