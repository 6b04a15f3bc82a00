"""What a controller lacks is named before a host is touched, each thing with the way out."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils import preflight

_PIN = "click==8.1 \\\n    --hash=sha256:00\npydantic-core==2.0 \\\n    --hash=sha256:00\n"


def _elf(number: int) -> bytes:
    return struct.pack("<4s14xH", b"\x7fELF", number)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout with a catalogue."""
    folder = tmp_path / "clone"
    for name in ("nvidia", "onload"):
        (folder / "driver_images" / name).mkdir(parents=True)
        (folder / "driver_images" / name / "driver.toml").write_text("")
    (folder / "src/provision").mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[project]\n")
    (folder / "constraints.txt").write_text(_PIN)
    return folder


def _collection(root: Path) -> Path:
    folder = root / "ansible/ansible_collections/oci_decorator/drivers"
    folder.mkdir(parents=True)
    return folder


def _wheel(folder: Path) -> Path:
    path = folder / "provision-0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        share = "provision-0.1.data/data/share/provision"
        wheel.writestr(f"{share}/constraints.txt", _PIN)
        wheel.writestr(f"{share}/driver_images/v4l2loopback/driver.toml", "")
        wheel.writestr(f"{share}/driver_images/v4l2loopback/patches/driver.toml", "")
    return path


def test_a_collection_in_a_checkout_takes_from_it(clone: Path) -> None:
    collection = _collection(clone)
    assert preflight.own_source(collection) == clone
    assert preflight.own_programs(collection) == []
    (clone / "build").mkdir()
    (clone / "build/oci-decorator").write_bytes(_elf(62))
    assert preflight.own_programs(collection) == [clone / "build/oci-decorator"]


def test_a_packed_collection_brings_everything(tmp_path: Path) -> None:
    collection = _collection(tmp_path)
    (collection / "files").mkdir()
    wheel = _wheel(collection / "files")
    for machine, number in (("x86_64", 62), ("aarch64", 183)):
        (collection / f"files/oci-decorator-{machine}").write_bytes(_elf(number))
    assert preflight.own_source(collection) == wheel
    assert preflight.source_mistakes(wheel) == []
    assert preflight.drivers_of(wheel) == ["v4l2loopback"]
    found, wrong = preflight.programs_by_machine(preflight.own_programs(collection))
    assert (sorted(found), wrong) == (["aarch64", "x86_64"], [])


def test_a_collection_that_brings_nothing_says_how_to_get_it(tmp_path: Path) -> None:
    collection = _collection(tmp_path)
    (line,) = preflight.source_mistakes(preflight.own_source(collection))
    assert "build_collection.py" in line
    assert "provision_driver_source" in line
    _, (line,) = preflight.programs_by_machine(preflight.own_programs(collection))
    assert "make build" in line
    assert "provision_hook_program" in line


@pytest.mark.parametrize(
    ("content", "said"), [(None, "is not there"), (b"#!/bin/sh\n", "is no program")]
)
def test_a_wrong_program_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "oci-decorator"
    if content is not None:
        path.write_bytes(content)
    found, (line,) = preflight.programs_by_machine([path])
    assert found == {}
    assert said in line
    assert str(path) in line
    assert "make build" in line


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"drivers": {"nvidia": {"version": 535}, "onload": None}}, []),
        (
            {"drivers": {"nvidea": {}}},
            ["no such driver; there are nvidia, onload. Did you mean 'nvidia'?"],
        ),
        ({"drivers": {"mine": {}}, "catalogue": ["/srv/drivers"]}, []),
        (
            {"colour": "red", "drivers": {"nvidia": {"verzion": "1"}, "x": {}}},
            ["colour", "provision_driver_config.drivers.nvidia: verzion", "drivers.x: there is no"],
        ),
    ],
)
def test_mistakes_of_a_configuration_and_unknown_drivers_are_named(
    clone: Path, config: dict[str, Any], said: list[str]
) -> None:
    found = preflight.config_mistakes(config, clone)
    assert len(found) == len(said)
    assert all(text in line for line, text in zip(found, said, strict=True))


def test_packages_that_a_wheelhouse_lacks_are_named(clone: Path, tmp_path: Path) -> None:
    wheelhouse = tmp_path / "wheelhouse"
    wheelhouse.mkdir()
    (line,) = preflight.packages_mistakes(clone, "", str(wheelhouse))
    assert "click 8.1, pydantic-core 2.0" in line
    assert "pip download" in line
    (wheelhouse / "pydantic_core-2.0-cp311-cp311-manylinux_2_17_x86_64.whl").touch()
    (wheelhouse / "click-8.1-py3-none-any.whl").touch()
    assert preflight.packages_mistakes(clone, "", str(wheelhouse)) == []
    assert preflight.packages_mistakes(clone, "", "") == []
    other = tmp_path / "other.txt"
    (line,) = preflight.packages_mistakes(clone, str(other), "")
    assert "provision_driver_constraints" in line
    other.write_text("click==8.2 --hash=sha256:00\n")
    (line,) = preflight.packages_mistakes(clone, str(other), str(wheelhouse))
    assert "no wheel of click 8.2." in line


def test_archives_that_are_missing_or_others_are_named(tmp_path: Path) -> None:
    archive = tmp_path / "python.tar.gz"
    (line,) = preflight.python_mistakes(str(archive), "")
    assert "provision host-python" in line
    archive.write_text("x")
    assert preflight.python_mistakes(str(archive), "") == []
    (line,) = preflight.python_mistakes(str(archive), "abc")
    assert "which is no checksum" in line
    (line,) = preflight.python_mistakes(str(archive), "0" * 64)
    assert "provision_host_python_archive_sha256" in line
    (line,) = preflight.images_mistakes([str(archive), "/nowhere/nvidia.tar"])
    assert "/nowhere/nvidia.tar" in line
    assert preflight.python_mistakes("", "") == []


def test_keys_for_hosts_are_public_and_have_names_of_their_own(tmp_path: Path) -> None:
    public = "-----BEGIN PUBLIC KEY-----\n"
    for name, text in {
        "fleet.pub": public,
        "more/fleet.pub": public,
        "fleet.key": "-----BEGIN ENCRYPTED PRIVATE KEY-----\n",
        "text.pub": "hello",
        "fleet.txt": public,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def said(*names: str) -> list[str]:
        return preflight.keys_mistakes([str(tmp_path / name) for name in names])

    assert said() == said("fleet.pub") == []
    words = ["There is no key", "is a private key", "no public key in PEM", "would not be read"]
    lines = said("none.pub", "fleet.key", "text.pub", "fleet.txt")
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))
    (line,) = said("fleet.pub", "more/fleet.pub")
    assert "called 'fleet.pub'" in line


def test_a_bundle_has_what_hosts_should_have(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    assert preflight.bundle_mistakes("", ["nvidia"]) == []
    (line,) = preflight.bundle_mistakes(str(bundle), ["nvidia"])
    assert "provision bundle create" in line
    bundle.with_suffix(".tar").write_bytes(b"")
    (line,) = preflight.bundle_mistakes(f"{bundle}.tar", ["nvidia"])
    assert "tar -xf" in line
    (bundle / "images/nvidia").mkdir(parents=True)
    (bundle / "images/nvidia/index.json").write_text("{}")
    (bundle / "SHA256SUMS").write_text("")
    assert preflight.bundle_mistakes(str(bundle), ["nvidia"]) == []
    (line,) = preflight.bundle_mistakes(str(bundle), ["nvidia", "zfs"])
    assert "no images of zfs" in line
