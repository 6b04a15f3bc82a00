"""fleet.toml: what it means, and what is said of one that is wrong."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config, catalogue_folders
from provision.errors import ConfigError, NotFoundError, UsageError
from provision.fleet import prebuild
from provision.fleet.matrix.cells import Cell, Column, Offer, Offers, Row, Selection
from provision.fleet.prebuild import cell_id, fleet_cells, load_fleet, read_cell
from unit.engine.fake_engine import using
from unit.recipes import recipe

KERNELS = ("6.1.0-50-amd64", "6.1.0-47-amd64")
HEAD = 'registry = "registry.example/drivers"\n'


class Drivers(Catalogue):
    """A catalogue of names."""

    def __init__(self) -> None:
        super().__init__([])

    @property
    def names(self) -> list[str]:
        return ["demo", "other"]


def load(folder: Path, text: str) -> prebuild.Fleet:
    path = folder / "fleet.toml"
    path.write_text(text)
    return load_fleet(path, Drivers())


def test_a_build_has_what_the_file_has_for_all(tmp_path: Path) -> None:
    fleet = load(
        tmp_path,
        f"{HEAD}distros = ['debian:12']\nkernels = ['archive']\n"
        "[[builds]]\ndrivers = ['demo']\n"
        "[[builds]]\ndrivers = ['other']\nversions = ['535', 'lts']\nflavours = ['all']\n"
        "distros = ['rocky:9']\nkernels = ['latest-2', '6.1.0-*']\nforce = true\n",
    )
    assert fleet.selections() == [
        Selection(drivers=("demo",), distros=("debian:12",), kernels=("all",)),
        Selection(
            drivers=("other",),
            distros=("rocky:9",),
            kernels=("latest-2", "6.1.0-*"),
            flavours=("all",),
            versions=("535", "lts"),
            force=True,
        ),
    ]
    assert (fleet.jobs, fleet.unsigned) == (1, False)


def test_all_mistakes_are_named_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load(
            tmp_path,
            "registry = 'not a registry'\njobs = 0\nsigning = 1\ndistros = ['plan9:4']\n"
            "[[builds]]\ndrivers = ['nobody', 'demo']\nkernels = ['newest']\n"
            "[[builds]]\nversions = []\ndistros = ['debian:99']\n",
        )
    said = {mistake.path: mistake.message for mistake in refused.value.mistakes}
    assert set(said) == {
        "registry",
        "jobs",
        "signing",
        "distros.0",
        "builds.0.drivers.0",
        "builds.0.kernels.0",
        "builds.1.drivers",
        "builds.1.versions",
        "builds.1.distros.0",
    }
    assert "'provision drivers' lists" in said["builds.0.drivers.0"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"{HEAD}[[builds]]\ndrivers = ['demo']\n", "builds.0.distros"),
        (f"{HEAD}builds = 3\n", "builds"),
        (f"{HEAD}builds = [3]\n", "builds.0"),
        (HEAD, "builds"),
        (f"{HEAD}distros = 'debian:12'\n[[builds]]\ndrivers = ['demo']\n", "distros"),
        ("registry =\n", ""),
    ],
)
def test_each_mistake_has_its_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)
    assert place in [mistake.path for mistake in refused.value.mistakes]


def test_the_example_is_a_fleet() -> None:
    example = Path(__file__).parents[3] / "docs/examples/fleet/fleet.toml"
    fleet = load_fleet(example, Catalogue(catalogue_folders()))
    assert len(fleet.selections()) == 2


def test_a_key_and_no_signatures_do_not_go_together(tmp_path: Path) -> None:
    more = "unsigned = true\nsign_key = '/k'\ndistros = ['debian:12']\n"
    with pytest.raises(ConfigError):
        load(tmp_path, f"{HEAD}{more}[[builds]]\ndrivers = ['demo']\n")
    with pytest.raises(NotFoundError):
        load_fleet(tmp_path / "none.toml", Drivers())


def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, offers: Offers) -> list[str]:
    monkeypatch.setattr(prebuild, "find_offers", lambda *_given, **_more: offers)
    fleet = load(tmp_path, f"{HEAD}distros = ['debian:12']\n{text}")
    settings = Settings(tmp_path, Config(), Drivers(), tmp_path)
    planned = fleet_cells(using(settings, _no_engine), tmp_path / "fleet.toml", fleet)
    return [cell_id(one.cell) for one in planned if one.refusal is None]


def _no_engine() -> Any:  # noqa: ANN401 - never called
    raise AssertionError


OFFERS = Offers(
    (Offer("demo", "open", "debian:12", ("2.0", "1.2"), recipe=recipe()),),
    {"debian:12": KERNELS},
)


def test_each_cell_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "[[builds]]\ndrivers = ['demo']\nkernels = ['latest']\nforce = true\n"
        "[[builds]]\ndrivers = ['demo']\nversions = ['latest-2']\nkernels = ['archive']\n"
        "force = true\n"
    )
    assert plan(tmp_path, monkeypatch, text, OFFERS) == [
        f"demo/2.0/open/debian:12/{KERNELS[0]}",
        f"demo/1.2/open/debian:12/{KERNELS[0]}",
        f"demo/2.0/open/debian:12/{KERNELS[1]}",
        f"demo/1.2/open/debian:12/{KERNELS[1]}",
    ]


def test_what_is_nowhere_is_named_for_every_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "[[builds]]\ndrivers = ['demo']\nkernels = ['5.5.5']\nversions=['7']\n"
        "[[builds]]\ndrivers = ['demo']\nversions = ['9.9']\n"
        "[[builds]]\ndrivers = ['demo']\n"
    )
    with pytest.raises(ConfigError) as refused:
        plan(tmp_path, monkeypatch, text, OFFERS)
    said = {mistake.path: mistake.message for mistake in refused.value.mistakes}
    assert set(said) == {"builds.0", "builds.1"}
    assert "9.9" in said["builds.1"]
    monkeypatch.setattr(prebuild, "_MOST_CELLS", 1)
    with pytest.raises(ConfigError):
        plan(tmp_path, monkeypatch, "[[builds]]\ndrivers = ['demo']\n", OFFERS)


NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
VERSIONS = st.from_regex(r"[0-9A-Za-z][A-Za-z0-9.+~_-]{0,20}", fullmatch=True)
RELEASES = st.from_regex(r"[0-9][A-Za-z0-9._+~-]{0,20}", fullmatch=True)
DISTROS = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,9}:[0-9A-Za-z][A-Za-z0-9._-]{0,9}", fullmatch=True)


@given(NAMES, VERSIONS, NAMES, DISTROS, RELEASES)
def test_a_cells_name_means_the_cell(
    driver: str, version: str, flavour: str, distro: str, kernel: str
) -> None:
    cell = Cell(Row(driver, version, flavour), Column(distro, kernel))
    assert read_cell(cell_id(cell)) == cell


@given(st.text(max_size=60))
def test_any_other_text_is_refused(text: str) -> None:
    with suppress(UsageError):
        assert cell_id(read_cell(text)) == text


@pytest.mark.parametrize(
    "text", ["", "a/1/b/debian:12", "a/1/b/debian/6.1", "a/1/b/d:1/6;id", "../1/b/d:1/6"]
)
def test_what_is_no_cell(text: str) -> None:
    with pytest.raises(UsageError):
        read_cell(text)
