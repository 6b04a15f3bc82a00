"""The folders that come with provision: templates, drivers, documentation."""

from __future__ import annotations

import sys
from pathlib import Path

from provision.errors import NotFoundError

# The repository's root, seen from this file, if it still lies in a checkout.
_CHECKOUT = Path(__file__).resolve().parents[2]
_INSTALLED = Path(sys.prefix, "share/provision")


def templates_dir() -> Path:
    """Return the folder with the Dockerfile templates."""
    return shipped("templates")


def documentation_url(page: str) -> str:
    """Return the address of a page of the documentation, such as ``how-to/add-a-driver.md``."""
    return (shipped("docs") / page).as_uri()


def shipped(name: str) -> Path:
    """Return a folder that comes with provision."""
    # Both must exist: any project may have a folder of this name above some site-packages.
    if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / name).is_dir():
        return _CHECKOUT / name
    if (_INSTALLED / name).is_dir():
        return _INSTALLED / name
    raise NotFoundError(
        f"provision's own folder '{name}' is missing.",
        resolution="Install provision again, or run it from a checkout.",
        details=f"looked for {_CHECKOUT / name}\nlooked for {_INSTALLED / name}",
    )
