"""Each recipe of the catalogue, on each release of Debian that README names, in a container.

A recipe whose sources are not packages of Debian needs its vendor's server. Where that can't be
reached, the row is skipped and names the server.
"""

from __future__ import annotations

import re
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from kit.cache import REPOSITORY
from kit.engine import Engine
from kit.hosts import Host
from kit.product import Provision
from provision.catalogue import Recipe, version_matches
from provision.catalogue.source_models import DebSource, DkmsSource
from provision.distros.distro import find_distro, source_names
from provision.documents import load_toml

pytestmark = pytest.mark.nightly

_RECIPES = sorted(path.parent.name for path in REPOSITORY.glob("driver_images/*/driver.toml"))
_RELEASES = [
    f"debian:{version}"
    for version in re.findall(
        r"On a Debian ((?:\d+, )*\d+) or (\d+) machine", (REPOSITORY / "README.md").read_text()
    )[0]
]
# How long a build takes on two processors, where that is more than a minute.
_MINUTES = {"nvidia": 9, "zfs": 6, "i915-backports": 6, "amdgpu": 6, "onload": 3}
# A program of the driver that a container starts, and what it says without hardware.
_PROGRAMS = {
    "nvidia": ("nvidia-smi", r"NVIDIA driver|Failed to initialize NVML"),
    "v4l2loopback": ("v4l2loopback-ctl --help", r"[Uu]sage"),
}


def test_readme_names_the_releases() -> None:
    assert len(_RELEASES) > 1


@pytest.mark.parametrize(
    ("name", "distro"),
    [
        pytest.param(
            name,
            distro,
            # All together take longer than CI has in a night.
            marks=[
                pytest.mark.minutes(_MINUTES.get(name, 2)),
                pytest.mark.xdist_group(f"{name} on {distro}"),
            ],
        )
        for name in _RECIPES
        for distro in _RELEASES
    ],
)
def test_it_is_built_installed_and_in_a_container(
    provision: Provision, engine: Engine, host: Host, name: str, distro: str
) -> None:
    target = _target(provision, name, distro)
    image = provision.build(*target)
    assert image["left_out"] == {}
    provision("verify", image["image"])
    provision("install", image["image"], "--root", host.root)
    vendor = host.vendor(name)
    base = provision.json("resolve", *target)["base"]["image"]

    def container(script: str) -> str:
        flag = f"--env={vendor['activation_flag']}=all"
        run = ("run", "--rm", "--runtime=oci-decorator", flag, base, "sh", "-c", script)
        return engine.docker(*run, check=False).output

    files = [
        path
        for feature in vendor["inventory"].values()
        for kind in ("binaries", "libraries", "miscellaneous")
        for path in feature.get(kind, [])
    ]
    missing = "".join(f"[ -e '{path}' ] || echo 'no {path}'; " for path in files)
    assert container(f"{missing}echo started") == "started\n"
    if name in _PROGRAMS:
        command, said = _PROGRAMS[name]
        assert re.search(said, container(command))


def _target(provision: Provision, name: str, distro: str) -> tuple[str, ...]:
    """What is built: for the newest kernel of the release, from its packages where it has them."""
    recipe = load_toml(REPOSITORY / f"driver_images/{name}/driver.toml", Recipe)
    names = source_names(find_distro(distro))
    serving = [source for source in recipe.sources if source.fits(names)]
    if not serving:
        pytest.skip(f"the recipe has no source for {distro}")
    rows = provision.json("drivers", "kernels", name, "--distro", distro)["kernels"]
    found = [row for row in rows if row["known"] == "works"]
    if not found:
        pytest.skip(f"no packaged kernel of {distro} is one that the recipe builds on")
    packaged = [
        source.versions
        for source in serving
        if isinstance(source, DebSource | DkmsSource) and source.is_packaged
    ]
    own = [row for row in found if any(version_matches(row["version"], v) for v in packaged)]
    if not own:
        _need_servers(serving)
    row: dict[str, Any] = (own or found)[0]
    return (name, "--version", row["version"], "--kernel", row["release"], "--distro", distro)


def _need_servers(sources: list[Any]) -> None:
    for source in sources:
        for release in getattr(source, "releases", ()):
            url = urlsplit(getattr(release, "url", None) or source.url)
            try:
                socket.create_connection((str(url.hostname), url.port or 443), timeout=10).close()
            except OSError as error:
                pytest.skip(f"{url.hostname} can't be reached: {error}")
