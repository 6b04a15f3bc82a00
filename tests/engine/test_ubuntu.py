"""Ubuntu: real apt in an image that is Ubuntu to every program, and an archive in its layout."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kit.fileserver import served
from kit.foreign import program_root
from kit.kernels import kernels
from kit.made_up import MADE_UP, made_up_source, write_made_up
from kit.nvidia_day import PASCAL, nvidia_day, plug_in
from kit.openpgp import key_of
from kit.product import Provision
from kit.ubuntu import (
    COMPONENTS,
    KEYRING,
    UBUNTU,
    packages_of,
    ubuntu_archive,
    ubuntu_headers,
    ubuntu_host,
    ubuntu_image,
)
from provision.distros import archive_of, find_distro

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.engine import Engine

# One row of apt is enough by day: Debian's.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(2)]

_ABI = kernels()[1].removesuffix("-amd64")
KERNEL = f"{_ABI}-generic"
_SHARED = f"linux-hwe-{'.'.join(_ABI.split('.')[:2])}-headers-{_ABI}"
_NEEDS = "libc6, libelf1, libssl3, zlib1g"


@dataclass(frozen=True, slots=True)
class Lab:
    """A host of Ubuntu 24.04, its archive, and a catalogue with a made-up driver."""

    # The host's root.
    root: Path
    # The folder of the archive.
    archive: Path
    # The driver's.
    catalogue: Path
    # Builds.
    engine: Engine

    @property
    def target(self) -> tuple[str | Path, ...]:
        """The options of every command."""
        return (MADE_UP, "--root", self.root, "--catalogue", self.catalogue)

    def provision(self, cache: Path) -> Provision:
        """The command, with a package store of its own."""
        return Provision(self.engine.host, {"XDG_CACHE_HOME": str(cache)})

    def manifest(self, image: str) -> dict[str, Any]:
        """What an artifact image says of itself."""
        path = "/opt/driver/manifest.json"
        copied = self.engine.copy_out(image, path, self.root / "manifest")
        document: dict[str, Any] = json.loads(copied.read_text())
        return document


@pytest.fixture(scope="module")
def lab(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The compiler of the kernel lies in universe, as it does for the kernels of HWE."""
    folder = tmp_path_factory.mktemp("ubuntu")
    debs = [d for d in packages_of(engine).glob("*.deb") if not d.name.startswith("linux-")]
    gcc = [deb for deb in debs if deb.name.startswith("gcc-12_")]
    archive = ubuntu_archive(folder / "www/ubuntu")
    empty: dict[str, list[Path]] = {component: [] for component in COMPONENTS}
    archive.publish("noble", {**empty, "main": [deb for deb in debs if deb not in gcc]})
    own, shared = ubuntu_headers(engine, KERNEL, _SHARED, _NEEDS)
    archive.publish("noble-updates", {**empty, "main": [own, shared], "universe": gcc})
    archive.publish("noble-security", empty)
    archive.publish("noble-backports", empty)
    source = made_up_source(folder / "www/files", "1.0")
    keyring = archive.key.keyring
    with served(folder / "www") as url:
        write_made_up(folder / "drivers", {"1.0": source}, f"{url}/files")
        ubuntu_image(engine, folder, keyring, url)
        root = ubuntu_host(folder / "host", keyring, url, kernel=KERNEL)
        yield Lab(root, archive.folder, folder / "drivers", engine)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Indexes, closures and packages."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def built(lab: Lab, cache: Path) -> dict[str, Any]:
    """What the first build says."""
    return lab.provision(cache).json("build", *lab.target)


def test_the_host_is_known(lab: Lab, cache: Path) -> None:
    facts = lab.provision(cache).json("facts", "--root", lab.root)
    assert (facts["distro"]["id"], facts["distro"]["version"]) == ("ubuntu", "24.04")
    assert facts["kernel"] == KERNEL


def test_kernels_are_those_of_the_archive(lab: Lab, cache: Path) -> None:
    listed = lab.provision(cache).json("drivers", "kernels", *lab.target)
    assert listed["distro"] == UBUNTU
    assert [(row["release"], row["version"]) for row in listed["kernels"]] == [(KERNEL, "1.0")]


def test_modules_are_built_for_the_kernel_by_its_compiler(lab: Lab, built: dict[str, Any]) -> None:
    (module,) = lab.manifest(built["image"])["modules"]
    assert module["vermagic"].split()[0] == KERNEL
    pin = lab.manifest(built["image"])["pin"]
    assert pin["compiler"]["name"] == "gcc-12"
    assert [header["name"] for header in pin["headers"]] == [f"linux-headers-{KERNEL}", _SHARED]
    names = {package["name"]: package for package in pin["closure"]}
    assert names["gcc-12"]["repository"] == "universe"
    assert names[_SHARED]["location"].startswith("pool/main/l/linux-hwe-6.1/")
    assert len(names) > len(pin["packages"]) + 3, "and all that these depend on"


@pytest.mark.parametrize(
    ("devices", "version", "flavour"),
    [((), "625.22.02", "open"), ((PASCAL,), "580.178.04", "proprietary")],
)
def test_readmes_example_is_resolved(
    lab: Lab, cache: Path, tmp_path: Path, devices: tuple[str, ...], version: str, flavour: str
) -> None:
    plug_in(lab.root, *devices)
    try:
        with nvidia_day(tmp_path) as day:
            words = ("nvidia", "--version", "production", "--root", lab.root)
            pin = lab.provision(cache).json("resolve", *words, "--catalogue", day.catalogue)
    finally:
        shutil.rmtree(lab.root / "sys/bus/pci", ignore_errors=True)
    assert (pin["driver"]["version"], pin["driver"]["flavour"]) == (version, flavour)
    assert pin["distro"]["version"] == "24.04"


def test_a_superseded_kernel_is_answered_with_the_snapshot_service(lab: Lab, cache: Path) -> None:
    words = ("resolve", *lab.target, "--kernel", "6.1.0-40-generic")
    status, error = lab.provision(cache).failure(*words)
    assert status == 3
    assert (
        error["message"] == "No headers are packaged for the kernel 6.1.0-40-generic on ubuntu"
        " 24.04."
    )
    assert "Ubuntu's snapshot service" in error["resolution"]
    assert "snapshot = true" in error["resolution"]
    assert KERNEL in error["details"]


def test_a_mirror_that_is_out_of_step_is_named_as_such(
    lab: Lab, built: dict[str, Any], tmp_path: Path
) -> None:
    assert built["built"]
    (gcc,) = lab.archive.glob("pool/universe/g/gcc-12/gcc-12_*.deb")
    gcc.rename(tmp_path / "gcc.deb")
    try:
        status, error = lab.provision(tmp_path / "cache").failure("resolve", *lab.target)
    finally:
        (tmp_path / "gcc.deb").rename(gcc)
    assert status == 1
    assert error["message"].startswith("A mirror of Ubuntu 24.04 is out of step")
    assert "404" in error["details"]


def test_an_archive_that_another_key_signs_is_refused(lab: Lab, tmp_path: Path) -> None:
    keyring = lab.root / KEYRING
    kept = keyring.read_bytes()
    try:
        keyring.write_bytes(key_of("another").keyring.read_bytes())
        status, error = lab.provision(tmp_path / "cache").failure("resolve", *lab.target)
    finally:
        keyring.write_bytes(kept)
    assert status == 1
    assert "no valid signature by a key of" in error["message"]


def test_the_package_of_ubuntus_keys_puts_them_where_they_are_looked_for() -> None:
    layout = archive_of(find_distro(UBUNTU))
    root = program_root("trixie", layout.keyring_package)
    assert (root / layout.keyrings[0].lstrip("/")).is_file()
