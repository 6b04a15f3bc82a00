"""Proxmox VE: a host that says it is Debian, with an archive of its own beside Debian's.

All that the product knows of it is one file of data. Its headers are Debian's under its names.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kit.agent_host import AgentHost
from kit.apt_archive import AptArchive
from kit.debian import apt_sources
from kit.engine import Engine
from kit.fileserver import served
from kit.made_up import MADE_UP, made_up_source, write_made_up
from kit.openpgp import key_of
from kit.product import Provision
from kit.ubuntu import headers_of

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(2)]

_KERNEL = "6.8.12-4-pve"
_KEYRING = "usr/share/keyrings/debian-archive-keyring.gpg"


def test_a_host_of_proxmox_gets_modules_for_its_own_kernel(engine: Engine, tmp_path: Path) -> None:
    archive = AptArchive(
        tmp_path / "www/pve",
        key_of("another"),
        fields={"Origin": "Proxmox", "Codename": "bookworm"},
    )
    packages = headers_of(engine, f"proxmox-headers-{_KERNEL}", _KERNEL, "pve-shared-headers")
    archive.publish("bookworm", {"pve-no-subscription": [*packages]})
    host = AgentHost.make(tmp_path / "host", running=_KERNEL)
    host.write("etc/provision/provision.toml", '[engine]\nnetwork = "host"\n')
    for name, key in (
        (_KEYRING, Path("/", _KEYRING)),
        ("etc/apt/trusted.gpg.d/proxmox-release-bookworm.gpg", key_of("another").keyring),
    ):
        (host.root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(key, host.root / name)
    provision = Provision(engine.host, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    with served(tmp_path / "www") as url:
        own = f"deb {url}/pve bookworm pve-no-subscription\n"
        host.write("etc/apt/sources.list", apt_sources("bookworm") + own)
        source = made_up_source(tmp_path / "www/files", "1.0")
        write_made_up(tmp_path / "drivers", {"1.0": source}, f"{url}/files")
        words = (MADE_UP, "--root", host.root, "--catalogue", tmp_path / "drivers")
        listed = provision.json("drivers", "kernels", *words)
        pin = provision.json("resolve", *words)
        built = provision.json("build", *words)
    assert [row["release"] for row in listed["kernels"]] == [_KERNEL]
    assert (pin["distro"]["id"], pin["distro"]["version"]) == ("proxmox", "8")
    assert pin["compiler"]["name"] == "gcc-12"
    assert [header["name"] for header in pin["headers"]] == [f"proxmox-headers-{_KERNEL}"]
    assert built["built"]
