"""An engine in memory, and a host tree, for commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.build.image import DIGEST_LABEL
from provision.cli import job
from provision.engine.docker_api import Image
from provision.pin import PIN_LABEL
from unit.engine.fake_engine import FakeEngine
from unit.kmod.artifact import make_artifact, make_pin


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """An engine that has one artifact image, whose Pin is ``make_pin()``."""
    engine = FakeEngine()
    pin = make_pin()
    make_artifact(tmp_path / "content", pin=pin)
    labels = {DIGEST_LABEL: pin.digest, PIN_LABEL: pin.canonical_json()}
    engine.have(Image("sha256:1", (pin.image,), labels=labels, size=7), tmp_path / "content")
    monkeypatch.setattr(job, "open_engine", lambda _settings: engine)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return engine


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host's root."""
    root = tmp_path / "host"
    (root / "etc").mkdir(parents=True)
    (root / "etc/os-release").write_text(
        'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian 12"\n'
    )
    return root
