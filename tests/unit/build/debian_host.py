"""A Debian 12 host with a sample of the real package indexes, a fake engine and a fake solver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from provision.build import network_access, session
from provision.build.package_store import Closure, PackageStore
from provision.build.request import DriverRequest
from provision.build.solve import SolveRequest
from provision.build.workspace import Settings, load_settings
from provision.engine.docker_api import Engine, Image
from unit.engine.fake_engine import FakeEngine
from unit.fake_archive import have_apt_answer, samples, write_apt_sources
from unit.fake_solver import closure

BASE_IMAGE = Image("sha256:" + "a" * 64, ("debian:bookworm",), architecture="amd64")


KERNEL = "6.1.0-47-amd64"


REQUEST = DriverRequest("v4l2loopback", kernel=KERNEL, distro="debian:12")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A Debian 12 host on x86_64 with a provision.toml."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in network_access._PROXIES:  # noqa: SLF001 - this machine's must not show
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "host"
    (root / "etc/provision").mkdir(parents=True)
    (root / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    (root / "lib/modules" / KERNEL).mkdir(parents=True)
    write_apt_sources(root)
    (root / "etc/provision/provision.toml").write_text(
        '[engine]\njobs = 3\nnetwork = "host"\n'
        '[distros.debian]\nbase_images = { "13" = "mine/trixie:1" }\n'
    )
    (root / "more/extra").mkdir(parents=True)
    (root / "more/extra/driver.toml").write_text("schema = 2\n")
    return load_settings(root, catalogues=[root / "more"])


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Have apt answer from a sample of the real archive; what it is asked."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return have_apt_answer(monkeypatch, samples())


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

    monkeypatch.setattr(session, "solve", solve)
    monkeypatch.setattr(PackageStore, "fetch", fetch)
    return asked


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.have(BASE_IMAGE)
    return engine


def no_engine() -> Engine:
    raise AssertionError("the engine was asked for")
