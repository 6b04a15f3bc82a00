"""A host in the layout of Fedora CoreOS keeps its drivers from one deployment to the next.

The guest is that of the EL stand-in: its kernels have names that an RPM may have, so `kernel-devel`
of exactly a deployment's kernel can be made, and lies where Fedora's build system has it. ostree
makes the deployments; what rpm-ostree says of them is a recording of a real host, filled in. The
tests are steps of one scenario, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from kit.cache import REPOSITORY
from kit.el_kernels import ElHost
from kit.engine import Engine
from kit.foreign import foreign_program, program_root
from kit.guest import EL_10, Guest, Recipe, guest_of
from kit.immutable import read_only_usr, recorded_updater
from kit.made_up import MADE_UP
from kit.ostree import Sysroot
from kit.process import run
from kit.two_part_driver import DUO
from vm import next_kernel
from vm.managed import ManagedGuest

pytestmark = [pytest.mark.nightly, pytest.mark.stages, pytest.mark.minutes(10)]

_DATA = REPOSITORY / "tests/data"
_FEDORA = "42"
_STATUS = "/var/lib/updater"
_REPOSITORY = """
[[distros.fedora.repositories]]
id = "{id}"
urls = ["{url}/{path}"]
keys = ["{key}"]
"""
# A deployment is a root of its own; depmod ran when it was composed.
_COMPOSE = """
set -e
rm -rf /root/tree && mkdir -p /root/tree/usr/lib /root/tree/usr/etc && cd /root/tree
ln -s usr/lib lib && cp /usr/lib/os-release usr/lib/
rpm2cpio /root/kernel.rpm | cpio --quiet -idm && rm /root/kernel.rpm
depmod -b /root/tree {kernel}
"""
# What a boot of a deployment does to /usr and to the menu.
_SWITCH = """
set -e
systemctl stop provision-kernel.path
mount -o remount,bind,rw /usr
cp -a {root}/usr/lib/modules/{kernel} /usr/lib/modules/
kernel-install add {kernel} /usr/lib/modules/{kernel}/vmlinuz
rm -r /usr/lib/modules/{before}
"""


@pytest.fixture(scope="module")
def host(
    el: ElHost,
    el_mirror: str,
    el_drivers: Path,
    product: Callable[[Recipe], Path],
    engine: Engine,
    engine_address: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ManagedGuest]:
    """A guest in the layout of Fedora CoreOS that keeps both drivers, with the units in place."""
    os_release = tmp_path_factory.mktemp("fedora") / "os-release"
    # The recorded file, for a release that packages are known of.
    recorded = (_DATA / "os-release/fedora_41_coreos").read_text()
    os_release.write_text(recorded.replace("41", _FEDORA))
    _load_base(el, engine, el_mirror, os_release)
    with guest_of(EL_10) as guest:
        guest.install(product(EL_10))
        _lay_out(guest, el, os_release, tmp_path_factory.mktemp("programs"))
        host = ManagedGuest(guest, engine_address)
        host.put_catalogue(el_drivers)
        _want(host, el, el_mirror, **next_kernel.WANTED)
        host.apply()
        guest("provision units install")
        # What starts the agent in this scenario are deployments.
        guest("systemctl stop provision-apply.timer")
        yield host


def _load_base(el: ElHost, engine: Engine, url: str, os_release: Path) -> None:
    """Have an image of Fedora: that of EL, with another name."""
    plain = el.load(engine, "kit-fedora:1", url)
    with engine.created(plain) as made:
        engine.docker("cp", os_release, f"{made}:/usr/lib/os-release")
        engine.docker("commit", '--change=CMD ["bash"]', made, f"fedora:{_FEDORA}")


def _lay_out(guest: Guest, el: ElHost, os_release: Path, folder: Path) -> None:
    guest("rm -r /usr/bin/dnf* /etc/yum.repos.d")
    guest.put(os_release, "/usr/lib/os-release")
    guest.write("/usr/bin/rpm-ostree", recorded_updater("status --json", _STATUS))
    guest("chmod +x /usr/bin/rpm-ostree")
    guest.write("/etc/tmpfiles.d/kit.conf", "f /run/ostree-booted\n")
    guest("systemd-tmpfiles --create /etc/tmpfiles.d/kit.conf")
    # With the libraries that it wants; /ostree is a link on those hosts.
    program = foreign_program("ostree", folder)
    guest.put(program, "/usr/bin/ostree")
    root = program_root("trixie", "ostree")
    run(["tar", "-C", root, "-cf", folder / "ostree.tar", "usr/bin", "usr/lib"])
    guest.put(folder / "ostree.tar", "/root/ostree.tar")
    guest(f"mkdir -p {root} && tar -C {root} -xf /root/ostree.tar && rm /root/ostree.tar")
    guest("ln -s sysroot/ostree /ostree")
    sysroot = _sysroot(guest)
    sysroot.make()
    booted = _compose(guest, el, el.older)
    sysroot.deploy(booted)
    _say(guest, booted)
    guest.write("/etc/systemd/system/read-only.service", read_only_usr())
    guest("systemctl enable --now read-only.service")


def _want(host: ManagedGuest, el: ElHost, url: str, **versions: str) -> None:
    """Write provision.toml; `kernel-devel` is taken from koji, the rest from Fedora's own."""
    host.want(**versions)
    distro = el.site.distro
    places = {"koji": "koji", **{one.id: one.path for one in distro.repositories}}
    named = [
        _REPOSITORY.format(id=name, url=url, path=path, key=distro.key)
        for name, path in places.items()
    ]
    host.guest("cat >>/etc/provision/provision.toml", stdin="".join(named))


def _sysroot(guest: Guest) -> Sysroot:
    return Sysroot("/sysroot", lambda script: guest(f"set -e\n{script}").stdout)


def _compose(guest: Guest, el: ElHost, kernel: str) -> str:
    """Commit a root with a kernel; the name that its deployment will have."""
    (core,) = el.mirror().glob(f"kernels/kernel-core-{kernel}.*.rpm")
    guest.put(core, "/root/kernel.rpm")
    guest(_COMPOSE.format(kernel=kernel))
    return _sysroot(guest).commit("/root/tree")


def _say(guest: Guest, booted: str, *first: str) -> None:
    """Let rpm-ostree say which deployments there are, and will be first in a moment."""
    guest.write(_STATUS, _sysroot(guest).status(booted, *first))


def test_the_host_is_known_as_what_it_stands_for(host: ManagedGuest, el: ElHost) -> None:
    guest = host.guest
    facts = json.loads(guest("provision facts --json").stdout)
    distro = facts["distro"]
    assert (distro["id"], distro["version"], distro["variant"]) == ("fedora", _FEDORA, "coreos")
    assert (facts["immutable"], facts["kernel"]) == ("ostree", el.older)
    assert "Read-only" in guest("touch /usr/x", check=False).stderr
    # What comes with a deployment runs no plugin of the host that it comes to.
    assert guest("find /etc/kernel -name '*provision*'").stdout == ""


def test_headers_are_of_exactly_the_deployments_kernel(host: ManagedGuest, el: ElHost) -> None:
    guest = host.guest
    assert host.duo() == next_kernel.LOADED
    assert host.is_loaded(MADE_UP)
    assert guest("find /usr/lib/modules -name 'duo*'").stdout == ""
    manifest = guest(f"cat /var/lib/provision/{DUO}/current/driver/manifest.json").stdout
    pin = json.loads(manifest)["pin"]
    (headers,) = (one for one in pin["closure"] if one["name"] == "kernel-devel")
    assert f"{headers['version']}".endswith(el.older)
    assert headers["repository"] == "koji"
    assert pin["distro"]["id"] == "fedora"


def test_a_staged_deployments_kernel_is_prepared_and_a_failure_said_before_the_reboot(
    host: ManagedGuest, el: ElHost
) -> None:
    guest = host.guest
    sysroot = _sysroot(guest)
    (booted,) = sysroot.deployments()
    staged = _compose(guest, el, el.newer)
    # What rpm-ostree says has changed when libostree touches the folder.
    _say(guest, booted, staged)
    with host.kernel_service_runs():
        sysroot.deploy(staged)
    log = guest("journalctl -b --no-pager -u provision-kernel").stdout
    assert host.slots(MADE_UP)[el.newer]["state"] == "ready", log
    assert guest(f"ls /usr/lib/modules/{el.newer}", check=False).returncode != 0
    next_kernel.check_failure_is_said(host, running=el.older, coming=el.newer)


def test_with_a_patch_it_heals(host: ManagedGuest, el: ElHost, el_drivers: Path) -> None:
    next_kernel.heal(host, el_drivers, since=el.newer_number)


def test_the_next_deployment_boots_into_its_drivers_without_a_network(
    host: ManagedGuest, el: ElHost
) -> None:
    guest = host.guest
    new, _before = _sysroot(guest).deployments()
    root = f"/ostree/deploy/fedora-coreos/deploy/{new}"
    guest(_SWITCH.format(root=root, kernel=el.newer, before=el.older))
    _say(guest, new)
    guest.set_network(on=False)
    guest.reboot()
    assert guest.kernel() == el.newer
    assert "Read-only" in guest("touch /usr/x", check=False).stderr
    log = host.boot_log()
    assert host.duo() == next_kernel.LOADED, log
    assert host.is_loaded(MADE_UP), log
    # The deployment before can be booted again, and finds its modules.
    guest("provision gc")
    next_kernel.check_way_back(host, el.older)


def test_rollback_of_a_driver_brings_module_and_library_back(
    host: ManagedGuest, el: ElHost, el_mirror: str
) -> None:
    host.guest.set_network(on=True)
    next_kernel.check_rollback(host, partial(_want, host, el, el_mirror))


def test_what_only_a_removed_deployment_needed_goes(host: ManagedGuest, el: ElHost) -> None:
    guest = host.guest
    gone = host.artifact(MADE_UP, f"kernels/{el.older}")
    # As `rpm-ostree cleanup --rollback` does, with the menu's entry.
    booted, before = _sysroot(guest).deployments()
    _sysroot(guest).undeploy(before)
    _say(guest, booted)
    guest(f"kernel-install remove {el.older}")
    next_kernel.check_only_needed_stays(host, el.newer)
    assert gone not in host.entries(MADE_UP)
