"""The real archive that this machine's apt is set up with, checked by real programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from kit.kernels import kernels
from kit.probe import need
from kit.product import Provision
from provision.config import ArchiveConfig
from provision.distros import find_distro
from provision.distros.debian import ArchiveAccess, open_index
from provision.distros.debian.distro_archive import layout_of, packaged_kernels, require_headers
from provision.distros.debian.suites import suite_addresses
from provision.fetch import verify_signed
from provision.progress import Event
from provision.run import find_program


def test_what_the_archive_signed_is_believed(tmp_path: Path) -> None:
    checker = find_program("gpgv") or find_program("sqv")
    need(checker, "a program that checks signatures", "apt-get install gpgv")
    pin = find_distro("debian:12")
    place, *_ = suite_addresses(
        pin, layout_of(pin), config=ArchiveConfig(), root=Path("/"), key_folder=tmp_path
    )
    answer = requests.get(f"{place.uri}/dists/{place.suite}/InRelease", timeout=60)
    answer.raise_for_status()
    payload = verify_signed(answer.content, keyrings=place.keyrings, name="it")
    assert b"\nCodename: bookworm\n" in payload
    assert b"PGP" not in payload


@pytest.mark.parametrize("distro", ["debian:12", "debian:13"])
def test_every_packaged_kernel_has_headers(distro: str, tmp_path: Path) -> None:
    pin = find_distro(distro)
    index = open_index(pin, layout_of(pin), ArchiveAccess(cache=tmp_path), architecture="x86_64")
    kernels = packaged_kernels(index)
    assert kernels
    for kernel in kernels:
        require_headers(index, kernel)
    index.close()
    events: list[Event] = []
    access = ArchiveAccess(cache=tmp_path, progress=events.append)
    open_index(pin, layout_of(pin), access, architecture="x86_64").close()
    assert events == [], "the second time everything is cached"


def test_the_kernels_that_a_driver_builds_on_are_listed(tmp_path: Path) -> None:
    provision = Provision(environment={"XDG_CACHE_HOME": str(tmp_path)})
    listed = provision.json("drivers", "kernels", "nvidia", "--distro", "debian:12")
    assert (listed["driver"], listed["distro"]) == ("nvidia", "debian:12")
    builds = {row["release"]: row["builds"] for row in listed["kernels"]}
    assert builds[kernels()[1]]
    assert [row["version"] is not None for row in listed["kernels"]] == list(builds.values())
    table = provision("drivers", "kernels", "nvidia", "--distro", "debian:12").stdout
    assert all(release in table for release in builds)
