"""What a matrix can choose from: the recipe's versions, and those that a host would get."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from kit.artifact import write
from provision.build import versions
from provision.build.session import SolvingSession
from provision.build.workspace import Settings, load_settings
from provision.catalogue.upstream import GitTags
from provision.fleet.matrix import offers as matrix_offers
from provision.fleet.matrix.cells import (
    Cell,
    Column,
    Planned,
    Row,
    Selection,
    choose_kernels,
    choose_rows,
)
from provision.fleet.matrix.offers import ensure_base_images, find_offers
from provision.sources.upstream.formats import Release
from provision.sources.upstream.queries import Answer, UpstreamResult

KERNELS = ("5.14.0-503.el9.x86_64",)
RECIPE = b"""
schema = 1
name = "demo"
summary = "A driver for tests"
vendor = "Vendor"
homepage = "https://example.org"

[source]
kind = "runfile"
url = "https://vendor.example/{version}.run"
checksums = "https://vendor.example/{version}.run.sha256sum"
releases = [{ version = "580.95.05" }, { version = "535.261.03" }]

[[kernels]]
versions = "<600"
works = ">=5.14"

[flavours.open]
licences = ["MIT"]
[flavours.open.build]
directory = "kernel-open"
command = ["make"]
modules = ["demo.ko"]

[container]
activation_flag = "OCI_DEMO"
driver_feature = ["compute"]
[container.features.compute]

[upstream.branches]
535 = { maturity = "lts", end_of_life = "2026-06" }
580 = { maturity = "lts", end_of_life = "2028-06" }
595 = { maturity = "production" }
"""
# The first is newer than what the recipe knows of kernels.
PUBLISHED = ("610.43", "595.84", "595.71", "580.126.09", "580.95.05", "470.1")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    root = tmp_path / "host"
    write(tmp_path / "catalogue/demo/driver.toml", RECIPE)
    write(root / "etc/os-release", b'ID=rocky\nVERSION_ID="9.5"\n')
    write(root / "etc/provision/provision.toml", b'[drivers.demo]\nversion = "lts"\n')
    source = GitTags(kind="git-tags", url="https://vendor.example/driver.git", files=True)
    releases = tuple(Release(version=version) for version in PUBLISHED)
    reading = UpstreamResult(source, source.url, Answer(url=source.url, read=1, releases=releases))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(versions, "read_upstream", lambda *_given, **_more: (reading,))
    monkeypatch.setattr(versions, "today", lambda: date(2026, 11, 22))
    monkeypatch.setattr(SolvingSession, "kernels", lambda _session: KERNELS)
    return load_settings(root, catalogues=[tmp_path / "catalogue"])


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        (("latest",), ["595.84"]),
        (("latest-2",), ["595.84", "595.71"]),
        # A branch stands for what the recipe has of it, and for the newest that is published.
        (("580",), ["580.126.09", "580.95.05"]),
        # Of an ended branch, hosts take nothing while there is another.
        (("lts",), ["580.126.09"]),
        (("production", "535"), ["595.84", "580.126.09", "535.261.03"]),
        # Whatever else is published is not built by 'all'.
        (("all",), ["580.95.05", "535.261.03"]),
        (("590.48.01",), ["590.48.01"]),
        (("610",), ["610.43"]),
    ],
)
def test_a_matrix_has_what_hosts_would_get(
    settings: Settings, wanted: tuple[str, ...], rows: list[str]
) -> None:
    selection = Selection(
        drivers=("demo",), distros=("rocky:9.5",), kernels=("all",), versions=wanted
    )
    offers = find_offers(settings, selection)
    columns = choose_kernels(selection.kernels, offers.kernels)
    assert [row.version for row in choose_rows(selection, offers.offers, columns)] == rows


def test_a_recipe_that_leaves_kernels_to_its_dkms_conf_has_kinds_of_branches(
    settings: Settings, tmp_path: Path
) -> None:
    head, _, rest = RECIPE.partition(b"[source]")
    releases = b"".join(
        b'[[source.releases]]\nversion = "%s"\nurl = "https://x.example/a.tar"\nsha256 = "%s"\n'
        % (version, b"0" * 64)
        for version in (b"595.84", b"535.261.03")
    )
    end = rest[rest.index(b"[container]") :]
    flavours = b'[flavours.open]\nlicences = ["MIT"]\n'
    text = b'%s[source]\nkind = "dkms"\n%s%s%s' % (head, releases, flavours, end)
    write(tmp_path / "other/demo/driver.toml", text)
    host = load_settings(settings.root, catalogues=[tmp_path / "other"])
    selection = Selection(
        drivers=("demo",), distros=("rocky:9",), kernels=("all",), versions=("lts",)
    )
    offers = find_offers(host, selection)
    assert [row.version for row in choose_rows(selection, offers.offers)] == ["535.261.03"]


def test_each_base_image_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(
        matrix_offers,
        "ensure_distro_base",
        lambda _settings, request: made.append(request.distro.name),
    )
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text("ID=debian\nVERSION_ID=12\n")
    row = Row("demo", "1.0", "open")
    distros = ("debian:12", "debian:12", "flatcar:3227.2.4", "rocky:9")
    planned = [Planned(Cell(row, Column(distro, "6.1.0"))) for distro in distros]
    planned.append(Planned(Cell(row, Column("fedora:40", "6.1.0")), "not supported"))
    ensure_base_images(load_settings(tmp_path), planned)
    assert made == ["debian:12", "rocky:9"]
