"""From what someone wants to a build, on real package indexes and a fake engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from provision.build import network_access
from provision.build.artifact_image import DIGEST_LABEL, BuildRequest, Built
from provision.build.bootstrap import Mirror
from provision.build.package_store import Closure, PackageStore
from provision.build.solve_request import SolveRequest
from provision.distros.debian import ArchiveIndex
from provision.distros.debian.packages_file import PackageTable
from provision.engine.docker_api import Engine, Image
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.matrix.cells import Selection, plan_cells
from provision.matrix.offers import find_offers
from provision.pin import PIN_LABEL, BasePin, Pin
from provision.pipeline import image_builds, package_pins, solving
from provision.pipeline.availability import list_kernels
from provision.pipeline.context_files import downloaded_files
from provision.pipeline.driver_request import BuildSettings, DriverRequest, choose_distro
from provision.pipeline.image_builds import (
    base_of,
    build_image,
    ensure_base_image,
)
from provision.pipeline.package_pins import render_context
from provision.pipeline.resolving import resolve_pin
from provision.pipeline.workspace import Settings, load_settings
from provision.progress import Progress
from unit.engine.fake_engine import FakeEngine
from unit.fake_archive import sample_index
from unit.fake_solver import closure

_BASE = Image("sha256:" + "a" * 64, ("debian:bookworm",), architecture="amd64")
_KERNEL = "6.1.0-47-amd64"
_WANTED = DriverRequest("v4l2loopback", kernel=_KERNEL, distro="debian:12")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A Debian 12 host on x86_64 with a provision.toml."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in network_access._PROXIES:  # noqa: SLF001 - this machine's must not show
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

    monkeypatch.setattr(solving, "open_index", open_index)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    yield
    for made in opened:
        made.close()


@pytest.fixture(autouse=True)
def solved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[SolveRequest]:
    """Have every solver find one package, and the package store have every file; what was asked."""
    asked: list[SolveRequest] = []

    def solve(_engine: object, request: SolveRequest, _store: object, **_more: object) -> Closure:
        asked.append(request)
        return closure(request)

    def fetch(_store: object, sha256: str, urls: Sequence[str], **_more: object) -> Path:
        (tmp_path / sha256).write_text("\n".join(urls))
        return tmp_path / sha256

    monkeypatch.setattr(package_pins, "solve", solve)
    monkeypatch.setattr(PackageStore, "fetch", fetch)
    return asked


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
    distro, rows = list_kernels(
        settings, no_engine, DriverRequest("v4l2loopback", distro="debian:12")
    )
    assert distro.codename == "bookworm"
    by_release = {row.release: row for row in rows}
    assert by_release[_KERNEL].builds
    assert by_release[_KERNEL].version == "0.12.7"


def test_a_matrix_chooses_from_what_the_archive_has(settings: Settings) -> None:
    selection = Selection(("nvidia", "v4l2loopback"), ("debian:12",), flavours=("all",))
    offers = find_offers(settings, no_engine, selection)
    kernels = offers.kernels["debian:12"]
    assert kernels
    assert _KERNEL in kernels
    found = {(offer.driver, offer.flavour): offer for offer in offers.offers}
    assert found["v4l2loopback", "dkms"].versions == ("0.12.7",)
    assert {name for name, _ in found} == {"nvidia", "v4l2loopback"}
    cells = [one.cell for one in plan_cells(selection, offers)]
    assert len(cells) == len(set(cells))
    with pytest.raises(NotFoundError, match="no driver"):
        find_offers(settings, no_engine, Selection(("none",)))
    with pytest.raises(NotFoundError, match="debian:1"):
        find_offers(settings, no_engine, Selection(("v4l2loopback",), ("debian:1",)))


def test_kernels_that_can_not_be_listed_have_to_be_named(settings: Settings) -> None:
    named = Selection(
        ("v4l2loopback", "onload"), ("flatcar:3227.2.4",), kernels=("5.15.63-flatcar",)
    )
    offers = find_offers(settings, no_engine, named)
    assert offers.kernels == {"flatcar:3227.2.4": None}
    assert all(offer.refusal for offer in offers.offers if offer.driver == "v4l2loopback")
    with pytest.raises(NotFoundError, match="could be listed"):
        find_offers(settings, no_engine, replace(named, kernels=("latest",)))


def test_wrong_names_are_not_found(settings: Settings, engine: FakeEngine) -> None:
    for wanted in (
        DriverRequest("v4l2loopbak", kernel=_KERNEL),
        DriverRequest("v4l2loopback", kernel=_KERNEL, flavour="none"),
        DriverRequest("v4l2loopback", kernel=_KERNEL, distro="debian:1"),
        DriverRequest("v4l2loopback", kernel="6.1.0-1-amd64"),
    ):
        with pytest.raises(NotFoundError):
            resolve_pin(settings, lambda: engine, wanted)
    with pytest.raises(NotFoundError):
        list_kernels(settings, no_engine, DriverRequest("v4l2loopback", flavour="none"))


def test_what_does_not_exist_is_said_without_an_engine(settings: Settings) -> None:
    with pytest.raises(NotFoundError, match=r"6\.1\.0-1-amd64"):
        resolve_pin(settings, no_engine, DriverRequest("v4l2loopback", kernel="6.1.0-1-amd64"))
    named = f"debian:bookworm@sha256:{'0' * 64}"
    pin = resolve_pin(settings, no_engine, replace(_WANTED, base=named)).pin
    assert f"{pin.base.image}@{pin.base.digest}" == named


def _unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the archive's lists of packages not be cached; returns when they are read."""
    read: list[str] = []
    index = sample_index(tmp_path / "unread")

    def tables() -> Sequence[PackageTable]:
        read.append("read")
        return sample_index(tmp_path / f"unread-{len(read)}").read()

    def open_index(*_distro: object, **_options: object) -> ArchiveIndex:
        return ArchiveIndex(
            distro=index.distro,
            architecture=index.architecture,
            tables=tables,
            suites=index.suites,
        )

    monkeypatch.setattr(solving, "open_index", open_index)
    return read


def test_the_solver_is_asked_before_lists_of_packages_are_downloaded(
    settings: Settings,
    engine: FakeEngine,
    solved: list[SolveRequest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archived = replace(_WANTED, driver="onload", force=True)
    before = resolve_pin(settings, lambda: engine, archived)
    read = _unread(tmp_path, monkeypatch)
    assert resolve_pin(settings, lambda: engine, archived).pin == before.pin
    assert read == []
    assert solved[0].repositories == solved[1].repositories
    # Which versions there are of what is packaged, only the lists say.
    resolve_pin(settings, lambda: engine, _WANTED)
    assert read == ["read"]


@pytest.mark.parametrize(
    "error", [NotFoundError("Unable to locate package"), ProvisionError("The connection broke.")]
)
def test_what_the_solver_does_not_find_is_explained_by_the_lists(
    settings: Settings,
    engine: FakeEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: ProvisionError,
) -> None:
    read = _unread(tmp_path, monkeypatch)

    def fail(*_request: object, **_more: object) -> Closure:
        raise error

    monkeypatch.setattr(package_pins, "solve", fail)
    with pytest.raises(NotFoundError, match="No headers are packaged") as caught:
        resolve_pin(
            settings,
            lambda: engine,
            replace(_WANTED, driver="onload", kernel="6.1.0-1-amd64", force=True),
        )
    assert "6.1.0-47-amd64" in str(caught.value.details)
    assert read == ["read"]
    # Its headers are there: what went wrong is something else.
    with pytest.raises(ProvisionError, match=error.message):
        resolve_pin(settings, lambda: engine, _WANTED)


def test_an_archive_that_cannot_be_reached_is_not_asked_again(
    settings: Settings, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = _unread(tmp_path, monkeypatch)

    def fail(*_request: object, **_more: object) -> Closure:
        raise UnreachableError("The archive can't be reached from the solving container.")

    monkeypatch.setattr(package_pins, "solve", fail)
    with pytest.raises(UnreachableError):
        resolve_pin(
            settings,
            lambda: engine,
            replace(_WANTED, driver="onload", kernel="6.1.0-1-amd64", force=True),
        )
    assert read == []


def test_headers_that_apt_took_a_name_for_a_pattern_of_are_refused(
    settings: Settings, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unread(tmp_path, monkeypatch)

    def other(_engine: object, request: SolveRequest, _store: object, **_more: object) -> Closure:
        return closure(replace(request, kernel=_KERNEL))

    monkeypatch.setattr(package_pins, "solve", other)
    wanted = replace(_WANTED, driver="onload", kernel=_KERNEL.removesuffix("4"), force=True)
    with pytest.raises(NotFoundError, match="No headers are packaged"):
        resolve_pin(settings, lambda: engine, wanted)


def test_what_cannot_change_the_result_goes_beside_the_pin(
    settings: Settings, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[BuildRequest] = []

    def build(_engine: Engine, request: BuildRequest, *, progress: Progress) -> Built:
        assert callable(progress)
        asked.append(request)
        return Built("i", "sha256:1", 1, built=False)

    monkeypatch.setattr(image_builds, "build", build)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    resolved = resolve_pin(settings, lambda: engine, _WANTED)
    build_image(settings, engine, resolved, BuildSettings())
    build_image(settings, engine, resolved, BuildSettings(jobs=1, rebuild=True))
    first, second = asked
    assert first.build_args == {
        "JOBS": "3",
        "https_proxy": "http://proxy:3128",
    }
    assert (first.network, first.rebuild) == ("none", False)
    assert second.build_args["JOBS"] == "1"
    assert (second.network, second.rebuild) == ("none", True)
    assert first.pin == second.pin


def test_an_image_that_is_there_takes_no_download(
    settings: Settings, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = resolve_pin(settings, lambda: engine, _WANTED)
    monkeypatch.setattr(image_builds, "downloaded_files", no_download)
    with pytest.raises(AssertionError):
        build_image(settings, engine, resolved, BuildSettings())
    labels = {DIGEST_LABEL: resolved.pin.digest}
    engine.have(Image(f"sha256:{'1' * 64}", (resolved.pin.image,), labels=labels))
    assert not build_image(settings, engine, resolved, BuildSettings()).built


def no_download(*_given: object, **_more: object) -> dict[str, Path]:
    raise AssertionError


def test_the_context_has_the_packages_and_the_drivers_source_from_the_store(
    settings: Settings, engine: FakeEngine
) -> None:
    resolved = resolve_pin(settings, lambda: engine, _WANTED)
    files = downloaded_files(settings, resolved, render_context(resolved))
    gcc = files["packages/gcc-12_12.2.0-14+deb12u1_amd64.deb"]
    assert gcc.read_text() == "http://mirror.example/debian/gcc-12.deb"
    (source, userspace) = (s for s in resolved.pin.sources if s.kind == "deb")
    for deb in (source, userspace):
        path = files[f"sources/{deb.sha256}"]
        assert path.read_text().startswith("http://mirror.example/debian/pool/")


def test_the_solver_gets_the_archives_own_suites_and_the_drivers_tools(
    settings: Settings, engine: FakeEngine, solved: list[SolveRequest]
) -> None:
    resolve_pin(settings, lambda: engine, replace(_WANTED, network="bridge"))
    (asked,) = solved
    assert {one.id for one in asked.repositories} == {"bookworm", "bookworm-security"}
    assert {one.urls for one in asked.repositories} == {
        ("http://mirror.example/debian",),
        ("http://mirror.example/debian-security",),
    }
    assert asked.tools == ("kmod", "make", "patch", "python3", "xz-utils")
    assert (asked.kernel, asked.network) == (_KERNEL, "bridge")
    resolve_pin(settings, lambda: engine, _WANTED)
    assert solved[-1].network == "host"


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

    def make_apt_base(_engine: Engine, _asked: object, mirror: Mirror, **_more: object) -> BasePin:
        mirrors.append(mirror.url)
        return BasePin(image="debian:bookworm", digest=_BASE.id)

    monkeypatch.setattr(image_builds, "make_apt_base", make_apt_base)
    engine = FakeEngine()
    if replace:
        engine.have(_BASE)
    _pin, made = ensure_base_image(settings, engine, None, replace=replace)
    assert made
    assert mirrors == ["http://mirror.example/debian"]


def test_a_subscribed_host_asks_the_solver_for_kernels_that_the_index_lacks(
    settings: Settings, engine: FakeEngine, solved: list[SolveRequest]
) -> None:
    wanted = replace(_WANTED, kernel="5.15.0-1099-generic", distro="ubuntu:22.04", force=True)
    with pytest.raises(NotFoundError, match="No headers are packaged"):
        resolve_pin(settings, lambda: engine, wanted)
    token = settings.root / "etc/apt/auth.conf.d/90ubuntu-advantage"
    token.parent.mkdir(parents=True)
    token.write_text("machine esm.example")
    engine.have(replace(_BASE, tags=("ubuntu:jammy",)))
    resolve_pin(settings, lambda: engine, wanted)
    assert [request.kernel for request in solved] == ["5.15.0-1099-generic"]


def test_an_archive_of_ones_own_goes_to_the_solver_and_the_base_with_its_keys(
    settings: Settings,
    engine: FakeEngine,
    solved: list[SolveRequest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "site.gpg").write_bytes(b"\x99site")

    def open_index(*_distro: object, **_options: object) -> ArchiveIndex:
        index = sample_index(tmp_path / "own")
        index.suites = tuple(
            replace(
                suite,
                address=replace(
                    suite.address,
                    keyrings=(tmp_path / "site.gpg",),
                    has_own_keys=True,
                    snapshot=True,
                ),
            )
            for suite in index.suites
        )
        return index

    keyrings: list[bytes] = []

    def make_apt_base(_engine: Engine, _asked: object, mirror: Mirror, **_more: object) -> BasePin:
        assert mirror.keyring is not None
        keyrings.append(mirror.keyring.read_bytes())
        return BasePin(image="debian:bookworm", digest=_BASE.id)

    monkeypatch.setattr(image_builds, "make_apt_base", make_apt_base)
    plain = resolve_pin(settings, lambda: engine, _WANTED)
    monkeypatch.setattr(solving, "open_index", open_index)
    resolved = resolve_pin(settings, lambda: engine, _WANTED)
    ensure_base_image(settings, engine, None, replace=True)
    assert [dict(one.keys) for one in solved[0].repositories] == [{}] * 5
    assert all(dict(one.keys) == {"site.gpg": b"\x99site"} for one in solved[1].repositories)
    assert all(one.is_snapshot for one in solved[1].repositories)
    assert keyrings == [b"\x99site"]
    assert resolved.pin.digest == plain.pin.digest, "what is installed is the same"


def test_the_base_image_that_the_config_names_is_wanted(settings: Settings) -> None:
    assert base_of(settings, "debian:13").name == "mine/trixie:1"
    ubuntu = base_of(settings, "ubuntu:26.04")
    assert (ubuntu.name, ubuntu.script) == ("ubuntu:resolute", "gutsy")
    assert base_of(settings, None).name == "debian:bookworm"


def test_provision_toml_says_whose_kernels_a_host_runs(settings: Settings) -> None:
    """As on stand-ins of hosts that are not supported; what the caller names goes before."""
    (settings.root / "etc/os-release").write_text("ID=plan9\nVERSION_ID=4\n")
    config = settings.config.model_copy(update={"kernel_distro": "debian:12"})
    chosen = choose_distro(replace(settings, config=config), None)
    assert (chosen.id, chosen.codename) == ("debian", "bookworm")
    named = choose_distro(replace(settings, config=config), "debian:13")
    assert named.codename == "trixie"
    with pytest.raises(NotFoundError, match="plan9:4"):
        choose_distro(settings, None)


@pytest.fixture
def made(
    settings: Settings, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Pin]:
    """Resolve where nothing can be solved for, with an image of these names and labels here."""
    pin = resolve_pin(settings, lambda: engine, _WANTED).pin

    def solve(*_given: object, **_more: object) -> Closure:
        raise NotFoundError("no base image to solve in")

    def resolved(*tags: str, label: str = "", update: bool = False) -> Pin:
        labels = {PIN_LABEL: label or pin.canonical_json()}
        engine.have(Image(f"sha256:{'1' * 64}", tags or (pin.image,), labels=labels))
        wanted = replace(_WANTED, update=update)
        found = resolve_pin(settings, lambda: engine, wanted).pin
        assert found == pin
        return found

    monkeypatch.setattr(package_pins, "solve", solve)
    return resolved


def test_the_packages_of_an_image_that_was_made_before_are_taken(
    made: Callable[..., Pin],
) -> None:
    assert made().closure
    assert made("localhost/provision/v4l2loopback:1")
    assert made("registry.example:5000/v4l2loopback:1", "provision/v4l2loopback:1")


def test_an_image_with_only_a_registrys_name_says_nothing_about_packages(
    made: Callable[..., Pin],
) -> None:
    with pytest.raises(NotFoundError, match="no base image to solve in"):
        made("registry.example:5000/v4l2loopback:1")


@pytest.mark.parametrize("change", ["", '"0.12.7"', '"6.1.0-47-amd64"', '"closure"'])
def test_an_image_of_another_decision_or_with_a_damaged_label_does_not_count(
    made: Callable[..., Pin], change: str
) -> None:
    pin = made()
    text = pin.canonical_json()
    label = text.replace(change, f'{change[:-1]}x"') if change else "{"
    assert label != text
    with pytest.raises(NotFoundError, match="no base image to solve in"):
        made(label=label)


def test_what_is_to_be_solved_again_is_not_taken_from_an_image(made: Callable[..., Pin]) -> None:
    with pytest.raises(NotFoundError, match="no base image to solve in"):
        made(update=True)
