"""What hosts get of Python: pinned, named by what is in it, replaced when that changes."""

from __future__ import annotations

import hashlib
import re
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils import bundles
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kit.cache import REPOSITORY

_PYTHON: dict[str, Any] = {"version": [3, 13, 5], "machine": "x86_64", "libc": ["glibc", "2.17"]}
_TEXT = (REPOSITORY / "constraints.txt").read_text()
# A requirement with its options, over several lines.
_ENTRIES = [entry for entry in re.split(r"\n(?=[a-z])", _TEXT) if not entry.startswith("#")]
_ENTRY = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?: \\\n {4}--hash=sha256:[0-9a-f]{64})+\s*"
)


def test_every_package_is_pinned_by_version_and_sha256_and_for_every_python() -> None:
    assert len(_ENTRIES) > len(tomllib.loads(_project())["project"]["dependencies"])
    for entry in _ENTRIES:
        # No marker, no address: the same for all hosts, from whatever index a controller has.
        assert _ENTRY.fullmatch(entry), entry
    assert "://" not in _TEXT


def test_the_pins_are_what_provision_asks_for() -> None:
    found = [_ENTRY.fullmatch(entry) for entry in _ENTRIES]
    pins = {match["name"]: match["version"] for match in found if match}
    wanted = [Requirement(text) for text in tomllib.loads(_project())["project"]["dependencies"]]
    for requirement in wanted:
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement
    # What installs them.
    assert "pip" in pins


def _project() -> str:
    return (REPOSITORY / "pyproject.toml").read_text()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkout, as small as one can be."""
    folder = tmp_path / "checkout"
    (folder / "src/provision/__pycache__").mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[project]\n")
    (folder / "constraints.txt").write_text("click==8.1\n")
    (folder / "src/provision/a.py").write_text("1\n")
    return folder


def _digest(source: Path, wheelhouse: Path | None = None, python: dict[str, Any] = _PYTHON) -> str:
    constraints = bundles.constraints_of(source)
    return bundles.inputs_digest(source, constraints, wheelhouse, python)


def test_an_archive_is_used_again_while_its_inputs_are_the_same(source: Path) -> None:
    first = _digest(source)
    (source / "src/provision/__pycache__/a.pyc").write_text("")
    (source / "notes.txt").write_text("not part of it\n")
    assert _digest(source) == first


@pytest.mark.parametrize("change", ["program", "constraints", "python", "wheelhouse"])
def test_another_archive_is_made_when_an_input_changed(
    source: Path, tmp_path: Path, change: str
) -> None:
    wheelhouse = tmp_path / "wheelhouse"
    wheelhouse.mkdir()
    wheel = wheelhouse / "click-8.1-py3-none-any.whl"
    wheel.write_text("a wheel")
    first = _digest(source, wheelhouse)
    python = _PYTHON
    if change == "program":
        (source / "src/provision/a.py").write_text("2\n")
    elif change == "constraints":
        (source / "constraints.txt").write_text("click==8.2\n")
    elif change == "python":
        python = {**_PYTHON, "version": [3, 11, 2]}
    else:
        # Of the same name and size.
        wheel.write_text("A wheel")
    assert _digest(source, wheelhouse, python) != first


def _archive(path: Path, **wheels: str) -> Path:
    folder = path.parent / f"{path.name}.d"
    folder.mkdir()
    with tarfile.open(path, "w") as opened:
        for name, content in wheels.items():
            (folder / f"{name}.whl").write_text(content)
            opened.add(folder / f"{name}.whl", f"{name}.whl")
    return path


def test_an_environment_is_named_by_what_is_in_it(tmp_path: Path) -> None:
    def named(archive: Path) -> str:
        return bundles.contents_digest(bundles.checksums_in(archive))

    first = named(_archive(tmp_path / "1.tar", click="a", rich="b"))
    assert named(_archive(tmp_path / "2.tar", rich="b", click="a")) == first
    assert named(_archive(tmp_path / "3.tar", click="a", rich="newer")) != first
    assert named(_archive(tmp_path / "4.tar", click="a")) != first
    lines = "".join(
        f"{name}.whl {hashlib.sha256(text.encode()).hexdigest()}\n"
        for name, text in (("click", "a"), ("rich", "b"))
    )
    assert first == hashlib.sha256(lines.encode()).hexdigest()
