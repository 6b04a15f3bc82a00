"""From what somebody wants to a build, on real package indexes and a fake engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provision.archive import ArchiveIndex
from provision.errors import NotFoundError
from provision.image.build import BuildRequest, Built
from provision.image.engine import Engine, Image
from provision.pin import BasePin
from provision.pipeline import images, resolution
from provision.pipeline.images import BuildSettings, build_image, ensure_base_image, wanted_base
from provision.pipeline.resolution import Wanted, list_kernels, render_context, resolve_pin
from provision.pipeline.settings import Settings, load_settings
from provision.progress import Progress
from unit.fake_archive import sample_index
from unit.image.fake_engine import FakeEngine

_BASE = Image("sha256:" + "a" * 64, ("debian:bookworm",), architecture="amd64")
_KERNEL = "6.1.0-47-amd64"
_WANTED = Wanted("v4l2loopback", kernel=_KERNEL, distro="debian:12")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A Debian 12 host on x86_64 with a provision.toml."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in images._PROXIES:  # noqa: SLF001 - this machine's must not show
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "host"
    (root / "etc/provision").mkdir(parents=True)
    (root / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    (root / "lib/modules" / _KERNEL).mkdir(parents=True)
    (root / "etc/provision/provision.toml").write_text(
        '[engine]\njobs = 3\nnetwork = "host"\n'
        '[distros.debian]\nbase_images = { "13" = "mine/trixie:1" }\n'
    )
    (root / "more/extra").mkdir(parents=True)
    (root / "more/extra/driver.toml").write_text("schema = 2\n")
    return load_settings(root, catalogues=[root / "more"])


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have every archive be a sample of the real one."""
    opened: list[ArchiveIndex] = []

    def open_index(*_distro: object, **_options: object) -> ArchiveIndex:
        opened.append(sample_index(tmp_path / "index"))
        return opened[-1]

    monkeypatch.setattr(resolution, "open_index", open_index)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    yield
    for made in opened:
        made.close()


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.have(_BASE)
    return engine


def no_engine() -> Engine:
    raise AssertionError("the engine was asked for")


def test_the_same_wish_gives_the_same_pin_and_context(
    settings: Settings, engine: FakeEngine
) -> None:
    one, other = (resolve_pin(settings, lambda: engine, _WANTED) for _ in range(2))
    assert one.pin == other.pin
    assert one.pin.base == BasePin(image="debian:bookworm", digest=_BASE.id)
    assert render_context(one).files == render_context(other).files
    assert _BASE.id in render_context(one).dockerfile


def test_kernels_are_listed_with_what_builds_on_them(settings: Settings) -> None:
    distro, rows = list_kernels(settings, no_engine, "v4l2loopback", distro="debian:12")
    assert distro.codename == "bookworm"
    by_release = {row.release: row for row in rows}
    assert by_release[_KERNEL].builds
    assert by_release[_KERNEL].version == "0.12.7"


def test_wrong_names_are_not_found(settings: Settings, engine: FakeEngine) -> None:
    for wanted in (
        Wanted("v4l2loopbak", kernel=_KERNEL),
        Wanted("v4l2loopback", kernel=_KERNEL, flavour="none"),
        Wanted("v4l2loopback", kernel=_KERNEL, distro="debian:1"),
        Wanted("v4l2loopback", kernel="6.1.0-1-amd64"),
    ):
        with pytest.raises(NotFoundError):
            resolve_pin(settings, lambda: engine, wanted)
    with pytest.raises(NotFoundError):
        list_kernels(settings, no_engine, "v4l2loopback", flavour="none")


def test_what_does_not_exist_is_said_without_an_engine(settings: Settings) -> None:
    with pytest.raises(NotFoundError, match=r"6\.1\.0-1-amd64"):
        resolve_pin(settings, no_engine, Wanted("v4l2loopback", kernel="6.1.0-1-amd64"))
    named = f"debian:bookworm@sha256:{'0' * 64}"
    pin = resolve_pin(settings, no_engine, replace(_WANTED, base=named)).pin
    assert f"{pin.base.image}@{pin.base.digest}" == named


def test_what_cannot_change_the_result_goes_beside_the_pin(
    settings: Settings, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[BuildRequest] = []

    def build(_engine: Engine, request: BuildRequest, *, progress: Progress) -> Built:
        assert callable(progress)
        asked.append(request)
        return Built("i", "sha256:1", 1, built=False)

    monkeypatch.setattr(images, "build", build)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    resolved = resolve_pin(settings, lambda: engine, _WANTED)
    build_image(settings, engine, resolved, BuildSettings())
    build_image(settings, engine, resolved, BuildSettings(jobs=1, network="none", rebuild=True))
    first, second = asked
    assert first.build_args == {
        "JOBS": "3",
        "DEBIAN_MIRROR": "http://mirror.example/debian",
        "DEBIAN_SECURITY_MIRROR": "http://mirror.example/debian-security",
        "https_proxy": "http://proxy:3128",
    }
    assert (first.network, first.rebuild) == ("host", False)
    assert second.build_args["JOBS"] == "1"
    assert (second.network, second.rebuild) == ("none", True)
    assert first.pin == second.pin


def test_a_base_image_that_is_there_stays(settings: Settings, engine: FakeEngine) -> None:
    pin, made = ensure_base_image(settings, engine, "debian:12")
    assert (pin.digest, made) == (_BASE.id, False)
    assert engine.calls == []


@pytest.mark.parametrize("replace", [False, True])
def test_a_base_image_is_made_where_it_is_wanted(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    *,
    replace: bool,
) -> None:
    mirrors: list[object] = []

    def make_base(*_given: object, mirror: str, **_more: object) -> BasePin:
        mirrors.append(mirror)
        return BasePin(image="debian:bookworm", digest=_BASE.id)

    monkeypatch.setattr(images, "make_base", make_base)
    engine = FakeEngine()
    if replace:
        engine.have(_BASE)
    _pin, made = ensure_base_image(settings, engine, None, replace=replace)
    assert made
    assert mirrors == ["http://mirror.example/debian"]


def test_an_archive_of_ones_own_goes_into_build_and_base_with_its_keys(
    settings: Settings, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_index(*_distro: object, **_options: object) -> ArchiveIndex:
        index = sample_index(tmp_path / "own")
        index.keyring, index.is_snapshot = b"\x99site", True
        return index

    asked: list[BuildRequest] = []
    keyrings: list[bytes] = []

    def build(_engine: Engine, request: BuildRequest, **_more: object) -> Built:
        asked.append(request)
        return Built("i", "sha256:1", 1, built=False)

    def make_base(*_given: object, keyring: Path, **_more: object) -> BasePin:
        keyrings.append(keyring.read_bytes())
        return BasePin(image="debian:bookworm", digest=_BASE.id)

    monkeypatch.setattr(images, "build", build)
    monkeypatch.setattr(images, "make_base", make_base)
    plain = resolve_pin(settings, lambda: engine, _WANTED)
    monkeypatch.setattr(resolution, "open_index", open_index)
    resolved = resolve_pin(settings, lambda: engine, _WANTED)
    build_image(settings, engine, resolved, BuildSettings())
    ensure_base_image(settings, engine, None, replace=True)
    assert asked[0].files["archive-keyring.gpg"] == b"\x99site"
    assert asked[0].build_args["DEBIAN_SNAPSHOT"] == "yes"
    assert keyrings == [b"\x99site"]
    assert plain.pin.keyring is None
    assert resolved.pin.digest != plain.pin.digest


def test_the_base_image_that_the_config_names_is_wanted(settings: Settings) -> None:
    assert wanted_base(settings, "debian:13").name == "mine/trixie:1"
    assert wanted_base(settings, None).name == "debian:bookworm"


def test_provision_toml_says_whose_kernels_a_host_runs(settings: Settings) -> None:
    """As on stand-ins of hosts that are not supported; what the caller names goes before."""
    (settings.root / "etc/os-release").write_text("ID=plan9\nVERSION_ID=4\n")
    config = settings.config.model_copy(update={"kernel_distro": "debian:12"})
    chosen = resolution.choose_distro(replace(settings, config=config), None)
    assert (chosen.id, chosen.codename) == ("debian", "bookworm")
    named = resolution.choose_distro(replace(settings, config=config), "debian:13")
    assert named.codename == "trixie"
    with pytest.raises(NotFoundError, match="plan9:4"):
        resolution.choose_distro(settings, None)
