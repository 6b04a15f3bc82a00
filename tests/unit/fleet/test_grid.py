"""What a matrix can choose from, and its page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.artifact import write
from kit.fileserver import Mirror
from kit.upstream import demo_recipe
from provision.build import versions
from provision.build.output import SourceError
from provision.build.workspace import Settings, load_settings
from provision.engine.docker_api import Image
from provision.files import templates_dir
from provision.fleet import (
    Cell,
    Column,
    Planned,
    Row,
    Selection,
    choose_kernels,
    choose_rows,
)
from provision.fleet.offers import ensure_base_images, find_offers
from provision.fleet.results import MatrixReport, Result, render_page, result_of
from unit.engine.fake_engine import FakeEngine, using
from unit.fake_archive import AptEngine, stanza, write_apt_sources
from unit.recipes import archive_source, runfile_source

ROW, OTHER = Row("demo", "2.0", "open"), Row("demo", "1.2", "open")
COLUMNS = (
    Column("debian:12", "6.1.0-50-amd64"),
    Column("debian:12", "6.1.0-47-amd64"),
    Column("debian:13", "6.12.9-amd64"),
)


class _Page(HTMLParser):
    """What a browser makes of a page, roughly.

    Attributes:
        elements: Names with their attributes.
        text: All text that is no style or script.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside not in {"style", "script"}:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._inside = ""

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def failed(cell: Cell, text: str = "no member named 'x'") -> Result:
    return result_of(
        cell,
        "failed",
        reason="compile",
        phase="build",
        message=f"demo does not compile: {text}",
        resolution="patch it",
        first_error=SourceError(file="a.c", line=7, text=text, excerpt=(f" 7 | {text}",)),
        errors=3,
        instruction="RUN make",
        excerpt=(f"CC a.o {text}",),
        log="/var/cache/provision/logs/demo.log",
    )


def page(*results: Result) -> str:
    report = MatrixReport((ROW, OTHER), COLUMNS, {result.cell: result for result in results})
    return render_page(report, templates_dir(), time=0)


def cell(row: Row = ROW, column: Column = COLUMNS[0]) -> Cell:
    return Cell(row, column)


def test_every_cell_has_colour_symbol_and_words() -> None:
    read = _Page(
        page(
            failed(cell()),
            result_of(cell(OTHER), "built", size=1_500_000, seconds={"total": 3.25}),
            result_of(cell(ROW, COLUMNS[2]), "not-supported", message="too new"),
        )
    )
    cells = read.of("td")
    assert [one["class"] for one in cells] == [
        "failed",
        "not-built",
        "not-supported",
        "built",
        "not-built",
        "not-built",
    ]
    for words in ("✗ failed", "✓ built", "⊘ not supported", "· not built yet", "1.5 MB", "3.2 s"):
        symbol, _, text = words.partition(" ")
        assert symbol in read.text
        assert text in read.text
    for words in (
        "a.c:7",
        "RUN make",
        "patch it",
        "demo.log",
        "3 errors in all",
        "does not compile",
    ):
        assert words in read.text, words


def test_nothing_is_loaded_and_only_our_own_script_runs() -> None:
    text = page(failed(cell()))
    read = _Page(text)
    policy = next(
        one["content"]
        for one in read.of("meta")
        if one.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy
    assert "default-src 'none'" in policy
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    outside = {"link", "img", "iframe", "object", "embed", "video", "audio", "base"}
    assert not outside & {name for name, _ in read.elements}
    assert not re.search(r"https?://|url\(|@import", text)
    assert not any(name.startswith("on") for _, one in read.elements for name in one)


_HOSTILE = st.text(st.sampled_from("<>\"'&/ax=`{}%\n\0é"), max_size=30) | st.sampled_from(
    [
        "</script><script>alert(1)</script>",
        "</style><img src=x onerror=alert(1)>",
        '" onmouseover="alert(1)',
        "{{ 7 * 7 }}{% raw %}",
        "<!--",
        "</table></dialog>",
    ]
)


@given(_HOSTILE)
def test_what_a_build_prints_is_only_text(text: str) -> None:
    plain, hostile = _Page(page(failed(cell(), "x"))), _Page(page(failed(cell(), text)))
    # The same elements with the same attributes, and nothing more.
    assert [name for name, _ in hostile.elements] == [name for name, _ in plain.elements]
    assert [set(one) for _, one in hostile.elements] == [set(one) for _, one in plain.elements]


_HEADERS = stanza("linux-headers-6.1.0-47-amd64", "6.1.170-3")
_BRANCHES = """
[upstream.branches]
535 = { maturity = "lts", end_of_life = "2026-06" }
580 = { maturity = "lts", end_of_life = "2028-06" }
595 = { maturity = "production" }
"""
_LISTED = """
[[upstream.sources]]
kind = "nvidia-releases-json"
url = "VENDOR/files.json"
files = true
"""
# The first is newer than what the recipe knows of kernels.
PUBLISHED = ("610.43", "595.84", "595.71", "580.126.09", "580.95.05", "470.1")


def _host(tmp_path: Path, recipe: str) -> Settings:
    """A host of Debian 12 whose archive has a kernel."""
    root = tmp_path / "host"
    write(tmp_path / "catalogue/demo/driver.toml", recipe.encode())
    write(root / "etc/os-release", b'ID=debian\nVERSION_ID="12"\n')
    write_apt_sources(root)
    settings = load_settings(root, catalogues=[tmp_path / "catalogue"])
    return using(settings, AptEngine({("bookworm", "main"): _HEADERS}))


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(versions, "today", lambda: date(2026, 11, 22))
    branches: dict[str, list[dict[str, str]]] = {}
    for version in PUBLISHED:
        branches.setdefault(version.partition(".")[0], []).append({"release_version": version})
    listed = {name: {"type": "", "driver_info": known} for name, known in branches.items()}
    write(tmp_path / "vendor/files.json", json.dumps(listed).encode())
    vendor = Mirror(tmp_path / "vendor")
    with vendor.serving():
        recipe = demo_recipe(
            runfile_source("580.95.05", "535.261.03"),
            kernels='versions = "<600"\nworks = ">=5.14"',
            build='directory = "kernel-open"',
            more=_BRANCHES + _LISTED.replace("VENDOR", vendor.url),
        )
        yield _host(tmp_path, recipe)


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
        drivers=("demo",), distros=("debian:12",), kernels=("all",), versions=wanted
    )
    offers = find_offers(settings, selection)
    columns = choose_kernels(selection.kernels, offers.kernels)
    assert [row.version for row in choose_rows(selection, offers.offers, columns)] == rows


def test_a_recipe_that_leaves_kernels_to_its_dkms_conf_has_kinds_of_branches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(versions, "today", lambda: date(2026, 11, 22))
    recipe = demo_recipe(archive_source("595.84", "535.261.03", kind="dkms"), more=_BRANCHES)
    # What its dkms.conf says.
    for table in ("[[kernels]]", "[flavours.open.build]"):
        recipe = re.sub(rf"(?ms)^{re.escape(table)}.*?(?=^\[)", "", recipe)
    host = _host(tmp_path, recipe)
    selection = Selection(
        drivers=("demo",), distros=("debian:12",), kernels=("all",), versions=("lts",)
    )
    offers = find_offers(host, selection)
    assert [row.version for row in choose_rows(selection, offers.offers)] == ["535.261.03"]


class _Engine(FakeEngine):
    """Has the base images, and notes which it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        names = ("debian:bookworm", "rockylinux/rockylinux:9")
        self.have(Image("sha256:" + "a" * 64, names, architecture="amd64"))

    def image(self, reference: str) -> Image | None:
        self.calls.append(reference)
        return super().image(reference)


def test_each_base_image_is_made_once(tmp_path: Path) -> None:
    write(tmp_path / "etc/os-release", b"ID=debian\nVERSION_ID=12\n")
    row = Row("demo", "1.0", "open")
    distros = ("debian:12", "debian:12", "flatcar:3227.2.4", "rocky:9")
    planned = [Planned(Cell(row, Column(distro, "6.1.0"))) for distro in distros]
    planned.append(Planned(Cell(row, Column("fedora:40", "6.1.0")), "not supported"))
    engine = _Engine()
    ensure_base_images(using(load_settings(tmp_path), engine), planned)
    asked = Counter(engine.calls)
    assert set(asked) == {"debian:bookworm", "rockylinux/rockylinux:9"}
    assert len(set(asked.values())) == 1
