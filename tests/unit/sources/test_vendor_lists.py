"""``provision drivers versions`` as a process: a vendor's git repository and pages on loopback."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kit.fileserver import Mirror
from kit.probe import need_programs
from kit.process import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.process import Completed

_RECIPE = """
schema = 1
name = "demo"
summary = "A driver for tests"
vendor = "Vendor"
homepage = "https://example.org"

[source]
kind = "git"
[[source.releases]]
version = "1.2.0"
url = "https://git.example/demo.git"
commit = "9f330e7058f6062596f2a7316952c67963a0aac3"
sha256 = "4bdfd37b34ff746edc8150e4bca8fe9fc2a215d5b011805858423fa66a138742"

[[kernels]]
works = ">=5.14"

[flavours.open]
licences = ["MIT"]
[flavours.open.build]
command = ["make"]
modules = ["demo.ko"]

[container]
activation_flag = "OCI_DEMO"
driver_feature = ["compute"]
[container.features.compute]

[upstream]
branch_parts = 2
[[upstream.sources]]
kind = "git-tags"
url = "VENDOR/demo.git"
pattern = "v([0-9.]+)"
[[upstream.sources]]
kind = "http-index"
url = "VENDOR/files/"
pattern = 'demo-([0-9.]+)\\.tar\\.gz'
[upstream.branches]
"1.2" = { maturity = "lts", end_of_life = "2020-01" }
"1.3" = { maturity = "lts" }
"""


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[Mirror]:
    """A server with a bare repository, as git reads it over plain HTTP, and a folder of files."""
    need_programs("git")
    work, folder = tmp_path / "work", tmp_path / "vendor"
    who = ("-c", "user.name=Vendor", "-c", "user.email=vendor@example.org")
    run(["git", "init", "-q", work])
    for version in ("v1.2.0", "v1.3.1", "v1.4-rc1"):
        run(["git", "-C", work, *who, "commit", "-q", "--allow-empty", "-m", version])
        run(["git", "-C", work, *who, "tag", "-a", "-m", version, version])
    run(["git", "clone", "-q", "--bare", work, folder / "demo.git"])
    run(["git", "-C", folder / "demo.git", "update-server-info"])
    (folder / "files").mkdir()
    (folder / "files/demo-1.3.2.tar.gz").write_text("")
    mirror = Mirror(folder)
    with mirror.serving():
        yield mirror


class Host:
    """A host of a distro whose packages are solved for, so that no archive is read."""

    def __init__(self, folder: Path, vendor: Mirror) -> None:
        self.root, self.cache, self.catalogue = folder / "host", folder / "cache", folder / "cat"
        (self.root / "etc").mkdir(parents=True)
        (self.root / "etc/os-release").write_text('ID=rocky\nVERSION_ID="9.6"\n')
        (self.catalogue / "demo").mkdir(parents=True)
        recipe = _RECIPE.replace("VENDOR", vendor.url)
        (self.catalogue / "demo/driver.toml").write_text(recipe)

    def versions(self, *words: str) -> Completed:
        command = [sys.executable, "-m", "provision", "drivers", "versions", "demo", *words]
        return run(
            [*command, "--root", self.root, "--catalogue", self.catalogue],
            check=False,
            env={"XDG_CACHE_HOME": str(self.cache)},
        )

    def document(self, *words: str) -> dict[str, Any]:
        (document,) = json.loads(self.versions("--json", *words).stdout)["drivers"]
        return dict(document)


@pytest.fixture
def host(tmp_path: Path, vendor: Mirror) -> Host:
    return Host(tmp_path, vendor)


def test_tags_and_pages_are_read_and_kept(host: Host, vendor: Mirror) -> None:
    document = host.document()
    tags, page = document["sources"]
    commit = run(["git", "-C", vendor.folder / "demo.git", "rev-parse", "v1.3.1^{commit}"]).stdout
    assert [release["version"] for release in tags["releases"]] == ["1.3.1", "1.2.0"]
    assert tags["releases"][0]["commit"] == commit.strip()
    assert [release["version"] for release in page["releases"]] == ["1.3.2"]
    branches = {branch["name"]: branch["newest"] for branch in document["branches"]}
    assert branches == {"1.3": "1.3.2", "1.2": "1.2.0"}
    assert document["offered"] == ["1.2.0"]
    (vendor.folder / "demo.git").rename(vendor.folder / "gone.git")
    (vendor.folder / "files").rename(vendor.folder / "gone")
    later = host.document()
    assert later["branches"] == document["branches"]
    assert all(source["error"] for source in later["sources"])
    done = host.versions()
    assert done.returncode == 3
    assert "Could not list the tags" in done.stdout


def test_the_check_is_for_cron(host: Host) -> None:
    done = host.versions("--check")
    assert (done.returncode, done.stdout) == (0, "")
