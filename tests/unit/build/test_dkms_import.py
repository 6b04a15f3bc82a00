"""`provision drivers import`: which name, version and origin the recipe of a source gets."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.files import BOOKWORM, HostFiles, write_all
from kit.fileserver import served
from kit.process import run, run_bytes
from provision.build.dkms_import import Draft, Origin, draft_recipe, import_dkms, write_recipe
from provision.build.workspace import Settings
from provision.catalogue import Catalogue, Recipe
from provision.catalogue.source_models import DkmsSource
from provision.config import Config
from provision.documents import parse_json
from provision.errors import ConfigError, NotFoundError, ProvisionError, UsageError
from unit.deb_file import deb
from unit.engine.fake_engine import no_engine, using

CONF = 'PACKAGE_NAME="tool"\nPACKAGE_VERSION="2.1"\n'


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    HostFiles(tmp_path / "root").write("etc/os-release", BOOKWORM)
    settings = Settings(tmp_path / "root", Config(), Catalogue([]), tmp_path / "state")
    return using(settings, no_engine)


def source_of(draft: Draft) -> DkmsSource:
    recipe = parse_json(json.dumps(tomllib.loads(draft.text)), Recipe, name="draft")
    assert recipe.flavours["dkms"].licences == ("NOASSERTION",)
    [source] = recipe.sources
    assert isinstance(source, DkmsSource)
    return source


@pytest.mark.parametrize(
    ("folder", "conf", "name", "version"),
    [
        ("source", CONF, "tool", "2.1"),
        ("source", CONF.replace("\n", "\r\n"), "tool", "2.1"),
        (
            "source",
            "PACKAGE_NAME=Tool_X # x\nPACKAGE_VERSION='7.0.20_OSE'\n",
            "tool_x",
            "7.0.20_OSE",
        ),
        # What is computed, or a template, is in the folder's name, as for DKMS.
        ("a-tool-2.1", "PACKAGE_NAME=$(cat name)\nPACKAGE_VERSION=#VERSION#\n", "a-tool", "2.1"),
        (
            "tool-2.1",
            'if x; then\nPACKAGE_VERSION="1"\nelse\nPACKAGE_VERSION="2"\nfi\n',
            "tool",
            "2.1",
        ),
    ],
)
def test_a_folder_becomes_a_driver_that_is_never_overwritten(
    settings: Settings, tmp_path: Path, folder: str, conf: str, name: str, version: str
) -> None:
    write_all(tmp_path / folder, {"dkms.conf": conf})
    draft = import_dkms(settings, str(tmp_path / folder))
    assert (draft.name, source_of(draft).releases[0].version) == (name, version)
    assert any(line.startswith("source.releases: ") for line in draft.unknown)
    file = write_recipe(draft, tmp_path / "drivers")
    assert file == tmp_path / f"drivers/{name}/driver.toml"
    assert file.read_text() == draft.text
    with pytest.raises(UsageError):
        write_recipe(draft, tmp_path / "drivers")


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("https://example.org/a/b.git", "https://example.org/a/b.git"),
        ("https://me:secret@git.example:8443/a/b.git", "https://git.example:8443/a/b.git"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("ssh://git@example.org:2222/a/b.git", "ssh://git@example.org:2222/a/b.git"),
        ("file:///srv/b.git", "file:///srv/b.git"),
        # What no other clone can use: the clone itself.
        ("../b.git", None),
        ("", None),
    ],
)
def test_a_clone_is_pinned(
    settings: Settings, tmp_path: Path, remote: str, url: str | None
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "Makefile").write_text("all:\n")
    (source / "dkms.conf").write_text(CONF)

    def git(*words: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
        return run(["git", "-C", source, *who, *words]).stdout.strip()

    git("init", "--quiet")
    git("remote", "add", "origin", remote or "https://x")
    if not remote:
        git("remote", "remove", "origin")
    git("add", "Makefile", "dkms.conf")
    git("update-index", "--add", "--cacheinfo", f"160000,{'c' * 40},src/common")
    git("commit", "--quiet", "--message", "m")
    # A checkout's settings may name programs: what compares and packs looks at a copy.
    git("config", "core.fsmonitor", f"touch {tmp_path}/ran")
    draft = import_dkms(settings, str(source))
    [release] = source_of(draft).releases
    assert release.url == (url or source.as_uri())
    assert f'commit = "{git("rev-parse", "HEAD")}"' in draft.text
    assert "secret" not in draft.text
    archived = hashlib.sha256(
        run_bytes(["git", "-C", source, "archive", "HEAD"], stdin=b"")
    ).hexdigest()
    assert f'sha256 = "{archived}"' in draft.text
    [modules] = [line for line in draft.unknown if "submodules" in line]
    assert "src/common" in modules
    assert "Makefile" not in modules
    assert not (tmp_path / "ran").exists()
    # A checkout with changed files is not the commit that was evaluated.
    (source / "Makefile").write_text("all: more\n")
    with pytest.raises(UsageError):
        import_dkms(settings, str(source))


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[Vendor]:
    (tmp_path / "vendor").mkdir()
    with served(tmp_path / "vendor") as url:
        yield Vendor(tmp_path / "vendor", url)


@dataclass(frozen=True)
class Vendor:
    """A server with files that anyone may download."""

    folder: Path
    url: str

    def tar(self, name: str, mode: str, **files: bytes) -> str:
        """Offer a tar file; returns its address."""
        with tarfile.open(self.folder / name, mode) as archive:  # type: ignore[call-overload]  # the mode varies
            for place, content in files.items():
                info = tarfile.TarInfo(place)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return f"{self.url}/{name}"

    def sha256(self, name: str) -> str:
        return hashlib.sha256((self.folder / name).read_bytes()).hexdigest()


@pytest.mark.parametrize("way", ["address", "file"])
def test_an_archive_is_pinned_as_it_came(settings: Settings, vendor: Vendor, way: str) -> None:
    url = vendor.tar("tool.tar.gz", "w:gz", **{"tool-2.1/dkms.conf": CONF.encode()})
    draft = import_dkms(settings, url if way == "address" else str(vendor.folder / "tool.tar.gz"))
    [release] = source_of(draft).releases
    assert (release.version, release.sha256) == ("2.1", vendor.sha256("tool.tar.gz"))
    assert release.url == (url if way == "address" else (vendor.folder / "tool.tar.gz").as_uri())
    assert "strip" not in draft.text
    assert not (settings.state / "import").exists()


def test_of_a_vendors_package_nothing_is_dropped(settings: Settings, vendor: Vendor) -> None:
    vendor.tar("data", "w:xz", **{"./usr/src/tool-2.1/dkms.conf": CONF.encode()})
    package = deb(vendor.folder, (vendor.folder / "data").read_bytes())
    draft = import_dkms(settings, f"{vendor.url}/{package.name}")
    # One folder at its top, and still nothing is dropped: its source is looked for in usr/src.
    assert "strip = 0" in draft.text


def test_a_zip_file_is_an_archive_too(settings: Settings, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "tool.zip", "w") as file:
        file.writestr("tool/dkms.conf", CONF)
    assert import_dkms(settings, str(tmp_path / "tool.zip")).version == "2.1"


def test_a_package_is_looked_for_where_the_archive_may_have_it(settings: Settings) -> None:
    source = source_of(import_dkms(settings, "tool-dkms"))
    assert source.package == "tool-dkms"
    assert {"contrib", "non-free"} <= {*source.components}


@pytest.mark.parametrize("content", [b"<html>", b"\x1f\x8b\x08damaged", b""])
def test_what_is_no_archive_is_refused(settings: Settings, vendor: Vendor, content: bytes) -> None:
    (vendor.folder / "page").write_bytes(content)
    with pytest.raises(ProvisionError) as caught:
        import_dkms(settings, f"{vendor.url}/page")
    assert caught.value.resolution


def test_an_address_with_a_secret_is_refused_without_showing_it(settings: Settings) -> None:
    for url in ("https://me:hush@x.example/t.tar", "https://x.example/t.tar?token=hush"):
        with pytest.raises(UsageError) as caught:
            import_dkms(settings, url)
        assert "hush" not in f"{caught.value.message}{caught.value.resolution}"


@pytest.mark.parametrize(
    ("files", "error"),
    [({"a.c": ""}, NotFoundError), ({"dkms.conf": "PACKAGE_NAME=$x\n"}, UsageError)],
)
def test_a_source_without_a_name_is_refused(
    settings: Settings, tmp_path: Path, files: dict[str, str], error: type[ProvisionError]
) -> None:
    write_all(tmp_path / "source", files)
    with pytest.raises(error) as caught:
        import_dkms(settings, str(tmp_path / "source"))
    assert caught.value.resolution


@pytest.mark.parametrize(
    ("what", "error"), [("no/f", NotFoundError), ("https://x/t.git", UsageError)]
)
def test_what_is_not_there_is_refused(
    settings: Settings, what: str, error: type[ProvisionError]
) -> None:
    with pytest.raises(error):
        import_dkms(settings, what)


@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=80))
def test_whatever_the_texts_are_the_recipe_is_read_or_refused(
    name: str, version: str, homepage: str
) -> None:
    try:
        draft = draft_recipe(Origin(name, version, homepage=homepage))
    except (UsageError, ConfigError):
        assert not re.fullmatch("[a-z0-9]+", name) or not re.fullmatch("[a-z0-9]+", version)
        return
    assert tomllib.loads(draft.text)["homepage"] == homepage
