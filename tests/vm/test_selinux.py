"""Debian 13 with its policy enforcing: confined containers use the driver, and nothing is denied.

No container is privileged and none has `label=disable`; seccomp's default profile is on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.engine import Engine
from kit.guest import DEBIAN_13, IMAGE, Guest, Recipe, guest_of
from kit.product import base_archive
from kit.two_part_driver import DUO, DUO_FLAG, DUO_LIBRARY, DUO_VERSIONS
from vm.managed import ManagedGuest

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(8)]

_DISTRO = "debian:13"
_DAEMON = """\
{"selinux-enabled": true, "features": {"cdi": true},
 "runtimes": {"oci-decorator": {"path": "/usr/local/bin/oci-decorator-runtime"}}}
"""
_LOG = "/var/log/audit/audit.log"
_STORE = f"/var/lib/provision/{DUO}"
_BOTH = f"module {DUO_VERSIONS[0]} library {DUO_VERSIONS[0]}\n"
# A terminal for podman: the policy lets no container write to a pipe of an admin's shell, which
# podman hands on, whatever its runtime.
START = (
    "docker run --rm --network none --runtime oci-decorator",
    "podman --runtime oci-decorator run --rm -t --network none",
)
# Types that containers may read; -xdev leaves out what engines have mounted.
_READABLE = "find / -xdev -context '*:container_ro_file_t:*' -not -path '/var/lib/docker/*'"
_OURS = re.compile(r"container_t|spc_t|oci-decorator|provision|duo|runc|ldconfig")


@pytest.fixture(scope="module")
def guest(
    engine: Engine,
    engine_address: str,
    duo_drivers: Path,
    product: Callable[[Recipe], Path],
) -> Iterator[Guest]:
    """A guest that a unit has given the driver to, and whose dockerd minds labels."""
    engine.docker("load", "--quiet", "--input", base_archive(engine, _DISTRO))
    with guest_of(DEBIAN_13) as guest:
        guest.install(product(DEBIAN_13))
        guest.write("/etc/docker/daemon.json", _DAEMON)
        guest("mkdir -p /etc/cdi && systemctl restart docker")
        host = ManagedGuest(guest, engine_address)
        host.put_catalogue(duo_drivers)
        host.want(duo=DUO_VERSIONS[0])
        guest(f"{_READABLE} >/root/readable-before; wc -l <{_LOG} >/root/log-before")
        guest("provision units install")
        # In the domain and with the rights that the unit leaves it.
        guest("systemctl start provision-apply || { journalctl -u provision-apply; exit 1; }")
        yield guest


def _run(guest: Guest, command: str) -> str:
    """Run a command; what it prints, without the terminal's line ends."""
    return guest(command).stdout.replace("\r\n", "\n")


def _denials(guest: Guest) -> list[str]:
    """What the policy has denied to us, to containers, or because of our files."""
    log = guest(f"tail -n +$(cat /root/log-before) {_LOG}").stdout
    denied = [line for line in log.splitlines() if "avc:  denied" in line]
    return [line for line in denied if _OURS.search(line)]


def test_the_policy_is_enforced_and_containers_are_confined(guest: Guest) -> None:
    assert guest("getenforce").stdout == "Enforcing\n"
    for start in START:
        printed = _run(guest, f"{start} -e {DUO_FLAG}=all {IMAGE} cat /proc/self/attr/current")
        assert re.fullmatch(r"system_u:system_r:container_t:s0:c\d+,c\d+\0?\n?", printed)


def test_only_the_store_is_labelled(guest: Guest) -> None:
    labels = guest(f"find {_STORE} -printf '%P %Z\\n'").stdout
    types = {name: label.split(":")[2] for name, label in map(str.split, labels.splitlines()[1:])}
    # Made before there is anything to label, and no one else's business.
    del types[".lock"]
    modules = {kind for name, kind in types.items() if "/lib/modules/" in name}
    programs = {Path(name).name for name, kind in types.items() if kind == "container_file_t"}
    assert modules == {"modules_object_t"}
    assert programs == {"duo-check", "duo-version"}
    assert types["current"] == "container_ro_file_t"
    assert set(types.values()) == {"modules_object_t", "container_file_t", "container_ro_file_t"}
    guest(f"{_READABLE} -not -path '/var/lib/provision/*' >/root/readable-after")
    guest("cmp /root/readable-before /root/readable-after")


@pytest.mark.parametrize("start", START)
def test_a_container_reads_maps_and_executes_the_driver(guest: Guest, start: str) -> None:
    """Its program runs, finds the library by the loader's cache, and reads from the device."""
    assert _run(guest, f"{start} -e {DUO_FLAG}=all {IMAGE} duo-version") == _BOTH
    read = f"{start} -e {DUO_FLAG}=all {IMAGE} head -c 4 {DUO_LIBRARY}"
    assert _run(guest, read) == "\x7fELF"


@pytest.mark.parametrize("start", START)
def test_a_container_without_the_flag_gets_nothing(guest: Guest, start: str) -> None:
    done = guest(f"{start} {IMAGE} ls /dev/duo {DUO_LIBRARY}", check=False)
    assert done.returncode != 0
    assert done.output.count("No such file") == 2


@pytest.mark.parametrize("start", ["docker run --rm", "podman run --rm -t"])
def test_the_engines_own_cdi_does_the_same(guest: Guest, start: str) -> None:
    """Debian 13's Docker 26 and podman 5, with their own runtimes."""
    guest(f"oci-decorator cdi generate --vendor {DUO} --output /etc/cdi/{DUO}.json")
    if start.startswith("docker"):
        # The policy lets dockerd read /etc/cdi and not watch it.
        guest("systemctl restart docker")
    run = f"{start} --network none --device oci-decorator/{DUO}=all {IMAGE} duo-version"
    assert _run(guest, run) == _BOTH


@pytest.mark.parametrize("start", START)
def test_seccomp_filters_a_decorated_container(guest: Guest, start: str) -> None:
    status = _run(guest, f"{start} -e {DUO_FLAG}=all {IMAGE} grep Seccomp: /proc/self/status")
    # 2: a filter; proc_pid_status(5).
    assert status.split() == ["Seccomp:", "2"]


def test_the_boot_unit_loads_the_driver_in_its_own_domain(guest: Guest) -> None:
    guest(f"provision unload {DUO} && test ! -e /dev/duo")
    guest("systemctl restart provision-boot || { journalctl -u provision-boot; exit 1; }")
    assert _run(guest, f"{START[0]} -e {DUO_FLAG}=all {IMAGE} duo-version") == _BOTH


def test_nothing_of_ours_was_denied(guest: Guest) -> None:
    assert _denials(guest) == []


def test_without_our_labels_the_policy_denies_the_driver(guest: Guest) -> None:
    """That the labels are what helps, and that the log would show it if they didn't."""
    guest(f"chcon -R -t var_lib_t $(readlink -f {_STORE}/current)/driver")
    for start in START:
        done = guest(f"{start} -e {DUO_FLAG}=all {IMAGE} duo-version", check=False)
        assert done.returncode != 0
    assert _denials(guest) != []
