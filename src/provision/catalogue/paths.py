"""Where provision's own files lie: in a checkout, or where an installation put them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from provision.errors import NotFoundError
from provision.rootfs import in_root

# The repository's root, seen from this file, if it still lies in a checkout.
_CHECKOUT = Path(__file__).resolve().parents[3]
_INSTALLED = Path(sys.prefix, "share/provision")


def catalogue_folders(configured: Sequence[str] = (), *, root: Path = Path("/")) -> list[Path]:
    """Return the folders with driver folders; a driver in a later one masks an earlier one's.

    Args:
        configured: What provision.toml lists, as absolute paths on the host.
        root: Root of the host.

    Raises:
        NotFoundError: provision's own are missing.
    """
    own = _shipped("driver_images")
    return [own, *(in_root(root, folder) for folder in configured)]


def templates_dir() -> Path:
    """Return the folder with the Dockerfile templates.

    Raises:
        NotFoundError: It is missing.
    """
    return _shipped("templates")


def documentation_url(page: str) -> str:
    """Return the address of a page of the documentation, such as ``how-to/add-a-driver.md``.

    Raises:
        NotFoundError: The documentation is missing.
    """
    return (_shipped("docs") / page).as_uri()


def _shipped(name: str) -> Path:
    # Both must be there: any project may have a folder of this name above some site-packages.
    if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / name).is_dir():
        return _CHECKOUT / name
    if (_INSTALLED / name).is_dir():
        return _INSTALLED / name
    raise NotFoundError(
        f"provision's own folder '{name}' is missing.",
        resolution="Install provision again, or run it from a checkout.",
        details=f"looked for {_CHECKOUT / name}\nlooked for {_INSTALLED / name}",
    )
