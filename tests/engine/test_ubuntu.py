"""Ubuntu: real apt in an image that is Ubuntu to every program, and an archive in its layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.engine import Engine
from kit.foreign import program_root
from kit.made_up import MADE_UP, made_up_source, write_made_up
from kit.openpgp import key_of
from kit.product import Provision
from kit.ubuntu import KEYRING, UBUNTU, UbuntuHost, shared_headers, ubuntu_host, ubuntu_kernel
from provision.distros.distro import archive_of, find_distro

# One row of apt is enough by day: Debian's.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(2)]

KERNEL = ubuntu_kernel()


@dataclass(frozen=True, slots=True)
class Lab:
    """A host of Ubuntu 24.04, and a catalogue with a made-up driver."""

    host: UbuntuHost
    catalogue: Path
    # Builds.
    engine: Engine

    @property
    def root(self) -> Path:
        """The host's root."""
        return self.host.root

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
    folder = tmp_path_factory.mktemp("ubuntu")
    with ubuntu_host(engine, folder) as host:
        source = made_up_source(host.site / "files", "1.0")
        write_made_up(folder / "drivers", {"1.0": source}, f"{host.url}/files")
        yield Lab(host, folder / "drivers", engine)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Indexes, closures and packages."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def built(lab: Lab, cache: Path) -> dict[str, Any]:
    """What the first build says."""
    return lab.provision(cache).json("build", *lab.target)


def test_kernels_are_those_of_the_archive(lab: Lab, cache: Path) -> None:
    listed = lab.provision(cache).json("drivers", "kernels", *lab.target)
    assert listed["distro"] == UBUNTU
    assert [(row["release"], row["version"]) for row in listed["kernels"]] == [(KERNEL, "1.0")]


def test_modules_are_built_for_the_kernel_by_its_compiler(lab: Lab, built: dict[str, Any]) -> None:
    (module,) = lab.manifest(built["image"])["modules"]
    assert module["vermagic"].split()[0] == KERNEL
    shared, pin = shared_headers(), lab.manifest(built["image"])["pin"]
    assert pin["compiler"]["name"] == "gcc-12"
    assert [header["name"] for header in pin["headers"]] == [
        f"linux-headers-{KERNEL}",
        shared_headers(),
    ]
    names = {package["name"]: package for package in pin["closure"]}
    assert names["gcc-12"]["repository"] == "universe"
    assert names[shared]["location"].startswith("pool/main/l/linux-hwe-6.1/")
    assert len(names) > len(pin["packages"]) + 3, "and all that these depend on"


def test_a_superseded_kernel_is_answered_with_the_snapshot_service(lab: Lab, cache: Path) -> None:
    words = ("resolve", *lab.target, "--kernel", "6.1.0-40-generic")
    status, error = lab.provision(cache).failure(*words)
    assert status == 3
    assert "Ubuntu's snapshot service" in error["resolution"]
    assert "snapshot = true" in error["resolution"]


def test_a_mirror_that_is_out_of_step_fails_the_solver(
    lab: Lab, built: dict[str, Any], tmp_path: Path
) -> None:
    assert built["built"]
    (gcc,) = lab.host.archive.glob("pool/universe/g/gcc-12/gcc-12_*.deb")
    gcc.rename(tmp_path / "gcc.deb")
    try:
        status, error = lab.provision(tmp_path / "cache").failure("resolve", *lab.target)
    finally:
        (tmp_path / "gcc.deb").rename(gcc)
    assert status == 1
    assert "404" in error["details"]


def test_an_archive_that_no_key_of_the_named_keyring_signs_is_refused(
    lab: Lab, tmp_path: Path
) -> None:
    """Although the base image has the archive's key in its keyring of the same name."""
    settings, keyring = lab.root / "etc/provision/provision.toml", lab.root / KEYRING
    kept = {path: path.read_bytes() for path in (settings, keyring)}
    try:
        named = f'\n[distros.ubuntu.archive]\nkeyring = "/{KEYRING}"\n'
        settings.write_bytes(kept[settings] + named.encode())
        keyring.write_bytes(key_of("another").keyring.read_bytes())
        status, error = lab.provision(tmp_path / "cache").failure("resolve", *lab.target)
    finally:
        for path, content in kept.items():
            path.write_bytes(content)
    assert status == 1
    assert "NO_PUBKEY" in error["details"]


def test_the_package_of_ubuntus_keys_puts_them_where_they_are_looked_for() -> None:
    layout = archive_of(find_distro(UBUNTU))
    root = program_root("trixie", "ubuntu-keyring")
    assert (root / layout.keyrings[0].lstrip("/")).is_file()
