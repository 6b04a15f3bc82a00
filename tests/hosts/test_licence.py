"""The licence, Apache-2.0, is at the root and in every package."""

from __future__ import annotations

import hashlib
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

from kit.cache import REPOSITORY, cached
from kit.process import run
from kit.product import copy_source

_TEXT = (REPOSITORY / "LICENSE").read_text()
# https://www.apache.org/licenses/LICENSE-2.0.txt
_STANDARD = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
# Makes an archive of the source in the folder that is given, by the build system of pyproject.toml.
_SDIST = (
    "import sys; from setuptools.build_meta import build_sdist; print(build_sdist(sys.argv[1]))"
)


def test_it_is_apache_2_0() -> None:
    # By the checksum of the standard text, as its publisher and distros have it.
    assert hashlib.sha256(_TEXT.encode()).hexdigest() == _STANDARD
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    crate = tomllib.loads((REPOSITORY / "hooks/Cargo.toml").read_text())["package"]
    assert project["license"] == crate["license"] == "Apache-2.0"


def test_the_wheel_has_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (n for n in packed.namelist() if n.endswith(".dist-info/licenses/LICENSE"))
        assert packed.read(name).decode() == _TEXT
        (name,) = (n for n in packed.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = message_from_string(packed.read(name).decode())
        assert metadata["License-Expression"] == "Apache-2.0"
        # What hosts' packages are taken from belongs to it too.
        assert [n for n in packed.namelist() if n.endswith("/share/provision/constraints.txt")]


def test_the_source_archive_has_it(tmp_path: Path) -> None:
    source = copy_source(tmp_path / "source")
    environment = {"PYTHONPATH": str(cached("setuptools-77", _setuptools))}
    run([sys.executable, "-c", _SDIST, tmp_path], cwd=source, env=environment)
    (packed,) = tmp_path.glob("provision-*.tar.gz")
    with tarfile.open(packed) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"LICENSE", "constraints.txt", "src/provision/__init__.py"} <= names


def test_the_crate_has_it() -> None:
    words = ["cargo", "package", "--list", "--allow-dirty"]
    listed = run([REPOSITORY / "hooks/build.sh", *words]).stdout.split()
    assert "LICENSE" in listed


def _setuptools(draft: Path) -> None:
    wanted = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    run([sys.executable, "-m", "pip", "install", "--quiet", "--target", draft, *wanted])
