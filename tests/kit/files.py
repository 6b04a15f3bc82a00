"""Files below folders that are made when they are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["write", "write_all"]


def write(path: Path, content: str | bytes, mode: int = 0o644) -> Path:
    """Write a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def write_all(root: Path, texts: Mapping[str, str], mode: int = 0o644) -> None:
    """Write texts below a folder, by name."""
    for name, text in texts.items():
        write(root / name, text, mode)
