"""The Python packages inside of a package: wheels of constraints.txt, for every Python they suit.

The wheels of one project for several Pythons differ in the names of their extension modules only,
so that they are laid over each other: one folder then serves each of these Pythons.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Collection
from pathlib import Path

from provision.errors import ProvisionError
from provision.run import LONG_LIMIT_S, run
from shipping.tree import Entry, File

# Debian 12 and EL 9 have 3.11, Ubuntu 24.04 and EL 10 have 3.12, Debian 13 has 3.13.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# glibc of the oldest of these distros that has such a Python: EL 9 has 2.34.
_OLDEST = (28, 17)
# What pip and importers need no more once a wheel is unpacked, and what differs between wheels.
_LEFT_OUT = ("/RECORD", "/WHEEL", "/INSTALLER", "/direct_url.json")
_PROGRAMS = ".data/"
# They name the Python; the release has a bill of materials of its own.
_SBOMS = ".dist-info/sboms/"


def wheels(constraints: Path, folder: Path, machine: str) -> list[Path]:
    """Download the wheels that constraints name, for all of ``PYTHONS``, each by its sha256.

    Args:
        constraints: The file with versions and checksums.
        folder: Where they are put.
        machine: As ``uname -m`` prints it.

    Raises:
        ProvisionError: pip could not get one.
    """
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in _OLDEST]
    platforms.append(f"manylinux2014_{machine}")
    for python in PYTHONS:
        pip: list[str | Path] = [
            sys.executable,
            "-I",
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-input",
        ]
        pip += ["--disable-pip-version-check", "--require-hashes", "--no-deps"]
        pip += ["--only-binary=:all:", f"--python-version={python}", f"--dest={folder}"]
        pip += [f"--platform={name}" for name in platforms]
        run(
            [*pip, "--requirement", constraints],
            why="get the Python packages that provision needs",
            timeout=LONG_LIMIT_S,
        )
    return sorted(folder.glob("*.whl"))


def project(wheel: Path) -> str:
    """Return the normalised name of a wheel's project: ``pydantic-core``."""
    return wheel.name.split("-")[0].lower().replace("_", "-").replace(".", "-")


def merged(found: Collection[Path], projects: Collection[str] | None = None) -> dict[str, Entry]:
    """Return the content of wheels as one ``site-packages``.

    Args:
        found: Wheels, several of one project among them.
        projects: Those that count; None: all.

    Raises:
        ProvisionError: Two wheels of a project have different content in a file of one name.
    """
    tree: dict[str, Entry] = {}
    for wheel in sorted(found):
        if projects is not None and project(wheel) not in projects:
            continue
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(("/", *_LEFT_OUT)) or _PROGRAMS in name or _SBOMS in name:
                    continue
                entry = File(archive.read(name))
                if tree.setdefault(name, entry) != entry:
                    raise ProvisionError(
                        f"'{name}' differs between the wheels of '{project(wheel)}'.",
                        resolution="They can't be laid over each other: pin another version in"
                        " constraints.txt.",
                    )
    if projects is not None and (missing := set(projects) - {project(one) for one in found}):
        raise ProvisionError(
            f"constraints.txt has no {', '.join(sorted(missing))}.",
            resolution="Make it again, as its first lines say.",
        )
    return tree
