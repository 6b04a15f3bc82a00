"""A Pin as a file, and where its packages come from."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kit.files import sha256
from kit.fileserver import served
from kit.upstream import demo_recipe
from provision.build.context_files import context_files
from provision.build.dockerfile import recipe_digest
from provision.build.image import DIGEST_LABEL, build_image, render_context
from provision.build.package_store import PackageStore
from provision.build.resolve import (
    pin_document,
    read_pin,
    resolve_pin,
)
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import ArchiveConfig, Config, DistroConfig
from provision.distros.distro import find_distro
from provision.engine.docker_api import Image
from provision.errors import ConfigError, NotFoundError, ProvisionError, UnreachableError
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
from unit.build.debian_host import KERNEL, REQUEST
from unit.build.debian_host import engine as engine  # noqa: PLC0414 - a fixture
from unit.build.debian_host import settings as settings  # noqa: PLC0414 - a fixture
from unit.engine.fake_engine import recorded, using
from unit.fake_archive import MIRROR, AptEngine, stanza
from unit.recipes import variant

_SOURCE = b"a tarball"
_PACKAGE = b"an rpm"
_RECIPE = demo_recipe(
    '[source]\nkind = "archive"\n[[source.releases]]\nversion = "1.0"\n'
    f'url = "https://example.org/demo-1.0.tar.xz"\nsha256 = "{sha256(_SOURCE)}"'
)


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
    folder = tmp_path / "catalogue/demo"
    folder.mkdir(parents=True)
    (folder / "driver.toml").write_text(_RECIPE)
    settings = Settings(tmp_path, Config(), Catalogue([folder.parent]), tmp_path / "state")
    recipe = settings.catalogue.entry("demo").recipe
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
        driver=DriverPin(name="demo", version="1.0", flavour="open"),
        kernel=KernelPin(release="5.14.0-427.el9.x86_64", architecture="x86_64"),
        distro=find_distro("rocky:9"),
        base=BasePin(image="rocky:9", digest=f"sha256:{'b' * 64}"),
        compiler=PackagePin(name="gcc", version="11.4.1-3.el9"),
        headers=(PackagePin(name="kernel-devel", version="5.14.0-427.el9"),),
        packages=(),
        closure=(package,),
        sources=(ArchiveSource(url="https://example.org/demo-1.0.tar.xz", sha256=sha256(_SOURCE)),),
        recipe=recipe_digest(recipe, variant(recipe)),
        format=FORMAT,
    )
    return Case(settings, pin, tmp_path / "pin.json")


def _with(pin: Pin, urls: Mapping[str, tuple[str, ...]]) -> Pin:
    return pin.model_copy(update={"urls": urls})


def test_what_was_written_is_what_is_read(case: Case) -> None:
    urls = {sha256(_PACKAGE): ("http://one.example/gcc.rpm", "http://two.example/gcc.rpm")}
    case.write(pin_document(_with(case.pin, urls)))
    found = read_pin(case.settings, case.file)
    assert found.canonical_json() == case.pin.canonical_json()
    assert found.digest == case.pin.digest
    assert found.urls == urls
    # Addresses are no part of it.
    assert "urls" not in pin_document(case.pin)
    case.write(pin_document(case.pin))
    assert read_pin(case.settings, case.file).digest == case.pin.digest
    # And it can be rendered here.
    assert f"packages/{case.pin.closure[0].location.rpartition('/')[2]}" in (
        render_context(case.settings, found).downloads
    )


def test_a_password_or_a_token_goes_to_no_other_machine(case: Case) -> None:
    public = "http://one.example/gcc.rpm"
    secret = ("http://me:secret@one.example/gcc.rpm", "http://one.example/?secret/gcc.rpm")
    text = json.dumps(pin_document(_with(case.pin, {sha256(_PACKAGE): (*secret, public)})))
    assert "secret" not in text
    assert json.loads(text)["urls"] == {sha256(_PACKAGE): [public]}
    assert "urls" not in pin_document(_with(case.pin, {sha256(_PACKAGE): secret}))


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
    recipe = case.settings.catalogue.entry("demo").folder / "driver.toml"
    for old, new in (('"make"', '"make", "V=1"'), ("flavours.open", "flavours.other")):
        recipe.write_text(_RECIPE.replace(old, new))
        with pytest.raises(ProvisionError):
            read_pin(case.settings, case.file)
        # It may have changed since, too: an image has what its Pin says.
        with pytest.raises(ProvisionError):
            render_context(case.settings, case.pin)


def test_downloads_are_counted_and_have_names_for_people(
    case: Case, tmp_path: Path, events: list[Event]
) -> None:
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv/gcc.rpm").write_bytes(_PACKAGE)
    with served(tmp_path / "srv") as url:
        case.write(pin_document(_with(case.pin, {sha256(_PACKAGE): (f"{url}/gcc.rpm",)})))
        found = read_pin(case.settings, case.file)
        case.keep(_SOURCE)
        context_files(
            PackageStore(case.settings.state), found, render_context(case.settings, found)
        )
    assert [e.text for e in events if isinstance(e, Note)] == ["Downloading 1 file (0.0 MB)"]
    assert sha256(_PACKAGE) not in "".join(map(str, events))


def _sources(files: Mapping[str, bytes]) -> list[str]:
    """The repositories that apt is given."""
    return [text.decode() for name, text in sorted(files.items()) if name.startswith("sources/")]


def test_apt_is_asked_only_about_drivers_that_are_packaged(
    settings: Settings, engine: AptEngine
) -> None:
    resolve_pin(using(settings, engine), replace(REQUEST, driver="onload", force=True))
    assert engine.asked == []
    resolve_pin(using(settings, engine), REQUEST)
    assert engine.asked == [("v4l2loopback-dkms", "v4l2loopback-utils")]
    one, other = map(_sources, engine.solved)
    assert one == other


def test_what_apt_answered_is_kept_for_some_minutes(settings: Settings, engine: AptEngine) -> None:
    index = engine.asked
    for _ in range(2):
        resolve_pin(using(settings, engine), REQUEST)
    assert len(index) == 1
    resolve_pin(using(settings, engine), replace(REQUEST, refresh=True))
    assert len(index) == 2
    _age_answers(settings, 16 * 60)
    # The archive has not changed: that it says the same is kept as well.
    for _ in range(2):
        resolve_pin(using(settings, engine), REQUEST)
    assert len(index) == 3


def test_an_archive_out_of_reach_answers_as_it_did_lately(
    settings: Settings, engine: AptEngine, notes: list[str]
) -> None:
    before = resolve_pin(using(settings, engine), REQUEST)
    engine.trouble = UnreachableError("no route")
    _age_answers(settings, 24 * 3600)
    again = resolve_pin(using(settings, engine), REQUEST)
    assert again == before
    assert any("Its last answer is used" in note for note in notes)
    _age_answers(settings, 8 * 24 * 3600)
    with pytest.raises(UnreachableError):
        resolve_pin(using(settings, engine), REQUEST)


def _age_answers(settings: Settings, seconds: float) -> None:
    for path in (settings.state / "packages/answers").iterdir():
        before = time.time() - seconds
        os.utime(path, (before, before))


def test_what_cannot_change_the_result_goes_beside_the_pin(
    settings: Settings, engine: AptEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A build has no network, so it gets no proxy either: its password would stay in an image.
    monkeypatch.setenv("https_proxy", "http://me:hush@proxy:3128")
    names = ("v4l2loopback-dkms", "v4l2loopback-utils")
    engine.texts = {("bookworm", "main"): "\n".join(stanza(name, "0.12.7-2") for name in names)}
    store = PackageStore(settings.state)
    for name in names:
        # What the stanza has the checksum of.
        content = f"{name}0.12.7-2".encode()
        store.add(io.BytesIO(content), sha256=sha256(content), name=name)
    resolved = resolve_pin(using(settings, engine), REQUEST)
    engine.conversation = recorded("built")
    final = [message["aux"]["ID"] for message in recorded("built") if "aux" in message][-1]
    engine.result = Image(final, labels={DIGEST_LABEL: resolved.digest})
    for given, jobs in ((None, "3"), (1, "1")):
        again = build_image(using(settings, engine), resolved, jobs=given, rebuild=given == 1)
        assert again.built
        assert engine.build_args[-1]["JOBS"] == jobs
    assert "hush" not in str(engine.build_args)


def test_the_solver_gets_the_archives_own_suites_and_the_drivers_tools(
    settings: Settings, engine: AptEngine
) -> None:
    resolve_pin(using(settings, engine).with_network("bridge"), REQUEST)
    (files,) = engine.solved
    for suite, text in zip(("bookworm", "bookworm-security"), _sources(files), strict=True):
        assert f"Suites: {suite}\n" in text
        mirror = f"{MIRROR}-security" if "security" in suite else MIRROR
        assert f"URIs: {mirror}\n" in text
    asked = f"set -- linux-headers-{KERNEL} kmod make patch python3 xz-utils\n"
    assert asked in files["script.sh"].decode()
    resolve_pin(using(settings, engine), replace(REQUEST, refresh=True))
    assert {request.network for request in engine.requests} == {"bridge", "host"}


def test_an_archive_of_ones_own_goes_to_the_solver_with_its_keys(
    settings: Settings, engine: AptEngine
) -> None:
    plain = resolve_pin(using(settings, engine), REQUEST)
    (settings.root / "etc/site.gpg").write_bytes(b"\x99site")
    archive = ArchiveConfig(
        mirror=MIRROR,
        security_mirror=f"{MIRROR}-security",
        keyring="/etc/site.gpg",
        snapshot=True,
    )
    distros = {"debian": DistroConfig(archive=archive)}
    settings = replace(settings, config=settings.config.model_copy(update={"distros": distros}))
    resolved = resolve_pin(using(settings, engine), REQUEST)
    assert resolved.digest == plain.digest, "what is installed is the same"
    before, after = engine.solved
    assert b"\x99site" not in before.values()
    assert b"\x99site" in after.values()
    assert all("Check-Valid-Until: no" in text for text in _sources(after))
