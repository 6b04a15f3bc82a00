"""A Pin as a file: what comes out is what went in, and what was edited is refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.fileserver import served
from provision.build.context_files import context_files
from provision.build.package_store import PackageStore
from provision.build.resolve import pin_document, read_pin, recipe_digest, render_context
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config
from provision.distros import find_distro
from provision.errors import ConfigError, NotFoundError, ProvisionError
from provision.pin import (
    FORMAT,
    ArchiveSource,
    BasePin,
    ClosurePackage,
    DriverPin,
    KernelPin,
    PackagePin,
    Pin,
)
from provision.progress import Event, Note
from unit.recipes import variant

_SOURCE = b"a tarball"
_PACKAGE = b"an rpm"
_RECIPE = f"""\
schema = 1
name = "hello"
summary = "A driver for tests"
vendor = "Example"
homepage = "https://example.org"
[source]
kind = "archive"
[[source.releases]]
version = "1.0"
url = "https://example.org/hello-1.0.tar.xz"
sha256 = "{hashlib.sha256(_SOURCE).hexdigest()}"
[[kernels]]
works = ">=5"
[flavours.only]
licences = ["GPL-2.0-only"]
[flavours.only.build]
command = ["make", "M={{source}}"]
modules = ["hello.ko"]
[container]
activation_flag = "OCI_HELLO"
driver_feature = ["hello"]
[container.features.hello]
devices = ["hello"]
"""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Case:
    """A host with a driver, and a Pin of it."""

    settings: Settings
    pin: Pin
    file: Path

    def write(self, document: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(document))

    def keep(self, *contents: bytes) -> None:
        """Have files in the package store."""
        for content in contents:
            PackageStore(self.settings.state).add_bytes(content)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    folder = tmp_path / "catalogue/hello"
    folder.mkdir(parents=True)
    (folder / "driver.toml").write_text(_RECIPE)
    settings = Settings(tmp_path, Config(), Catalogue([folder.parent]), tmp_path / "state")
    recipe = settings.catalogue.entry("hello").recipe
    package = ClosurePackage(
        name="gcc",
        version="11.4.1-3.el9",
        arch="x86_64",
        sha256=sha256(_PACKAGE),
        size=len(_PACKAGE),
        repository="appstream",
        location="Packages/g/gcc-11.4.1-3.el9.x86_64.rpm",
    )
    pin = Pin(
        driver=DriverPin(name="hello", version="1.0", flavour="only"),
        kernel=KernelPin(release="5.14.0-427.el9.x86_64", architecture="x86_64"),
        distro=find_distro("rocky:9"),
        base=BasePin(image="rocky:9", digest=f"sha256:{'b' * 64}"),
        compiler=PackagePin(name="gcc", version="11.4.1-3.el9"),
        headers=(PackagePin(name="kernel-devel", version="5.14.0-427.el9"),),
        packages=(),
        closure=(package,),
        sources=(
            ArchiveSource(url="https://example.org/hello-1.0.tar.xz", sha256=sha256(_SOURCE)),
        ),
        recipe=recipe_digest(recipe, variant(recipe)),
        format=FORMAT,
    )
    return Case(settings, pin, tmp_path / "pin.json")


def test_what_was_written_is_what_is_read(case: Case) -> None:
    urls = {sha256(_PACKAGE): ("http://one.example/gcc.rpm", "http://two.example/gcc.rpm")}
    case.write(pin_document(case.pin, urls))
    found = read_pin(case.settings, case.file)
    assert found.pin == case.pin
    assert found.pin.digest == case.pin.digest
    assert found.urls == urls
    # Addresses are no part of it.
    assert "urls" not in pin_document(case.pin)
    case.write(pin_document(case.pin))
    assert read_pin(case.settings, case.file).pin.digest == case.pin.digest
    # And it can be rendered here.
    assert f"packages/{case.pin.closure[0].location.rpartition('/')[2]}" in (
        render_context(found).downloads
    )


def test_a_password_or_a_token_goes_to_no_other_machine(case: Case) -> None:
    public = "http://one.example/gcc.rpm"
    secret = ("http://me:secret@one.example/gcc.rpm", "http://one.example/?secret/gcc.rpm")
    text = json.dumps(pin_document(case.pin, {sha256(_PACKAGE): (*secret, public)}))
    assert "secret" not in text
    assert json.loads(text)["urls"] == {sha256(_PACKAGE): [public]}
    assert "urls" not in pin_document(case.pin, {sha256(_PACKAGE): secret})


def test_a_pin_whose_source_has_a_password_is_not_built(case: Case) -> None:
    source = case.pin.sources[0].model_copy(update={"url": "https://me:hush@x.example/t.tar"})
    case.write(pin_document(case.pin.model_copy(update={"sources": (source,)})))
    with pytest.raises(ConfigError) as caught:
        read_pin(case.settings, case.file)
    assert [mistake.path for mistake in caught.value.mistakes] == ["sources.0"]
    assert "hush" not in f"{caught.value.message} {caught.value.details}"


@pytest.mark.parametrize("key", ["kernel", "closure", "digest"])
def test_a_file_that_was_edited_is_refused(case: Case, key: str) -> None:
    document = pin_document(case.pin)
    match key:
        case "kernel":
            document["kernel"]["release"] = "5.14.0-428.el9.x86_64"
        case "closure":
            document["closure"][0]["size"] += 1
        case _:
            document["digest"] = f"sha256:{'0' * 64}"
    case.write(document)
    with pytest.raises(ConfigError):
        read_pin(case.settings, case.file)


def test_what_is_no_pin_says_where_it_is_none(case: Case) -> None:
    document = pin_document(case.pin)
    del document["base"]
    document["more"] = 1
    case.write(document)
    with pytest.raises(ConfigError) as caught:
        read_pin(case.settings, case.file)
    assert {"base", "more"} == {mistake.path for mistake in caught.value.mistakes}
    with pytest.raises(NotFoundError):
        read_pin(case.settings, case.file.with_name("missing.json"))


def test_another_recipe_is_refused(case: Case) -> None:
    case.write(pin_document(case.pin))
    recipe = case.settings.catalogue.entry("hello").folder / "driver.toml"
    for old, new in (('"make"', '"make", "V=1"'), ("flavours.only", "flavours.other")):
        recipe.write_text(_RECIPE.replace(old, new))
        with pytest.raises(ProvisionError):
            read_pin(case.settings, case.file)


def test_downloads_are_counted_and_have_names_for_people(
    case: Case, tmp_path: Path, events: list[Event]
) -> None:
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv/gcc.rpm").write_bytes(_PACKAGE)
    with served(tmp_path / "srv") as url:
        case.write(pin_document(case.pin, {sha256(_PACKAGE): (f"{url}/gcc.rpm",)}))
        found = read_pin(case.settings, case.file)
        case.keep(_SOURCE)
        context_files(
            PackageStore(case.settings.state), found.pin, found.urls, render_context(found)
        )
    assert [e.text for e in events if isinstance(e, Note)] == ["Downloading 1 file (0.0 MB)"]
    assert sha256(_PACKAGE) not in "".join(map(str, events))
