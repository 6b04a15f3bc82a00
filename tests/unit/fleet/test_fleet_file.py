"""fleet.toml: what it means, and what is said of one that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kit.files import write
from kit.upstream import demo_recipe
from provision.build.workspace import Settings, load_settings
from provision.catalogue import Catalogue
from provision.config import Config, RegistryConfig, catalogue_folders
from provision.errors import ConfigError
from provision.fleet import Cell, Column, Fleet, Row, Selection, load_fleet, offers
from provision.fleet.builds import fleet_registry
from provision.fleet.offers import fleet_cells
from provision.registry.find import registry_of
from unit.engine.fake_engine import using
from unit.fake_archive import AptEngine, stanza, write_apt_sources
from unit.recipes import archive_source

KERNELS = ("6.1.0-50-amd64", "6.1.0-47-amd64")
HEAD = 'registry = "registry.example/drivers"\n'


class Drivers(Catalogue):
    """A catalogue of names."""

    def __init__(self) -> None:
        super().__init__([])

    @property
    def names(self) -> list[str]:
        return ["demo", "other"]


def load(folder: Path, text: str) -> Fleet:
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
    assert not fleet.unsigned


def test_all_mistakes_are_named_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load(
            tmp_path,
            "registry = 'not a registry'\nunsigned = 0\nsigning = 1\ndistros = ['plan9:4']\n"
            "[[builds]]\ndrivers = ['nobody', 'demo']\nkernels = ['newest']\n"
            "[[builds]]\nversions = []\ndistros = ['debian:99']\n",
        )
    said = {mistake.path: mistake.message for mistake in refused.value.mistakes}
    assert set(said) == {
        "registry",
        "unsigned",
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


def plan(folder: Path, text: str) -> list[str]:
    """Return the cells of a fleet on a host whose archive has two kernels."""
    write(folder / "etc/os-release", "ID=debian\nVERSION_ID=12\n")
    write_apt_sources(folder)
    write(folder / "drivers/demo/driver.toml", demo_recipe(archive_source("2.0", "1.2")))
    headers = "\n".join(stanza(f"linux-headers-{kernel}", "1") for kernel in KERNELS)
    engine = AptEngine({("bookworm", "main"): headers})
    settings = replace(load_settings(folder, catalogues=[folder / "drivers"]), state=folder)
    fleet = load(folder, f"{HEAD}distros = ['debian:12']\n{text}")
    planned = fleet_cells(using(settings, engine), folder / "fleet.toml", fleet)
    return [one.cell.id for one in planned if one.refusal is None]


def test_each_cell_is_there_once(tmp_path: Path) -> None:
    text = (
        "[[builds]]\ndrivers = ['demo']\nkernels = ['latest']\nforce = true\n"
        "[[builds]]\ndrivers = ['demo']\nversions = ['latest-2']\nkernels = ['archive']\n"
        "force = true\n"
    )
    assert plan(tmp_path, text) == [
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
        plan(tmp_path, text)
    said = {mistake.path: mistake.message for mistake in refused.value.mistakes}
    assert set(said) == {"builds.0", "builds.1"}
    assert "9.9" in said["builds.1"]
    monkeypatch.setattr(offers, "_MOST_CELLS", 1)
    with pytest.raises(ConfigError):
        plan(tmp_path, "[[builds]]\ndrivers = ['demo']\n")


@pytest.mark.parametrize(("address", "expected"), [(None, "etc/ca.pem"), ("other.example/x", None)])
def test_the_fleets_registry_is_the_builders_own_unless_it_has_another(
    tmp_path: Path, address: str | None, expected: str | None
) -> None:
    """Else the file of authorities that an error asks for would change nothing."""
    config = Config(registry=RegistryConfig(address=address, ca="/etc/ca.pem"))
    settings = Settings(tmp_path, config, Drivers(), tmp_path)
    fleet = load(tmp_path, f"{HEAD}distros = ['debian:12']\n[[builds]]\ndrivers = ['demo']\n")
    place = fleet_registry(settings, fleet, None)
    cell = Cell(Row("demo", "2.0", "open"), Column("debian:12", KERNELS[0]))
    found = registry_of(place.settings, place.reference(cell)).ca
    assert found == (tmp_path / expected if expected else None)
