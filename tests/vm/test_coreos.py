"""`ansible-playbook site.yml` on hosts without Python, package manager and a /usr to write to.

Stand-ins for Fedora CoreOS and Flatcar: Debian's kernel and programs in the layout of those, with
their os-release, and updaters that say what real ones have said. The tests are steps of one
scenario, in their order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from kit.cache import REPOSITORY
from kit.debian import mirror, security_mirror
from kit.guest import DEBIAN_12, guest_of
from kit.host_python import host_python
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER
from kit.immutable import read_only_usr, recorded_updater
from kit.playbooks import REMOVE, SITE, Ansible, Played
from kit.probe import need
from kit.product import DECORATOR
from vm.keeping import OPEN_DEVICE, Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.engine import Engine
    from kit.guest import Guest

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(8)]

_DATA = REPOSITORY / "tests/data"
_PROGRAM = "/opt/provision/bin/provision"
# What other tests want to find in a guest, and what these distros don't have.
_FOREIGN = (
    "/opt /etc/docker/daemon.json /etc/containers/containers.conf.d/kit.conf"
    " /usr/bin/python3* /usr/lib/python3* /usr/share/python3*"
    " /etc/apt /var/lib/apt /var/lib/dpkg /usr/bin/apt* /usr/bin/dpkg*"
)
_BOOTED = "/run/ostree-booted"


@dataclass(frozen=True, slots=True)
class Distro:
    """What a stand-in has of a distro.

    Attributes:
        name: of the distro.
        os_release: its own, as recorded.
        script: lays it out.
        updater: path of its updater.
        words: what the updater is asked.
        answer: what it says, as recorded.
    """

    name: str
    os_release: str
    script: str
    updater: str
    words: str
    answer: str


_DISTROS = [
    Distro(
        "fcos",
        "fedora_41_coreos",
        "mkdir -p /var/opt && ln -s var/opt /opt",
        "rpm-ostree",
        "status --json",
        "rpm-ostree_staged.json",
    ),
    Distro(
        "flatcar",
        "flatcar_3227.2.4",
        "mkdir /opt",
        "update_engine_client",
        "-status",
        "update-engine_downloading.txt",
    ),
]


@dataclass
class Scenario:
    """A guest, and how runs of the playbook on it ended."""

    distro: Distro
    guest: Guest
    ansible: Ansible
    before: str
    checked: Played
    converged: Played
    again: Played

    def status(self) -> dict[str, Any]:
        """What `provision status` says."""
        printed = self.guest(f"{_PROGRAM} status --json", check=False).stdout
        document: dict[str, Any] = json.loads(printed)
        return document


def _lay_out(guest: Guest, distro: Distro) -> None:
    guest(f"rm -r {_FOREIGN}; systemctl try-reload-or-restart docker; {distro.script}")
    guest.put(_DATA / "os-release" / distro.os_release, "/usr/lib/os-release")
    guest.write(f"/usr/bin/{distro.updater}", recorded_updater(distro.words, "/var/lib/updater"))
    guest(f"chmod +x /usr/bin/{distro.updater}")
    guest.put(_DATA / "updaters" / distro.answer, "/var/lib/updater")
    if distro.name == "fcos":
        guest.write("/etc/tmpfiles.d/kit.conf", f"f {_BOOTED}\n")
        guest("systemd-tmpfiles --create /etc/tmpfiles.d/kit.conf")
        # An update that brings no other kernel waits for its reboot.
        (staged,) = json.loads((_DATA / "updaters" / distro.answer).read_text())["deployments"]
        folder = f"/ostree/deploy/{staged['osname']}/deploy/{staged['checksum']}.{staged['serial']}"
        guest(f"mkdir -p {folder}/usr/lib/modules/{OLD_KERNEL}")
        guest(f"touch {folder}/usr/lib/modules/{OLD_KERNEL}/vmlinuz")
    guest.write("/etc/systemd/system/read-only.service", read_only_usr())
    guest("systemctl enable --now read-only.service")


def _files(guest: Guest) -> str:
    """What lies where playbooks write."""
    folders = "/etc /opt/ /var/lib/provision /var/lib/oci-decorator /usr/bin"
    found = guest(f"find {folders} ! -type d 2>/dev/null", check=False).stdout.splitlines()
    return "\n".join(sorted(path for path in found if path != "/etc/ld.so.cache"))


@pytest.fixture(scope="module", params=_DISTROS, ids=lambda distro: distro.name)
def scenario(
    request: pytest.FixtureRequest,
    engine: Engine,
    engine_address: str,
    wheel: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scenario]:
    """A host that no one has prepared, up to where it has everything."""
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    distro: Distro = request.param
    folder = tmp_path_factory.mktemp(distro.name)
    archive = {"mirror": mirror(), "security_mirror": security_mirror()}
    variables = {
        "provision_host_python_archive": str(host_python(engine)),
        # The one that builds is elsewhere.
        "provision_host_engine": "none",
        "provision_driver_source": str(wheel),
        "provision_driver_cache": str(folder / "bundles"),
        "provision_driver_config": {
            "kernel_distro": DISTRO,
            "engine": {"host": engine_address, "network": "host"},
            "distros": {"debian": {"archive": archive}},
            "drivers": {SMALL_DRIVER: {}},
        },
    }
    with guest_of(DEBIAN_12) as guest:
        _lay_out(guest, distro)
        keeper = Keeper(guest, engine_address)
        before = _files(guest)
        ansible = Ansible(folder, [guest], variables)
        checked = ansible.play(SITE, "--check", "--diff")
        assert _files(guest) == before
        converged = ansible.play(SITE)
        keeper.remember_archive()
        yield Scenario(distro, guest, ansible, before, checked, converged, ansible.play(SITE))


def test_a_check_of_the_bare_host_names_what_comes_first(scenario: Scenario) -> None:
    assert scenario.checked.changed_tasks() == ["Ensure provision's own Python is installed"]
    assert "guest has no Python" in scenario.checked.output


def test_the_driver_is_built_loaded_and_in_containers(scenario: Scenario) -> None:
    assert scenario.guest("command -v python3", check=False).stdout == ""
    assert "Read-only" in scenario.guest("touch /usr/x", check=False).stderr
    (driver,) = scenario.status()["drivers"]
    assert (driver["name"], driver["state"]) == (SMALL_DRIVER, "ready")
    assert driver["kernels"][0]["release"] == OLD_KERNEL
    assert scenario.guest(OPEN_DEVICE).stdout == "opened\n"


def test_the_second_run_changes_nothing(scenario: Scenario) -> None:
    assert scenario.again.changed_tasks() == []
    assert scenario.again.recap["guest"]["changed"] == 0


def test_the_host_is_known_as_what_it_stands_for(scenario: Scenario) -> None:
    facts = json.loads(scenario.guest(f"{_PROGRAM} facts --json").stdout)
    assert facts["distro"]["id"] == {"fcos": "fedora", "flatcar": "flatcar"}[scenario.distro.name]
    assert facts["immutable"]
    assert scenario.guest("test -e /etc/kernel/postinst.d/provision", check=False).returncode != 0


def test_after_a_reboot_without_a_network_it_is_loaded_again(scenario: Scenario) -> None:
    scenario.guest.set_network(on=False)
    scenario.guest.reboot()
    log = scenario.guest("journalctl -b --no-pager -u provision-boot").stdout
    assert (
        scenario.guest("systemctl show --value -p Result provision-boot").stdout == "success\n"
    ), log
    assert scenario.guest(OPEN_DEVICE).stdout == "opened\n", log
    scenario.guest.set_network(on=True)


def test_everything_can_be_taken_back(scenario: Scenario) -> None:
    scenario.ansible.play(REMOVE)
    assert _files(scenario.guest) == scenario.before
    assert scenario.guest("ls -A /opt/").stdout == ""
    assert "v4l2loopback" not in scenario.guest("cat /proc/modules").stdout
    assert scenario.ansible.play(REMOVE).recap["guest"]["changed"] == 0
