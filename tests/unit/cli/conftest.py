"""A host's root, for commands."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host's root."""
    root = tmp_path / "host"
    (root / "etc").mkdir(parents=True)
    (root / "etc/os-release").write_text(
        'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian 12"\n'
    )
    return root
