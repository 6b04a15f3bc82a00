"""What README and the pages say to write, to its end, where NVIDIA answers as in November 2026.

The distro's own solver chooses the packages, its compiler builds the modules, and the host gets
them. The files of the versions that are taken are small ones in NVIDIA's layout (`kit.runfile`).
Which version is chosen for whom has more rows in `unit/sources/test_a_day_online.py`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.agent_host import AgentHost
from kit.engine import Engine
from kit.files import BOOKWORM, TRIXIE, plug_in
from kit.hosts import NEW_KERNEL
from kit.nvidia_day import (
    AMPERE,
    BLACKWELL,
    PASCAL,
    NvidiaDay,
    nvidia_day,
    of_pages,
    readme,
)
from kit.product import Provision, base_archive
from kit.ubuntu import ubuntu_host

pytestmark = [pytest.mark.minutes(6), pytest.mark.nightly]

_NEWEST, _WITH_PASCAL = "625.22.02", "580.178.04"
_PLAIN = re.compile(r"[0-9.]+(-[0-9]+|\+deb[0-9]+)-amd64")


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvidiaDay]:
    with nvidia_day(tmp_path_factory.mktemp("day")) as answers:
        for version in (_NEWEST, _WITH_PASCAL):
            answers.publish(version)
        yield answers


@pytest.fixture(scope="module", params=["debian:12", "debian:13", "ubuntu:24.04"])
def host(
    request: pytest.FixtureRequest,
    engine: Engine,
    provision: Provision,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AgentHost]:
    """A host that has what every host of its distro has, and no driver yet."""
    distro: str = request.param
    folder = tmp_path_factory.mktemp("host")
    if distro == "ubuntu:24.04":
        with ubuntu_host(engine, folder) as ubuntu:
            yield AgentHost(ubuntu.root)
        return
    running = NEW_KERNEL
    if distro == "debian:13":
        engine.docker("load", "--quiet", "--input", base_archive(engine, distro))
        rows = provision.json("drivers", "kernels", "nvidia", "--distro", distro)["kernels"]
        running = next(row["release"] for row in rows if _PLAIN.fullmatch(row["release"]))
    os_release = {"debian:12": BOOKWORM, "debian:13": TRIXIE}[distro]
    yield AgentHost.make(folder / "root", running=running, os_release=os_release)


def _fresh(host: AgentHost, folder: Path, *devices: str) -> AgentHost:
    """Such a host with cards, and README's example as its provision.toml."""
    shutil.copytree(host.root, folder, symlinks=True)
    path = folder / "etc/provision/provision.toml"
    path.write_text(f"{path.read_text()}\n{readme()}")
    plug_in(folder, *devices)
    return AgentHost(folder)


def _here(day: NvidiaDay, host: AgentHost) -> tuple[str | Path, ...]:
    return ("--root", host.root, "--catalogue", day.catalogue)


def _manifest(host: AgentHost) -> dict[str, Any]:
    text = (host.store("nvidia") / "current/driver/manifest.json").read_text()
    document: dict[str, Any] = json.loads(text)
    return document


@pytest.mark.parametrize(
    ("devices", "version", "flavour"),
    [
        pytest.param((), _NEWEST, "open", id="no card"),
        pytest.param((PASCAL,), _WITH_PASCAL, "proprietary", id="Pascal"),
        pytest.param((AMPERE,), _NEWEST, "open", id="Ampere"),
        pytest.param((BLACKWELL,), _NEWEST, "open", id="Blackwell"),
    ],
)
def test_a_host_gets_the_driver_of_its_cards(
    provision: Provision,
    day: NvidiaDay,
    host: AgentHost,
    tmp_path: Path,
    devices: tuple[str, ...],
    version: str,
    flavour: str,
) -> None:
    host = _fresh(host, tmp_path / "host", *devices)
    here = _here(day, host)
    kernel = (host.root / "proc/sys/kernel/osrelease").read_text().strip()
    provision("plan", *here)
    document = provision.json("apply", *here)
    status = provision.json("status", *here)
    assert document["status"]["state"] == status["state"] == "ready"
    slot = host.slot(status, "nvidia", kernel)
    assert (slot["version"], slot["is_ready"]) == (version, True)
    manifest = _manifest(host)
    driver = manifest["pin"]["driver"]
    assert (driver["version"], driver["flavour"]) == (version, flavour)
    assert manifest["pin"]["kernel"]["release"] == kernel
    (cards,) = manifest["cards"]
    assert set(devices) <= set(cards["devices"])


def test_a_host_whose_cards_no_one_driver_serves_gets_none_and_is_told_both(
    provision: Provision, day: NvidiaDay, host: AgentHost, tmp_path: Path
) -> None:
    host = _fresh(host, tmp_path / "host", PASCAL, BLACKWELL)
    document = provision.json("apply", *_here(day, host), status=3)
    assert host.entries("nvidia") == []
    said = json.dumps(document)
    assert all(device in said for device in (PASCAL, BLACKWELL))


def test_each_version_of_the_pages_is_resolved(
    provision: Provision, day: NvidiaDay, host: AgentHost
) -> None:
    wanted = {version for driver, version in of_pages() if driver == "nvidia"}
    assert {"production", "auto", "580", "lts"} <= wanted
    for version in sorted(wanted):
        pin = provision.json("resolve", "nvidia", "--version", version, *_here(day, host))
        assert pin["driver"]["name"] == "nvidia"
        assert pin["closure"]
