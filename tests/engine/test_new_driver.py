"""Adding a driver is adding a folder: a made-up one, with its source on a server of our own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.agent_host import AgentHost
from kit.fileserver import served
from kit.git_server import commit_files
from kit.hosts import DISTRO, OLD_KERNEL, Containers, Host
from kit.made_up import (
    MADE_UP,
    made_up_files,
    made_up_source,
    write_made_up,
    write_made_up_in_git,
)
from kit.probe import need_programs
from kit.process import run
from kit.product import BUILD_NETWORK, Provision
from kit.signed_registry import NO_ENGINE

_VERSION = "1.2"


@pytest.fixture
def tarball(tmp_path: Path) -> Path:
    """The made-up driver's source."""
    return made_up_source(tmp_path / "files", _VERSION)


@pytest.fixture
def catalogue(tmp_path: Path, tarball: Path) -> Iterator[Path]:
    """A catalogue with the made-up driver, whose source is served as long as this lives."""
    folder = tmp_path / "drivers"
    with served(tarball.parent) as url:
        write_made_up(folder, {_VERSION: tarball}, url)
        yield folder


def _target(catalogue: Path) -> tuple[str | Path, ...]:
    return (MADE_UP, "--kernel", OLD_KERNEL, "--distro", DISTRO, "--catalogue", catalogue)


def test_a_folder_is_all_that_a_new_driver_needs(
    provision: Provision, containers: Containers, host: Host, catalogue: Path
) -> None:
    built = provision.build(*_target(catalogue))
    provision("verify", built["image"])
    provision("install", built["image"], "--root", host.root)
    assert list(host.entry(MADE_UP).rglob("hello.ko*"))
    for start in (containers.docker, containers.in_podman):
        assert start("hello-tool", check=False).returncode == 127
        done = start("hello-tool", flags=("--env=OCI_HELLO=all",))
        assert done.stdout == f"hello {_VERSION}\n"


def test_a_download_with_another_sha256_fails_the_build_and_says_so(
    provision: Provision, catalogue: Path, tarball: Path
) -> None:
    tarball.write_bytes(tarball.read_bytes() + b"altered")
    status, error = provision.failure("build", *_target(catalogue), *BUILD_NETWORK)
    assert status == 1
    assert "sha256" in error["message"]
    assert tarball.name in f"{error['message']} {error['details']}"


def test_a_kernel_that_the_driver_is_not_known_to_build_on_is_refused_with_what_there_is(
    provision: Provision,
) -> None:
    kernel = "6.1.0-9999-amd64"
    target = ("nvidia", "--version", "latest", "--kernel", kernel, "--distro", DISTRO)
    status, error = provision.failure("resolve", *target)
    assert status == 3
    assert kernel in f"{error['message']} {error['details']}"
    assert OLD_KERNEL.rsplit("-", 2)[0] in f"{error['resolution']} {error['details']}"


@pytest.mark.nightly
def test_a_vendors_driver_reaches_a_host_that_builds_nothing(
    provision: Provision, tmp_path: Path
) -> None:
    """As docs/how-to/add-a-driver.md has it: a branch that only the vendor has, by a folder."""
    need_programs("git", "skopeo")
    repositories, drivers, medium = (tmp_path / name for name in ("git", "drivers", "medium"))
    repositories.mkdir()
    own = commit_files(repositories, "hello", made_up_files("1.4"))
    branch = run(["git", "-C", repositories / own.repository, "branch", "--show-current"]).stdout
    write_made_up_in_git(drivers, "1.4", str(repositories), own, ref=branch.strip())
    provision("registry", "key", "--output", tmp_path / "fleet", "--no-password")
    signing = ("--push", f"oci:{medium}", "--sign", "--key", tmp_path / "fleet.key")
    built = provision.json("build", *_target(drivers), *signing, *BUILD_NETWORK)
    shutil.rmtree(repositories)
    host = AgentHost.make(tmp_path / "customer", running=OLD_KERNEL)
    shutil.copytree(drivers, host.root / "etc/provision/drivers")
    shutil.copytree(medium, host.root / "srv/drivers")
    host.trust(tmp_path / "fleet.pub")
    host.write(
        "etc/provision/provision.toml",
        f'catalogue = ["/etc/provision/drivers"]\n[drivers.{MADE_UP}]\nversion = "1.4"\n'
        '[registry]\nfolders = ["/srv/drivers"]\n'
        '[trust]\nkeys = "/etc/provision/trust.d"\n[policy]\nbuild = "never"\n',
    )
    done = NO_ENGINE("apply", "--root", host.root, check=False)
    assert host.current(MADE_UP) == built["digest"].removeprefix("sha256:")[:12], done.output
