"""The package as pip installs it: with recipes, templates and pages, outside of a checkout."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

from kit.cache import REPOSITORY

_FOLDERS = ("docs", "driver_images", "templates")
_PREFIX = "share/provision/"


def test_the_wheel_has_every_recipe_template_and_page(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    packed = {Path(name.split(_PREFIX, 1)[1]) for name in names if _PREFIX in name}
    there = {
        path.relative_to(REPOSITORY)
        for folder in _FOLDERS
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file()
    }
    # A file beside these folders may lie there too.
    assert {path for path in packed if len(path.parts) > 1} == there
    assert Path("templates/Dockerfile.apt.j2") in packed
