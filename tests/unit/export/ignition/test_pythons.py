"""The archive of a Python, looked into."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.errors import NotFoundError, UsageError
from provision.export.ignition.wheels import read_python
from unit.export.ignition.archives import elf, python_members, write_archive

_ROOT = "opt/provision/python"


def test_an_archive_says_what_it_has(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "any-name.tar.gz", python_members(minor=12, glibc="2.41"))
    found = read_python(path)
    assert (found.version, found.machine, found.glibc) == ((3, 12), "x86_64", "2.41")


def test_an_archive_for_another_machine_is_one(tmp_path: Path) -> None:
    members = {**python_members(), f"{_ROOT}/bin/python3.11": elf(183)}
    assert read_python(write_archive(tmp_path / "a.tar.gz", members)).machine == "aarch64"


def test_an_archive_with_dots_before_its_names_is_one(tmp_path: Path) -> None:
    members = {f"./{name}": content for name, content in python_members().items()}
    assert read_python(write_archive(tmp_path / "a.tar.gz", members)).version == (3, 11)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {f"{_ROOT}/bin/python3": b""},
        {f"{_ROOT}/bin/python3.11": b"#!/bin/sh\n" * 9, f"{_ROOT}/bin/python3": b""},
        {f"{_ROOT}/bin/python3.11": elf(), f"{_ROOT}/bin/python3": b""},
        {**python_members(), "etc/passwd": b"x"},
        {**python_members(), f"{_ROOT}/../x": b"x"},
        python_members(minor=10),
    ],
)
def test_what_a_machine_could_not_use_is_refused(tmp_path: Path, members: dict[str, bytes]) -> None:
    path = write_archive(tmp_path / "python.tar.gz", members)
    with pytest.raises(UsageError):
        read_python(path)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_python(tmp_path / "python.tar.gz")
    whole = write_archive(tmp_path / "python.tar.gz", python_members()).read_bytes()
    for content in (b"not gzip", whole[: len(whole) // 2]):
        (tmp_path / "broken.tar.gz").write_bytes(content)
        with pytest.raises(UsageError):
            read_python(tmp_path / "broken.tar.gz")
