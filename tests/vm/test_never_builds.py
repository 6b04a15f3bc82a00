"""A host that never builds: one public key, no engine to build with, and a registry that it needs.

Through a kernel upgrade, a reboot and a container's start. The tests are steps of one scenario, in
their order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from kit.agent_host import AgentHost
from kit.guest import DEBIAN_12, guest_of
from kit.hosts import DISTRO, NEW_KERNEL, OLD_KERNEL, SMALL_DRIVER
from kit.probe import need_programs
from kit.product import Provision
from kit.registry import serving_registry
from vm.conftest import HOST
from vm.keeping import OPEN_DEVICE, Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.engine import Engine

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(8)]

_APT = "DEBIAN_FRONTEND=noninteractive apt-get -qy"
_APT_WITHIN_S = 1500
_NO_ENGINE = "unix:///nonexistent/engine.sock"
_CONFIG = f"""\
[drivers.{SMALL_DRIVER}]
[engine]
host = "{_NO_ENGINE}"
[registry]
address = "{{address}}"
plain_http = true
[trust]
keys = "/etc/provision/trust.d"
[policy]
build = "never"
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A registry with signed images, and who builds for it.

    Attributes:
        address: The registry's address, with the prefix, as this machine names it.
        key: The public key.
        listed: What `provision search` says there is.
    """

    address: str
    key: Path
    listed: dict[str, Any]


@pytest.fixture(scope="module")
def site(
    engine: Engine, first_small_build: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """The small driver for both kernels, built, pushed and signed on this machine."""
    need_programs("docker-registry")
    folder = tmp_path_factory.mktemp("site")
    provision = Provision(engine.host)
    provision("key", "generate", "--output", folder / "fleet", "--no-password")
    target = (SMALL_DRIVER, "--kernel", NEW_KERNEL, "--distro", DISTRO)
    images = [first_small_build["image"], provision.build(*target)["image"]]
    (folder / "registry").mkdir()
    with serving_registry(folder / "registry") as registry:
        address = f"{registry}/drivers"
        builder = AgentHost.make(folder / "builder", running=OLD_KERNEL)
        builder.configure(f'[registry]\naddress = "{address}"\n')
        where = ("--root", builder.root)
        for image in images:
            provision("push", image, "--sign", "--key", folder / "fleet.key", *where)
        public = ("--public-key", folder / "fleet.pub")
        yield Site(
            address, folder / "fleet.pub", provision.json("search", SMALL_DRIVER, *public, *where)
        )


@pytest.fixture(scope="module")
def keeper(bookworm_product: Path, site: Site) -> Iterator[Keeper]:
    """A guest with the public key and nothing that could build."""
    with guest_of(DEBIAN_12) as guest:
        guest.install(bookworm_product)
        guest("systemctl disable --now docker.socket docker.service containerd.service 2>&1")
        guest("mkdir -p /etc/provision/trust.d")
        guest.put(site.key, "/etc/provision/trust.d/fleet.pub")
        address = site.address.replace("127.0.0.1", HOST)
        guest.write("/etc/provision/provision.toml", _CONFIG.format(address=address))
        yield Keeper(guest, _NO_ENGINE)


def test_both_kernels_are_listed(site: Site) -> None:
    assert {one["kernel"] for one in site.listed["images"]} == {OLD_KERNEL, NEW_KERNEL}


def test_the_running_kernel_is_served_by_the_registry(keeper: Keeper) -> None:
    guest = keeper.guest
    applied = json.loads(guest("provision apply --json").stdout)
    assert "(from: registry)" in applied["actions"][0]["result"]
    assert guest(OPEN_DEVICE).stdout == "opened\n"
    guest("provision units")
    found = json.loads(guest(f"provision search {SMALL_DRIVER} --json").stdout)
    assert {one["kernel"] for one in found["images"]} == {OLD_KERNEL, NEW_KERNEL}


def test_a_new_kernel_is_served_before_the_reboot(keeper: Keeper) -> None:
    guest = keeper.guest
    guest(f"{_APT} update && {_APT} install linux-image-{NEW_KERNEL}", timeout_s=_APT_WITHIN_S)
    keeper.services_done()
    log = guest("journalctl -b --no-pager -u provision-kernel").stdout
    slots = keeper.slots(SMALL_DRIVER)
    assert slots[NEW_KERNEL]["is_ready"], log
    # There was nothing here that it could have been built with.
    assert guest(f"ls -d /usr/src/linux-headers-{NEW_KERNEL}*", check=False).returncode != 0
    assert guest("command -v gcc", check=False).returncode != 0
    assert guest("systemctl is-active docker", check=False).stdout.strip() == "inactive"


def test_after_the_reboot_a_container_has_its_device(keeper: Keeper) -> None:
    guest = keeper.guest
    guest.set_network(on=False)
    guest.reboot()
    assert guest.kernel() == NEW_KERNEL
    log = keeper.boot_log()
    assert guest(OPEN_DEVICE).stdout == "opened\n", log
    status = keeper.status(SMALL_DRIVER)
    assert (status["state"], status["is_ready"]) == ("ready", True)
    assert {slot["unsigned"] for slot in status["kernels"]} == {None}


def test_what_the_registry_does_not_have_is_missing_by_name(keeper: Keeper) -> None:
    guest = keeper.guest
    guest.set_network(on=True)
    refused = guest("provision install nvidia --json", check=False)
    assert refused.returncode == 3
    assert "No registry has nvidia" in json.loads(refused.stdout)["error"]["message"]
