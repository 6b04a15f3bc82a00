"""`vagrant up && vagrant provision && vagrant reload` on a box of our own, with nothing downloaded.

The tests are steps of one scenario, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from kit.cache import cache_dir
from kit.engine import Engine
from kit.guest import DEBIAN_12, IMAGE
from kit.guest.base import base_of
from kit.guest.tree import IMAGE_FILE
from kit.hosts import SMALL_DRIVER
from kit.probe import need_vagrant
from vagrant.box import make_box
from vagrant.lab import HOST, Lab

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(10)]

_NEEDED = ("libvirtd", "dnsmasq", "slirp4netns", "qemu-system-x86_64", "dockerd")
_OPEN = (
    f"podman image exists {IMAGE} || podman import -q {IMAGE_FILE} {IMAGE};"
    " podman --runtime oci-decorator run --rm --network none -e OCI_V4L2LOOPBACK=all"
    f" {IMAGE} sh -c 'test -c /dev/video0 && : <>/dev/video0 && echo opened'"
)
_BOOT = "cat /proc/sys/kernel/random/boot_id"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A lab with a host that is up, and what `vagrant up` said."""

    lab: Lab
    said: str


@pytest.fixture(scope="module")
def scenario(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    """A host of a box that was made here; this machine's engine builds for it."""
    need_vagrant(*_NEEDED)
    folder = tmp_path_factory.mktemp("vagrant")
    variables = folder / "variables.yml"
    variables.write_text(_variables(f"tcp://{HOST}:{engine.port}", folder))
    environment = {
        "PROVISION_VAGRANT_BOX": str(make_box(base_of(DEBIAN_12), folder)),
        "PROVISION_VAGRANT_DRIVER": "qemu",
        "PROVISION_VAGRANT_VARIABLES": str(variables),
        "XDG_CACHE_HOME": str(cache_dir()),
    }
    with Lab(environment) as lab:
        yield Scenario(lab, lab("up").output)
        lab("destroy", "--force")


def _variables(engine: str, folder: Path) -> str:
    config = {"engine": {"host": engine, "network": "host"}, "drivers": {SMALL_DRIVER: {}}}
    return yaml.safe_dump(
        {
            "provision_driver_config": config,
            "provision_driver_cache": str(folder / "bundles"),
        }
    )


def test_up_makes_a_host_whose_containers_have_the_driver(scenario: Scenario) -> None:
    assert "failed=0" in scenario.said
    assert SMALL_DRIVER in scenario.lab.ssh("cat /proc/modules")
    assert scenario.lab.ssh(_OPEN).splitlines()[-1] == "opened"


def test_provision_changes_nothing_more(scenario: Scenario) -> None:
    said = scenario.lab("provision").output
    assert "changed=0" in said, said


def test_reload_boots_into_the_driver(scenario: Scenario) -> None:
    before = scenario.lab.ssh(_BOOT)
    scenario.lab("reload")
    assert scenario.lab.ssh(_BOOT) != before
    # The boot's own part may still be at it.
    scenario.lab.ssh("systemctl start provision-boot")
    assert scenario.lab.ssh(_OPEN).splitlines()[-1] == "opened"
