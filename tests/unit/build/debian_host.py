"""A Debian 12 host with a sample of the real package indexes."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.build import workspace
from provision.build.request import DriverRequest
from provision.build.workspace import Settings, load_settings
from unit.fake_archive import AptEngine, samples, write_apt_sources

KERNEL = "6.1.0-47-amd64"


REQUEST = DriverRequest("v4l2loopback", kernel=KERNEL, distro="debian:12")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A Debian 12 host on x86_64 with a provision.toml."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for name in workspace._PROXIES:  # noqa: SLF001 - this machine's must not show
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


@pytest.fixture
def engine() -> AptEngine:
    """An engine that has a sample of the real archive."""
    return AptEngine(samples())
