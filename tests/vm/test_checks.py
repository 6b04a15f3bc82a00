"""A driver's own check on a machine that boots: one that hangs, that fails at a boot, that is late.

The tests are stages in the life of one guest. It gets images that were built and signed here; the
version before is in use, and the check of the new one does what a file of the guest says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kit.engine import Engine
from kit.guest import DEBIAN_12, guest_of
from kit.hosts import DISTRO, OLD_KERNEL
from kit.product import Provision
from kit.released import make_debian_packages
from kit.two_part_driver import DUO, DUO_CHECK, DUO_FAILS_HERE, DUO_VERSIONS, duo_catalogue
from provision.errors import ExitCode
from vm.managed import APT, APT_WITHIN_S, ManagedGuest, put_packages

pytestmark = [pytest.mark.nightly, pytest.mark.stages, pytest.mark.minutes(18)]

_OLD, _NEW = DUO_VERSIONS
# Gets a line from each run of the check that fails.
_RUNS = "/srv/runs"
_SETTINGS = f"""\
catalogue = ["/srv/drivers"]
[registry]
folders = ["/srv/images"]
[trust]
keys = "/etc/provision/trust.d"
[policy]
build = "never"
[drivers.{DUO}]
version = "VERSION"
"""


@pytest.fixture(scope="module")
def host(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedGuest]:
    """A host that uses the old version."""
    folder = tmp_path_factory.mktemp("checks")
    images, key = folder / "images", folder / "fleet"
    provision = Provision(engine.host)
    provision("registry", "key", "--no-password", "--output", key)
    with duo_catalogue(folder) as catalogue:
        with (catalogue / DUO / "driver.toml").open("a") as recipe:
            recipe.write(DUO_CHECK)
        target = ("--kernel", OLD_KERNEL, "--distro", DISTRO, "--catalogue", catalogue)
        signed = ("--push", f"oci:{images}", "--sign", "--key", f"{key}.key")
        for version in DUO_VERSIONS:
            provision.build(DUO, "--version", version, *target, *signed)
        packages = make_debian_packages(folder)
        with guest_of(DEBIAN_12) as guest:
            host = ManagedGuest(guest, engine.host)
            put_packages(guest, packages, DEBIAN_12)
            guest(f"{APT} install /root/*.deb", timeout_s=APT_WITHIN_S)
            guest.put(images, "/srv/images")
            guest.put(catalogue, "/srv/drivers")
            guest("mkdir -p /etc/provision/trust.d")
            guest.put(key.with_suffix(".pub"), "/etc/provision/trust.d/fleet.pub")
            _want(host, _OLD)
            host.apply()
            assert host.duo() == f"module {_OLD} library {_OLD}"
            yield host


def _want(host: ManagedGuest, version: str) -> None:
    host.guest.write("/etc/provision/provision.toml", _SETTINGS.replace("VERSION", version))


def _try(host: ManagedGuest, *words: str, status: int) -> dict[str, Any]:
    """Apply; what is said of the running kernel."""
    ((slot,),) = (one["kernels"] for one in host.apply(*words, status=status).drivers.values())
    found: dict[str, Any] = slot
    return found


def test_a_check_that_hangs_fails(host: ManagedGuest) -> None:
    host.guest.write(DUO_FAILS_HERE, f"{_NEW} sleep 600\n")
    _want(host, _NEW)
    slot = _try(host, status=ExitCode.FAILED)
    assert (slot["version"], slot["failure"]["reason"]) == (_OLD, "check")
    assert host.duo() == f"module {_OLD} library {_OLD}"
    assert host.guest("pgrep -x sleep", check=False).returncode == 1


def test_one_that_fails_at_a_boot_fails_at_no_second(host: ManagedGuest) -> None:
    host.guest.write(DUO_FAILS_HERE, f"{_NEW} date >>{_RUNS}; exit 1\n")
    # Modules in use stay until a reboot.
    host.guest("systemd-run --quiet sh -c 'exec sleep infinity </dev/duo'")
    assert _try(host, "--retry", status=ExitCode.IN_USE)["state"] == "reboot-required"
    for _ in range(2):
        host.reboot()
        log = host.boot_log()
        assert host.duo() == f"module {_OLD} library {_OLD}", log
        (slot,) = host.status(DUO)["kernels"]
        assert (slot["version"], slot["is_ready"]) == (_OLD, True)
    assert len(host.guest(f"cat {_RUNS}").stdout.splitlines()) == 1, log


def test_one_that_passes_late_passes(host: ManagedGuest) -> None:
    host.guest.write(DUO_FAILS_HERE, f"{_NEW} sleep 10\n")
    slot = _try(host, "--retry", status=ExitCode.DONE)
    assert (slot["version"], slot["failure"]) == (_NEW, None)
    assert host.duo() == f"module {_NEW} library {_NEW}"
