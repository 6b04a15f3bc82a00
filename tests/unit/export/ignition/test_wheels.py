"""The archive of wheels is the one that Ansible would make."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils import bundles as role

from provision.errors import NotFoundError, UsageError
from provision.export.ignition.wheels import (
    HostPython,
    bundles_folder,
    environment_name,
    have_bundle,
    origin,
    platforms,
)
from unit.export.ignition.archives import BUNDLE, write_archive, write_bundle

_PYTHON = HostPython(Path("python.tar.gz"), (3, 11), "x86_64", "2.36")
# The same, as the role's facts describe it on a machine that has it.
_FACTS: dict[str, Any] = {"version": [3, 11, 2], "machine": "x86_64", "libc": ["glibc", "2.36"]}


_CONSTRAINTS = "click==8.1 --hash=sha256:00\n"


def _wheel(folder: Path, constraints: str = _CONSTRAINTS) -> Path:
    path = folder / "provision-0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("provision-0.1.data/data/share/provision/constraints.txt", constraints)
    return path


def _checkout(folder: Path) -> Path:
    source = folder / "checkout"
    (source / "src/provision/__pycache__").mkdir(parents=True)
    (source / "pyproject.toml").write_text("[project]\n")
    (source / "constraints.txt").write_text(_CONSTRAINTS)
    (source / "src/provision/a.py").write_text("1\n")
    (source / "src/provision/__pycache__/a.pyc").write_text("")
    return source


def _wheelhouse(folder: Path) -> Path:
    (folder / "wheels").mkdir()
    (folder / "wheels/click-8.1-py3-none-any.whl").write_text("a wheel")
    return folder / "wheels"


def test_its_checksum_is_that_of_the_role(tmp_path: Path) -> None:
    source, given = _checkout(tmp_path), _wheelhouse(tmp_path)
    for wheelhouse in (None, given):
        ours = origin(source, wheelhouse, _PYTHON)
        assert ours.constraints == role.constraints_of(source) == _CONSTRAINTS
        assert ours.digest == role.inputs_digest(source, _CONSTRAINTS, wheelhouse, _FACTS)
    wheel = _wheel(tmp_path)
    ours = origin(wheel, None, _PYTHON)
    assert ours.constraints == role.constraints_of(wheel) == _CONSTRAINTS
    assert ours.digest == role.inputs_digest(wheel, _CONSTRAINTS, None, _FACTS)


def test_its_wheels_are_those_of_the_role() -> None:
    assert platforms(_PYTHON) == role.platforms(_FACTS)


def test_it_is_kept_where_the_role_keeps_its_own() -> None:
    assert bundles_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/provision/bundles")
    assert bundles_folder({}) == Path.home() / ".cache/provision/bundles"


def test_an_environment_is_called_as_the_role_would_call_it(tmp_path: Path) -> None:
    given = write_bundle(tmp_path)
    digest = role.contents_digest(role.checksums_in(given))
    assert environment_name(given, _PYTHON) == f"venv-{digest[:12]}"
    # Its contents decide, and nothing else.
    assert environment_name(given.rename(tmp_path / "wheels.tar"), _PYTHON) == f"venv-{digest[:12]}"


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        origin(tmp_path, None, _PYTHON)
    wheel = tmp_path / "provision-0.1-py3-none-any.whl"
    wheel.write_text("no wheel")
    with pytest.raises(UsageError):
        origin(wheel, None, _PYTHON)
    source = _checkout(tmp_path)
    with pytest.raises(UsageError):
        origin(source, tmp_path / "nowhere", _PYTHON)
    (source / "constraints.txt").unlink()
    with pytest.raises(UsageError):
        origin(source, None, _PYTHON)


def test_what_is_no_archive_of_wheels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        environment_name(tmp_path / BUNDLE, _PYTHON)
    (tmp_path / BUNDLE).write_text("no archive")
    with pytest.raises(UsageError):
        environment_name(tmp_path / BUNDLE, _PYTHON)
    write_archive(tmp_path / BUNDLE, {"provision-0.1-py3-none-any.whl": b"1"})
    with pytest.raises(UsageError):
        environment_name(tmp_path / BUNDLE, _PYTHON)


def test_an_archive_that_is_there_is_taken_and_old_ones_go(tmp_path: Path) -> None:
    made = origin(_checkout(tmp_path), None, _PYTHON)
    cache = tmp_path / "cache"
    cache.mkdir()
    wanted = cache / f"provision-{made.digest[:12]}.tar"
    wanted.write_text("wheels")
    os.utime(wanted, (0, 0))
    for number in range(1, 10):
        other = cache / f"provision-{number:012d}.tar"
        other.write_text("wheels")
        os.utime(other, (number, number))
    assert have_bundle(made, cache) == wanted
    left = sorted(path.name for path in cache.glob("*.tar"))
    assert len(left) == 8
    assert wanted.name in left
    assert "provision-000000000001.tar" not in left


_WHEELS = {"pip-25.0-py3-none-any.whl": b"1", "provision-0.1-py3-none-any.whl": b"2"}


@pytest.mark.parametrize(
    "wheel",
    [
        "click-8.1.0-py3-none-any.whl",
        "six-1.16.0-py2.py3-none-any.whl",
        "pydantic_core-2.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "cryptography-42.0-cp37-abi3-manylinux_2_28_x86_64.whl",
    ],
)
def test_wheels_for_the_machines_python_are_taken(tmp_path: Path, wheel: str) -> None:
    archive = write_archive(tmp_path / BUNDLE, {**_WHEELS, wheel: b"3"})
    assert environment_name(archive, _PYTHON).startswith("venv-")


@pytest.mark.parametrize(
    "wheel",
    [
        "pydantic_core-2.0-cp313-cp313-manylinux_2_17_x86_64.whl",
        "pydantic_core-2.0-cp311-cp311-manylinux_2_17_aarch64.whl",
        "README.txt",
    ],
)
def test_wheels_for_another_python_are_refused(tmp_path: Path, wheel: str) -> None:
    archive = write_archive(tmp_path / BUNDLE, {**_WHEELS, wheel: b"3"})
    with pytest.raises(UsageError):
        environment_name(archive, _PYTHON)
