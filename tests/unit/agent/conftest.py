"""A host in a folder, and one that has its driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.agent.host import OLDER, Host, make_host


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return make_host(tmp_path / "host", monkeypatch)


@pytest.fixture
def ready(host: Host) -> Host:
    """A host with an older version loaded than the one that is the newest by now."""
    newest, host.newest = host.newest, OLDER
    host.apply()
    host.newest = newest
    return host
