"""What an archive has, by apt of the real distro in a container."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kit.agent_host import AgentHost
from kit.apt_archive import AptArchive
from kit.debian import apt_sources
from kit.fileserver import served
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER
from kit.kernels import kernels
from kit.openpgp import key_of
from kit.product import Provision


@pytest.fixture
def host(tmp_path: Path) -> AgentHost:
    return AgentHost.make(tmp_path / "host", running=OLD_KERNEL)


def test_the_kernels_and_versions_of_a_driver_are_listed(
    provision: Provision, host: AgentHost
) -> None:
    words = ("nvidia", "--distro", DISTRO, "--root", host.root)
    listed = provision.json("drivers", "kernels", *words)
    assert (listed["driver"], listed["distro"]) == ("nvidia", DISTRO)
    known = {row["release"]: row["known"] for row in listed["kernels"]}
    assert known[kernels()[1]] == "works"
    assert all((row["version"] is None) == (row["known"] == "fails") for row in listed["kernels"])
    table = provision("drivers", "kernels", *words)
    assert all(release in table.stdout for release in known)
    assert "Asking" not in table.stderr, "the second time, its answer is there"
    # These are in a component of their own, and in two suites.
    proprietary = ("--flavour", "proprietary", "--offline")
    # The vendor can't be reached here.
    (driver,) = provision.json("drivers", "versions", *words, *proprietary, status=3)["drivers"]
    assert len([version for version in driver["offered"] if version.startswith("535.")]) > 1


def test_another_archive_among_the_hosts_own_is_left_out(
    provision: Provision, host: AgentHost, tmp_path: Path
) -> None:
    """One of the same suite and component, with a key of its own; and one that is gone."""
    target = (SMALL_DRIVER, "--kernel", OLD_KERNEL)
    # By the archive's index of now, as the host's: not by one of an earlier run.
    alone = provision.build(*target, "--distro", DISTRO, "--refresh")
    other = AptArchive(tmp_path / "other", key_of("another"), fields={"Origin": "Someone"})
    other.publish("bookworm", {"main": ""})
    host.write("etc/provision/provision.toml", '[engine]\nnetwork = "host"\n')
    (host.root / "etc/apt").mkdir()
    (host.root / "etc/apt/other.gpg").write_bytes(key_of("another").keyring.read_bytes())
    with served(tmp_path / "other") as url:
        foreign = "".join(
            f"deb [signed-by=/etc/apt/other.gpg] {place} bookworm main\n"
            for place in (url, f"{url}/missing")
        )
        host.write("etc/apt/sources.list", apt_sources("bookworm") + foreign)
        done = provision("resolve", *target, "--root", host.root, "--refresh", "--json")
    assert json.loads(done.stdout)["digest"] == alone["digest"]
    for place in (url, f"{url}/missing"):
        assert f"Another's archive is left out: {place}\n" in done.stderr


def test_the_index_of_another_suite_is_refused(
    provision: Provision, host: AgentHost, tmp_path: Path
) -> None:
    """Signed with the right key, and put in another's place."""
    archive = AptArchive(tmp_path / "archive")
    archive.fields |= {"Suite": "stable", "Codename": "trixie"}
    for suite in ("bookworm", "bookworm-updates"):
        archive.publish(suite, {"main": ""})
    (host.root / "etc/site.gpg").write_bytes(key_of().keyring.read_bytes())
    with served(tmp_path / "archive") as url:
        host.write(
            "etc/provision/provision.toml",
            f'[engine]\nnetwork = "host"\n[distros.debian.archive]\nmirror = "{url}"\n'
            'keyring = "/etc/site.gpg"\n',
        )
        status, error = provision.failure("resolve", SMALL_DRIVER, "--root", host.root)
    assert status == 1
    assert "signed index of another suite" in error["details"]
