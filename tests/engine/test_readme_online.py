"""What README and the pages say to write, where NVIDIA answers as on a day in November 2026.

The packages of the build are chosen by the distro's own solver; which versions there are, how they
are chosen and what cards take has its rows in `unit/sources/test_a_day_online.py`.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from kit.agent_host import AgentHost
from kit.hosts import DISTRO
from kit.nvidia_day import BLACKWELL, PASCAL, NvidiaDay, nvidia_day, of_pages, plug_in, readme

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.product import Provision

pytestmark = [pytest.mark.minutes(2), pytest.mark.xdist_group("nvidia")]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvidiaDay]:
    with nvidia_day(tmp_path_factory.mktemp("day")) as answers:
        yield answers


@pytest.fixture(scope="module")
def host(provision: Provision, tmp_path_factory: pytest.TempPathFactory) -> AgentHost:
    """A host that boots the distro's newest kernel."""
    rows = provision.json("drivers", "kernels", "v4l2loopback", "--distro", DISTRO)
    plain = [
        row["release"]
        for row in rows["kernels"]
        if re.fullmatch(r"[0-9.]+(-[0-9]+|\+deb[0-9]+)-amd64", row["release"])
    ]
    host = AgentHost.make(tmp_path_factory.mktemp("host") / "root", running=plain[0])
    host.configure(readme())
    return host


@pytest.mark.parametrize(
    ("devices", "version", "flavour"),
    [
        ((), "625.22.02", "open"),
        ((PASCAL,), "580.178.04", "proprietary"),
        ((BLACKWELL,), "625.22.02", "open"),
    ],
)
def test_readmes_example_is_planned_and_resolved(
    provision: Provision,
    day: NvidiaDay,
    host: AgentHost,
    devices: tuple[str, ...],
    version: str,
    flavour: str,
) -> None:
    plug_in(host.root, *devices)
    try:
        here = ("--root", host.root, "--catalogue", day.catalogue)
        (planned,) = provision.json("plan", *here)["artifacts"]
        assert (planned["source"], planned["version"]) == ("build", version)
        pin = provision.json("resolve", "nvidia", "--version", "production", *here)
    finally:
        shutil.rmtree(host.root / "sys/bus/pci", ignore_errors=True)
    assert (pin["driver"]["version"], pin["driver"]["flavour"]) == (version, flavour)
    assert [source["kind"] for source in pin["sources"]] == ["runfile"]
    assert pin["closure"]


def test_each_version_of_the_pages_is_resolved(
    provision: Provision, day: NvidiaDay, host: AgentHost
) -> None:
    here = ("--root", host.root, "--catalogue", day.catalogue)
    wanted = {version for driver, version in of_pages() if driver == "nvidia"}
    assert {"production", "auto", "580", "lts"} <= wanted
    for version in sorted(wanted):
        pin = provision.json("resolve", "nvidia", "--version", version, *here)
        assert pin["driver"]["name"] == "nvidia"
