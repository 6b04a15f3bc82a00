"""`vagrant up && vagrant provision && vagrant reload` on a box of our own, with nothing downloaded.

The tests are steps of one story, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import yaml

from kit.cache import cache_dir
from kit.engine import Engine
from kit.guest import DEBIAN_12, IMAGE
from kit.guest.base import base_of
from kit.guest.tree import IMAGE_FILE
from kit.hosts import SMALL_DRIVER, load_base
from kit.probe import is_root, need, need_programs
from kit.product import DECORATOR
from kit.registry import free_port
from vagrant.box import make_box
from vagrant.lab import HOST, Lab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NEEDED = ("vagrant", "libvirtd", "dnsmasq", "slirp4netns", "qemu-system-x86_64", "dockerd")
_OPEN = (
    f"podman image exists {IMAGE} || podman import -q {IMAGE_FILE} {IMAGE};"
    " podman --runtime oci-decorator run --rm --network none -e OCI_V4L2LOOPBACK=all"
    f" {IMAGE} sh -c ': <>/dev/video0 && echo opened'"
)
_BOOT = "cat /proc/sys/kernel/random/boot_id"


@dataclass(frozen=True, slots=True)
class Story:
    """A lab with a host that is up, and what `vagrant up` said."""

    lab: Lab
    said: str


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """A host of a box that was made here; this machine's engine builds for it."""
    need(is_root(), "root", "run as root: libvirt wants it")
    need_programs(*_NEEDED)
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    folder = tmp_path_factory.mktemp("vagrant")
    variables = folder / "variables.yml"
    with Engine(port=free_port()) as engine:
        load_base(engine)
        variables.write_text(_variables(f"tcp://{HOST}:{engine.port}", folder))
        environment = {
            "PROVISION_BOX": str(make_box(base_of(DEBIAN_12), folder)),
            "PROVISION_VAGRANT_DRIVER": "qemu",
            "PROVISION_VAGRANT_VARIABLES": str(variables),
            "XDG_CACHE_HOME": str(cache_dir()),
        }
        with Lab(environment) as lab:
            yield Story(lab, lab("up").output)
            lab("destroy", "--force")


def _variables(engine: str, folder: Path) -> str:
    config = {"engine": {"host": engine, "network": "host"}, "drivers": {SMALL_DRIVER: {}}}
    return yaml.safe_dump(
        {
            "provision_driver_config": config,
            "provision_driver_cache": str(folder / "bundles"),
        }
    )


def test_up_makes_a_host_whose_containers_have_the_driver(story: Story) -> None:
    assert "failed=0" in story.said
    assert SMALL_DRIVER in story.lab.ssh("cat /proc/modules")
    assert story.lab.ssh(_OPEN).splitlines()[-1] == "opened"


def test_provision_changes_nothing_more(story: Story) -> None:
    said = story.lab("provision").output
    assert "changed=0" in said, said


def test_reload_boots_into_the_driver(story: Story) -> None:
    before = story.lab.ssh(_BOOT)
    story.lab("reload")
    assert story.lab.ssh(_BOOT) != before
    # The boot's own part may still be at it.
    story.lab.ssh("systemctl start provision-boot")
    assert story.lab.ssh(_OPEN).splitlines()[-1] == "opened"
