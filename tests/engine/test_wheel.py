"""The package as pip installs it: with recipes, templates and pages, outside of a checkout."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

from kit.cache import REPOSITORY
from kit.process import run

_PARTS = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md")
_FOLDERS = ("docs", "driver_images", "templates")
_PREFIX = "share/provision/"


def test_the_wheel_has_every_recipe_template_and_page(tmp_path: Path) -> None:
    # A copy, because setuptools builds beside what it reads.
    source = tmp_path / "source"
    source.mkdir()
    for name in _PARTS:
        shutil.copy(REPOSITORY / name, source)
    for name in ("src", *_FOLDERS):
        shutil.copytree(REPOSITORY / name, source / name)
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, source])
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name.split(_PREFIX, 1)[1] for name in ZipFile(wheel).namelist() if _PREFIX in name}
    there = {
        str(path.relative_to(REPOSITORY))
        for folder in _FOLDERS
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file()
    }
    assert packed == there
    assert "templates/Dockerfile.debian.j2" in packed
