"""What our pages tell people to write, on hosts that reach NVIDIA on a day in November 2026.

The archives are made up here; `engine/test_readme_online.py` asks Debian's own.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

import pytest

from kit.artifact import write
from kit.files import plug_in
from kit.nvidia_day import (
    AMPERE,
    BLACKWELL,
    PASCAL,
    NvidiaDay,
    nvidia_day,
    of_pages,
    readme,
)
from kit.pages import snippet
from provision.build import versions
from provision.build.request import (
    DriverRequest,
    choose_distro,
    choose_tree,
    packaged_distro,
)
from provision.build.solve import SolvingSession
from provision.build.versions import (
    cards_for,
    choose_version,
    version_context,
)
from provision.build.workspace import Settings, load_settings
from provision.catalogue.suitability import chosen_flavour
from provision.distros.distro import find_distro, source_names
from provision.errors import NotFoundError, UsageError
from provision.fleet import Selection, choose_rows
from provision.fleet.offers import find_offers
from provision.sources.candidates import packages_of
from provision.sources.upstream import kept, known_branches, outdated_tables
from unit.engine.fake_engine import using
from unit.fake_archive import BASE_IMAGE, AptEngine, stanza, write_apt_sources

# A GeForce GTX 780.
KEPLER = "1004"
# No card of the recipe's day.
NEWER = "4123"
TODAY = date(2026, 11, 28)
# Debian 12 and 13, and Ubuntu 24.04 with its HWE kernel.
HOSTS = {
    "debian:12": ('ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n', "6.1.0-56-amd64"),
    "debian:13": ('ID=debian\nVERSION_ID="13"\nVERSION_CODENAME=trixie\n', "6.12.117+deb13-amd64"),
    "ubuntu:24.04": (
        'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n',
        "6.17.0-14-generic",
    ),
}
# What the distro itself packages in the layout that the recipe names; Ubuntu has another.
PACKAGED = {"debian:12": "535.261.03", "debian:13": "550.163.01", "ubuntu:24.04": "none"}
PCI_IDS = b"""\
10dd  Other
\t1c81  Not this one
10de  NVIDIA Corporation
\t1c81  GP107 [GeForce GTX 1050]
\t\t1028 1234  Of a notebook
\t2204  GA102 [GeForce RTX 3090]
10df  Emulex Corporation
\t2b85  Nor this one
"""


def version_to_build(settings: Settings, request: DriverRequest) -> tuple[str, str]:
    """The version and flavour that a build for a kernel takes, which needs no engine."""
    kernel = request.kernel or ""
    recipe = settings.catalogue.entry(request.driver).recipe
    tree = choose_tree(settings, kernel, request.distro)
    if tree is None:
        distro = choose_distro(settings, packaged_distro(settings, request.distro, kernel))
    else:
        distro = tree.toolchain or tree.distro
    with SolvingSession(settings, distro, (recipe,)) as session:
        asked, context = version_context(settings, request, distro, session.archive)
        flavour = chosen_flavour(recipe, request.flavour, request.version, asked.cards)
        untried = settings.config.policy.untried
        chosen = choose_version(
            recipe, flavour, asked, kernel, context, untried=untried, force=request.force
        )
    return chosen.version, flavour


_IMAGE = BASE_IMAGE._replace(tags=("debian:bookworm", "debian:trixie", "ubuntu:noble"))


@dataclass
class Day:
    """NVIDIA's servers, and hosts that reach them."""

    folder: Path
    vendor: NvidiaDay
    engine: AptEngine = field(default_factory=lambda: AptEngine({}, _IMAGE))

    def host(self, distro: str = "debian:12", kernel: str | None = None) -> Settings:
        os_release, usual = HOSTS[distro]
        name = distro.partition(":")[0]
        root = self.folder / "host"
        shutil.rmtree(root, ignore_errors=True)
        write(root / "etc/os-release", os_release.encode())
        (root / "lib/modules" / (kernel or usual)).mkdir(parents=True)
        codename = os_release.rpartition("CODENAME=")[2].strip()
        write_apt_sources(root, distro=name, codename=codename)
        settings = self.settings()
        recipe = settings.catalogue.entry("nvidia").recipe
        packages = packages_of(recipe, source_names(find_distro(distro)))
        text = "\n".join(stanza(package, f"{PACKAGED[distro]}-1") for package in packages)
        self.engine.texts = {(codename, "main"): text}
        write(root / "usr/share/misc/pci.ids", PCI_IDS)
        return settings

    def settings(self) -> Settings:
        found = load_settings(self.folder / "host", catalogues=[self.folder / "catalogue"])
        return using(found, self.engine)

    def version(self, settings: Settings, driver: str, version: str) -> str:
        (kernel,) = (path.name for path in (settings.root / "lib/modules").iterdir())
        request = DriverRequest(driver, kernel=kernel, version=version)
        return version_to_build(settings, request)[0]

    def choice(self, settings: Settings) -> tuple[str, str]:
        """Return what the host of a README's example would build."""
        write(settings.root / "etc/provision/provision.toml", readme().encode())
        settings = self.settings()
        (kernel,) = (path.name for path in (settings.root / "lib/modules").iterdir())
        (wanted,) = settings.config.drivers.items()
        name, setting = wanted
        request = DriverRequest(
            name, kernel=kernel, version=setting.version, flavour=setting.flavour
        )
        return version_to_build(settings, request)


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(versions, "today", lambda: TODAY)
    with nvidia_day(tmp_path) as vendor:
        yield Day(tmp_path, vendor)


def test_the_tutorials_example_is_readmes() -> None:
    tutorial = snippet("tutorials/nvidia-docker-debian.md", "## 3.")
    assert tomllib.loads(tutorial) == tomllib.loads(readme())


@pytest.mark.parametrize("distro", HOSTS)
def test_each_version_of_our_pages_is_offered(day: Day, distro: str) -> None:
    settings = day.host(distro)
    wanted = {
        (driver, version)
        for driver, version in of_pages()
        if driver in {"nvidia", "onload"} and version not in {"6.1.0-47-amd64"}
    }
    assert {("nvidia", "production"), ("nvidia", "580"), ("nvidia", "lts")} <= wanted
    found = {one: day.version(settings, *one) for one in sorted(wanted)}
    assert found["nvidia", "production"] == "625.22.02"
    assert found["nvidia", "lts"] == "620.38.02"
    assert found["nvidia", "580"] == "580.178.04"


def test_a_version_without_a_file_is_passed_over_and_that_is_said(
    day: Day, notes: list[str]
) -> None:
    settings = day.host()
    assert day.version(settings, "nvidia", "625") == "625.22.02"
    assert any("625.31.04" in note for note in notes)
    # One that is named is not replaced.
    with pytest.raises(NotFoundError):
        day.version(settings, "nvidia", "625.31.04")


def test_the_vendors_answer_comes_first_and_then_its_last_one_and_then_the_recipe(
    day: Day,
) -> None:
    settings = day.host()
    before = day.version(settings, "nvidia", "production")
    day.vendor.close()
    assert day.version(settings, "nvidia", "production") == before
    shutil.rmtree(day.folder / "cache")
    # Of the branches that the recipe knows and has versions of, the newest that has not ended.
    assert day.version(settings, "nvidia", "production") == "580.95.05"


def test_each_branch_says_who_says_so_and_when(day: Day) -> None:
    settings = day.host()
    upstream = settings.catalogue.entry("nvidia").recipe.upstream

    def branches() -> dict[str, tuple[str | None, str | None]]:
        readings = kept(upstream, machine="x86_64", folder=settings.state)
        return {b.name: (b.kind_by, b.end_by) for b in known_branches(upstream, readings).all}

    assert branches()["580"] == ("the recipe of 2026-11", "the recipe of 2026-11")
    day.version(settings, "nvidia", "production")
    found = branches()
    assert found["580"][0] != found["580"][1] == "the recipe of 2026-11"
    assert found["625"][1] is None
    assert found["625"][0]
    assert re.search(r"[0-9]{4}-[0-9]{2}-[0-9]{2}$", found["625"][0])


@pytest.mark.parametrize(
    ("day_of_use", "is_old"), [(date(2027, 11, 30), False), (date(2027, 12, 1), True)]
)
def test_a_table_that_is_older_than_a_year_is_called_old(
    day: Day, day_of_use: date, *, is_old: bool
) -> None:
    recipe = day.host().catalogue.entry("nvidia").recipe
    found = [notice.message for notice in outdated_tables(recipe, day_of_use)]
    assert any("branches" in message for message in found) == is_old
    assert any("cards" in message for message in found) == is_old


@pytest.mark.parametrize("distro", HOSTS)
@pytest.mark.parametrize(
    ("devices", "version", "flavour"),
    [
        ((), "625.22.02", "open"),
        ((PASCAL,), "580.178.04", "proprietary"),
        ((AMPERE,), "625.22.02", "open"),
        ((BLACKWELL,), "625.22.02", "open"),
        ((AMPERE, BLACKWELL), "625.22.02", "open"),
        ((PASCAL, AMPERE), "580.178.04", "proprietary"),
        # Newer than the recipe.
        ((NEWER,), "625.22.02", "open"),
        ((PASCAL, NEWER), "580.178.04", "proprietary"),
    ],
)
def test_the_example_of_the_readme_gets_what_drives_every_card(
    day: Day,
    distro: str,
    devices: tuple[str, ...],
    version: str,
    flavour: str,
    notes: list[str],
) -> None:
    settings = day.host(distro)
    plug_in(settings.root, *devices)
    assert day.choice(settings) == (version, flavour)
    said = " ".join(notes)
    assert all(device in said for device in devices)
    # Of the names that pci.ids has; and the branch that the vendor ended a card's support with.
    assert ("GeForce GTX 1050 (Pascal)" in said) == (PASCAL in devices)
    assert ("595 ended its support" in said) == (PASCAL in devices)
    assert ("unknown to the recipe of 2026-11" in said) == (NEWER in devices)
    assert (f"[10de:{NEWER}]: {version}" in said) is False


@pytest.mark.parametrize("devices", [(PASCAL, BLACKWELL), (KEPLER, AMPERE), (KEPLER,)])
def test_cards_that_no_one_driver_serves_are_refused_with_what_each_takes(
    day: Day, devices: tuple[str, ...]
) -> None:
    settings = day.host()
    plug_in(settings.root, *devices)
    with pytest.raises(NotFoundError) as caught:
        day.choice(settings)
    assert [device for device in devices if device not in caught.value.message] == []
    assert caught.value.resolution
    # A card that a virtual machine has is no card of the host.
    plug_in(day.host().root, *devices, driver="vfio-pci")
    assert day.choice(settings)[0] == "625.22.02"


_OTHERWISE = re.compile(r'version = "([0-9]+)" and flavour = "([a-z]+)"')


@pytest.mark.parametrize(
    ("devices", "version", "flavour", "helps"),
    [
        ((PASCAL,), "auto", "open", {("580", "proprietary")}),
        ((PASCAL,), "595", "auto", {("580", "proprietary")}),
        ((PASCAL,), "595.91.07", None, {("580", "proprietary")}),
        ((PASCAL,), "625.22.02", "proprietary", {("580", "proprietary")}),
        ((BLACKWELL,), "535", None, {("620", "open")}),
        ((BLACKWELL,), "auto", "proprietary", {("620", "open")}),
        ((PASCAL, BLACKWELL), "auto", "auto", {("580", "proprietary"), ("620", "open")}),
        ((KEPLER, PASCAL), "auto", "auto", {("580", "proprietary")}),
        ((KEPLER, AMPERE), "auto", "auto", {("620", "open")}),
        ((KEPLER,), "auto", "auto", set()),
        # A GeForce 8800, 9600 GT and 210.
        (("0191",), "auto", "auto", set()),
        (("0622",), "580", None, set()),
        (("0a65",), "auto", "open", set()),
        ((KEPLER,), "580", "proprietary", set()),
    ],
)
def test_what_is_named_and_drives_no_card_is_refused_and_what_helps_is_taken(
    day: Day,
    devices: tuple[str, ...],
    version: str,
    flavour: str | None,
    helps: set[tuple[str, str]],
) -> None:
    settings = day.host()
    plug_in(settings.root, *devices)
    asked = DriverRequest("nvidia", kernel="6.1.0-56-amd64", version=version, flavour=flavour)
    with pytest.raises(NotFoundError) as caught:
        version_to_build(settings, asked)
    assert set(_OTHERWISE.findall(caught.value.resolution or "")) == helps
    for one, other in helps:
        better = replace(asked, version=one, flavour=other)
        assert version_to_build(settings, better)[0].startswith(one)
        assert 1 <= len(cards_for(settings, better)) <= len(devices)
    if version[0].isdigit():
        # By force, or for another host, of whose cards nothing is known.
        forced = version_to_build(settings, replace(asked, force=True))
        assert forced[0].startswith(version)
        elsewhere = version_to_build(settings, replace(asked, distro="debian:12"))
        assert elsewhere[0].startswith(version)


@pytest.mark.parametrize(
    ("version", "devices"),
    [
        ("580.999.99", (PASCAL,)),
        ("580.178.4", (PASCAL,)),
        ("550", (PASCAL,)),
        ("550.163.01", (PASCAL,)),
        ("0", ()),
    ],
)
def test_a_version_that_there_is_not_is_refused_with_where_all_are(
    day: Day, version: str, devices: tuple[str, ...]
) -> None:
    settings = day.host()
    plug_in(settings.root, *devices)
    with pytest.raises(NotFoundError) as caught:
        day.version(settings, "nvidia", version)
    said = caught.value.resolution or ""
    assert "provision drivers versions nvidia" in said
    # None that the card does not take.
    assert ("590.48.01" in said) == (not devices)


def test_a_card_that_what_is_named_does_not_drive_has_no_say(day: Day) -> None:
    settings = day.host()
    plug_in(settings.root, PASCAL, AMPERE)
    request = DriverRequest("nvidia", kernel="6.1.0-56-amd64", version="625.22.02")
    assert version_to_build(settings, request) == ("625.22.02", "open")
    assert [card.device.device for card in cards_for(settings, request)] == [AMPERE]


def test_a_matrix_has_the_flavours_and_versions_that_cards_need(day: Day) -> None:
    settings = day.host()

    def rows(*cards: str) -> set[tuple[str, str]]:
        chosen = Selection(drivers=("nvidia",), cards=cards)
        found = choose_rows(chosen, find_offers(settings, chosen).offers)
        return {(row.version.partition(".")[0], row.flavour) for row in found}

    plain = rows()
    assert ("625", "open") in plain
    # What a Pascal card takes, and nothing that ended its support.
    assert rows(f"10de:{PASCAL}") == {("580", "proprietary")}
    assert rows(f"10de:{AMPERE}") == plain
    assert rows(f"10de:{PASCAL}", f"10de:{BLACKWELL}") == plain | {("580", "proprietary")}
    with pytest.raises(UsageError, match="1002:744c"):
        rows("1002:744c")
