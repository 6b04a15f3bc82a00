"""One host by `site.yml` of the clone, as an admin begins: what it then is, seen by testinfra."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hosts.conftest import CONTAINERD, DAEMON, ENGINE
from hosts.ssh_hosts import DEBIAN_12, DEBIAN_13, KERNEL, SshHost
from kit.engine import Engine
from kit.fileserver import served
from kit.made_up import MADE_UP, MADE_UP_VERSION, made_up_source, write_made_up
from kit.playbooks import SITE, Ansible, Played
from kit.product import DISTRO

pytestmark = [pytest.mark.tier(1), pytest.mark.minutes(2)]

_UNITS = (
    "provision-boot.service",
    "provision-cdi.path",
    "provision-devices.path",
    "provision-kernel.path",
    "provision-apply.timer",
    "provision-repeat.timer",
)
_MODES = {
    "/etc/provision/provision.toml": 0o644,
    "/etc/systemd/system/provision-repeat.timer": 0o644,
    "/usr/bin/oci-decorator": 0o755,
}


@dataclass(frozen=True, slots=True)
class _Site:
    """A host that a playbook has set up."""

    # The controller.
    ansible: Ansible
    # What `provision_driver_config` says.
    config: dict[str, Any]
    # The host, as testinfra sees it.
    host: Any

    def play(self) -> Played:
        """Run the playbook."""
        return self.ansible.play(SITE, provision_driver_config=self.config)


# The second release at night.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(DEBIAN_12, id="bookworm"),
        pytest.param(DEBIAN_13, id="trixie", marks=pytest.mark.nightly),
    ],
)
def site(
    request: pytest.FixtureRequest,
    engine: Engine,
    settings: dict[str, Any],
    config: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[_Site]:
    """A host with a driver that was built for it."""
    folder = tmp_path_factory.mktemp("site")
    source = made_up_source(folder / "files", MADE_UP_VERSION)
    wanted = {
        **config,
        # The kernel that the host believes to run is one of Debian 12's.
        "kernel_distro": DISTRO,
        "drivers": {MADE_UP: {"version": MADE_UP_VERSION}},
    }
    variables = {
        **settings,
        # Its module can't be loaded in a container.
        "provision_driver_require": "prepared",
        "provision_hook_docker_default": True,
        "provision_driver_catalogue": str(folder / "catalogue"),
        "provision_hook_engines": ["docker", "containerd", "podman"],
    }
    with served(source.parent) as url:
        write_made_up(folder / "catalogue", {MADE_UP_VERSION: source}, url)
        with SshHost(request.param, binds={engine.folder: ENGINE}) as machine:
            machine.write("/etc/docker/daemon.json", json.dumps(DAEMON))
            machine.write("/etc/containerd/config.toml", CONTAINERD)
            machine("systemctl", "start", "docker")
            ansible = Ansible(folder, [machine], variables)
            ansible.play(SITE, provision_driver_config=wanted)
            yield _Site(ansible, wanted, machine.seen_by_ssh())


def test_the_second_run_changes_nothing(site: _Site) -> None:
    again = site.play()
    assert (again.changed_tasks(), again.recap["host"]["changed"]) == ([], 0)


def test_the_driver_is_built_and_in_the_store(site: _Site) -> None:
    document = json.loads(site.host.check_output("/opt/provision/bin/provision status --json"))
    ((slot,),) = (driver["kernels"] for driver in document["drivers"])
    # Its module can't be loaded, and that is said.
    assert (slot["release"], slot["state"]) == (KERNEL, "failed")
    tool = site.host.file(f"/var/lib/provision/{MADE_UP}/current/driver/usr/bin/hello-tool")
    assert tool.content_string.split()[-1] == MADE_UP_VERSION
    assert site.host.package("docker.io").is_installed


@pytest.mark.parametrize("unit", _UNITS)
def test_units_are_there_and_wait(site: _Site, unit: str) -> None:
    service = site.host.service(unit)
    assert service.is_enabled
    assert unit.endswith(".service") or service.is_running


def test_files_are_roots_and_for_no_one_else_to_write(site: _Site) -> None:
    for path, mode in _MODES.items():
        file = site.host.file(path)
        assert (file.user, file.group, file.mode) == ("root", "root", mode)


def test_a_kernels_hooks_run(site: _Site) -> None:
    for kind in ("postinst.d", "postrm.d", "header_postinst.d"):
        assert site.host.run(f"/etc/kernel/{kind}/provision {KERNEL}").rc == 0


def test_engines_know_the_runtime_beside_what_they_had(site: _Site) -> None:
    host = site.host
    info = json.loads(host.check_output("docker info --format '{{json .}}'"))
    assert info["DefaultRuntime"] == "oci-decorator"
    assert {"oci-decorator", "kata", "runc"} <= set(info["Runtimes"])
    assert host.file("/etc/containerd/config.toml").content_string.startswith(CONTAINERD)
    dumped = host.check_output("containerd --config /etc/containerd/config.toml config dump")
    assert "io.containerd.kata.v2" in dumped
    assert "/usr/bin/oci-decorator-runtime" in dumped
    # With a storage of its own, which does not ask for overlays on overlays.
    podman = "podman --root /run/kit/a --runroot /run/kit/b --tmpdir /run/kit/c"
    asked = "--storage-driver vfs --runtime oci-decorator info --format '{{.Host.OCIRuntime.Path}}'"
    assert host.check_output(f"{podman} {asked}") == "/usr/bin/oci-decorator-runtime"
    for name in ("10-oci-decorator-precreate.json", "20-oci-decorator-prestart.json"):
        hook = json.loads(host.file(f"/usr/share/containers/oci/hooks.d/{name}").content_string)
        assert hook["hook"]["path"] == "/usr/bin/oci-decorator"
    assert host.run("oci-decorator check").rc == 0
    # Docker builds here: nothing listens for podman's clients after the next boot.
    assert not host.service("podman.socket").is_enabled
