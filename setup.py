"""Packs catalogue, templates and documentation with the program: pyproject.toml names no trees."""

import shutil
from pathlib import Path

from setuptools import setup


def trees(*names: str) -> list[tuple[str, list[str]]]:
    """Return the files of whole folders, by the folder that they are installed into."""
    found: dict[str, list[str]] = {}
    for name in names:
        for file in sorted(path for path in Path(name).rglob("*") if path.is_file()):
            found.setdefault(f"share/provision/{file.parent}", []).append(str(file))
    return list(found.items())


# An earlier version left its modules there, and setuptools would pack them too: a package that is a
# module now would hide it.
shutil.rmtree("build/lib", ignore_errors=True)
setup(
    data_files=[
        *trees("docs", "driver_images", "templates"),
        ("share/provision", ["constraints.txt"]),
    ]
)
