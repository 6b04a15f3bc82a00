"""``provision versions``: a vendor on the loopback interface, an archive in memory, a store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kit.artifact import KERNEL, make_artifact, make_pin, write
from kit.fileserver import Mirror
from kit.upstream import demo_recipe
from provision.build import versions
from provision.build.request import DriverRequest
from provision.build.versions import follow
from provision.build.workspace import Settings, load_settings
from provision.distros.distro import find_distro
from provision.store import availability
from provision.store.entries import link_kernel
from provision.store.layout import Layout
from unit.cli.outcome import Outcome
from unit.fake_archive import write_apt_sources
from unit.recipes import archive_source, runfile_source

Call = Callable[..., Outcome]
DATA = Path(__file__).parents[2] / "data/releases"
TODAY = date(2026, 11, 22)
DEBIAN = find_distro("debian:12")
_UPSTREAM = """
[[upstream.sources]]
kind = "nvidia-releases-json"
url = "VENDOR/releases.json"

[[upstream.sources]]
kind = "nvidia-releases-json"
url = "VENDOR/files.json"
files = true

[upstream.branches]
535 = { maturity = "lts", end_of_life = "2026-06" }
580 = { end_of_life = "2028-06" }
"""


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[Mirror]:
    folder = tmp_path / "vendor"
    folder.mkdir()
    (folder / "releases.json").write_bytes((DATA / "releases.json").read_bytes())
    # Older than what the other source has: it happens.
    (folder / "files.json").write_text(
        '{"595": {"type": "", "driver_info": [{"release_version": "595.84"}]}}'
    )
    mirror = Mirror(folder)
    with mirror.serving():
        yield mirror


class Site:
    """A host, its driver, and the command."""

    def __init__(self, tmp_path: Path, call: Call, vendor: Mirror) -> None:
        self.root = tmp_path / "host"
        self.tmp_path = tmp_path
        self.call = call
        self.vendor = vendor
        self.offer(archive_source("535.261.03"))

    def offer(self, source: str) -> None:
        """Have a driver whose versions come from there."""
        text = demo_recipe(
            source,
            kernels='versions = "<590"\nworks = ">=6.1"',
            flavour='package = "demo-source"' if 'kind = "deb"' in source else "",
            build='directory = "kernel-open"' if 'kind = "runfile"' in source else "",
            more=_UPSTREAM.replace("VENDOR", self.vendor.url),
        )
        write(self.tmp_path / "catalogue/demo/driver.toml", text.encode())

    def ask_for(self, version: str) -> None:
        text = f'[drivers.demo]\nversion = "{version}"\n'
        write(self.root / "etc/provision/provision.toml", text.encode())

    def install(self, version: str, kernel: str = KERNEL) -> None:
        pin = make_pin(version=version, kernel=kernel)
        layout = Layout(self.root, "demo")
        make_artifact(layout.entry(pin.short_digest), pin=pin)
        link_kernel(layout, kernel, pin.short_digest)

    def versions(self, *words: str) -> Outcome:
        catalogue = self.tmp_path / "catalogue"
        return self.call(
            "drivers", "versions", *words, "--root", self.root, "--catalogue", catalogue
        )

    def document(self, *words: str) -> dict[str, Any]:
        (document,) = self.versions("demo", "--json", *words).document["drivers"]
        return dict(document)

    def settings(self) -> Settings:
        return load_settings(self.root, catalogues=[self.tmp_path / "catalogue"])


@pytest.fixture
def site(tmp_path: Path, vendor: Mirror, call: Call, monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site(tmp_path, call, vendor)
    write(site.root / "etc/os-release", b'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n')
    write(site.root / "proc/sys/kernel/osrelease", f"{KERNEL}\n".encode())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_apt_sources(site.root)
    monkeypatch.setattr(availability, "today", lambda: TODAY)
    monkeypatch.setattr(versions, "today", lambda: TODAY)
    return site


def test_the_document_has_all_of_it(site: Site, vendor: Mirror) -> None:
    site.install("535.261.03")
    site.ask_for("535")
    document = site.document()
    assert document["installed"] == [{"kernel": KERNEL, "version": "535.261.03", "running": True}]
    assert (document["asked_for"], document["chosen"]) == ("535", "535.261.03")
    assert document["offered"] == ["535.261.03"]
    branches = {branch["name"]: branch for branch in document["branches"]}
    assert list(branches) == ["610", "595", "580", "535"]
    assert branches["535"] == {
        "name": "535",
        "kind": "lts",
        "kind_by": branches["535"]["kind_by"],
        "newest": "535.261.03",
        "released": "2025-07-17",
        "end_of_life": "2026-06-30",
        "end_by": "the recipe",
        "ended": True,
    }
    assert branches["535"]["kind_by"].startswith("127.0.0.1, asked on ")
    assert [source["kind"] for source in document["sources"]] == [
        "nvidia-releases-json",
        "nvidia-releases-json",
    ]
    assert document["sources"][1]["url"] == f"{vendor.url}/files.json"
    (release,) = (r for r in document["sources"][0]["releases"] if r["version"] == "535.261.03")
    assert release["url"].endswith("/NVIDIA-Linux-x86_64-535.261.03.run")
    assert [concern["kind"] for concern in document["concerns"]] == ["ended"]


@pytest.mark.parametrize(
    ("offered", "installed", "asked", "code"),
    [
        ("580.178.04", "580.178.04", "lts", 0),
        ("580.178.04", "580.65.06", "lts", 1),
        # An older version is no reason to do anything.
        ("580.65.06", "580.178.04", None, 0),
    ],
)
def test_the_check_ends_with_1_where_a_version_is_newer(
    site: Site, offered: str, installed: str, asked: str | None, code: int
) -> None:
    site.offer(archive_source(offered, "535.261.03"))
    site.install(installed)
    if asked:
        site.ask_for(asked)
    outcome = site.versions("demo", "--check")
    assert outcome.code == code
    assert bool(outcome.out) == ("580.178.04" in outcome.out) == bool(code)


def test_the_check_says_what_cannot_be_found_out(site: Site) -> None:
    write(site.root / "etc/provision/provision.toml", b'[engine]\nhost = "unix:///none.sock"\n')
    site.offer('[source]\nkind = "deb"')
    assert site.versions("demo", "--check").code == 1


def test_a_vendor_that_is_down_is_said_and_its_last_answer_counts(
    site: Site, vendor: Mirror
) -> None:
    before = site.document()
    (vendor.folder / "releases.json").write_text("<html>Sorry</html>")
    (vendor.folder / "files.json").unlink()
    # Nobody could be read, and its last answer is shown.
    assert site.versions("demo").code == 3
    after = site.document()
    assert after["branches"] == before["branches"]
    assert after["sources"][0]["error"]
    asked = len(vendor.asked)
    offline = site.document("--offline")
    assert len(vendor.asked) == asked
    assert offline["branches"] == before["branches"]
    assert offline["sources"][0]["error"] is None


def test_without_a_driver_those_of_provision_toml_are_shown(site: Site) -> None:
    assert site.versions().code == 2
    site.ask_for("latest")
    assert "demo (open)" in site.versions().out


def test_a_version_that_stays_asks_no_vendor_again(site: Site, vendor: Mirror) -> None:
    settings = site.settings()
    follow(settings, DriverRequest("demo", version="535"), DEBIAN)
    assert vendor.asked == []
    follow(settings, DriverRequest("demo", version="lts", prefer="580.1"), DEBIAN)
    assert len(vendor.asked) == 2
    for path in (settings.state / "upstream").iterdir():
        path.write_text(json.dumps({**json.loads(path.read_text()), "read": 1}))
    follow(settings, DriverRequest("demo", version="lts", prefer="580.1"), DEBIAN)
    assert len(vendor.asked) == 2
    follow(settings, DriverRequest("demo", version="lts"), DEBIAN)
    assert len(vendor.asked) == 4


def test_a_wish_is_met_while_a_vendor_is_down(site: Site, vendor: Mirror, notes: list[str]) -> None:
    for path in list(vendor.folder.iterdir()):
        path.unlink()
    # The recipe names one branch of the kind.
    found = follow(site.settings(), DriverRequest("demo", version="lts"), DEBIAN)
    assert found.branches == ("535",)
    assert len(notes) == 2


def test_a_source_that_takes_any_version_offers_what_has_files(site: Site, vendor: Mirror) -> None:
    site.offer(runfile_source("535.261.03"))
    settings = site.settings()
    # Of the page of files, which says 'files = true'; the other source does not.
    assert follow(settings, DriverRequest("demo"), DEBIAN).published == ("595.84",)
    assert follow(settings, DriverRequest("demo", version="595"), DEBIAN).published == ("595.84",)
    asked = len(vendor.asked)
    assert follow(settings, DriverRequest("demo", version="595.84"), DEBIAN).published == ()
    stays = follow(settings, DriverRequest("demo", version="580", prefer="580.1"), DEBIAN)
    assert stays.published == ("595.84", "580.1")
    assert len(vendor.asked) == asked
    document = site.document()
    assert document["offered"] == ["595.84", "535.261.03"]
    # The recipe knows nothing of its kernels, and a living branch comes first.
    assert document["chosen"] == "595.84"


@pytest.mark.parametrize(
    ("wish", "is_asked"),
    [
        (None, True),
        ("latest", False),
        ("535", False),
        ("580", True),
        ("580.1", False),
        ("lts", True),
    ],
)
def test_what_the_distros_packages_decide_is_asked_of_no_vendor(
    site: Site,
    vendor: Mirror,
    wish: str | None,
    *,
    is_asked: bool,
) -> None:
    several = runfile_source("570.1").replace("[source]", "[[source]]")
    site.offer(f'[[source]]\nkind = "deb"\nversions = "<560"\n{several}')
    found = follow(site.settings(), DriverRequest("demo", version=wish), DEBIAN)
    assert bool(vendor.asked) is is_asked
    assert found.published == (("595.84",) if is_asked else ())
