"""No link below ``--root`` leads to the running host: nothing there is read or written.

The other host's folders are absolute links, as on many systems, to places that it has itself. The
running host is played by a folder at which those links arrive when they are followed as the
kernel does: each is ``CANARY/…``, and the other host has a copy of the same path below its root.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.artifact import KERNEL, make_artifact, make_pin
from provision.agent.desired import load_desired, read_inputs
from provision.agent.run import plan_host
from provision.agent.status import STATUS, publish
from provision.config import load
from provision.distros.debian.suites import read_sources
from provision.doctor import diagnose, observe
from provision.files import in_root
from provision.host.facts import read_facts
from provision.host.kernels import find_kernels
from provision.kmod.host_modules import stored_drivers
from provision.kmod.loaded import loaded_modules
from provision.kmod.loader import configured_folder
from provision.shipped import templates_dir
from provision.store.entries import current_entry, link_kernel, linked_kernels
from provision.store.install import activate_entry, deactivate
from provision.store.layout import Layout
from provision.store.locks import building, switching
from provision.store.units import DEBIAN_HOOKS, UnitSettings, apply_units, plan_units, unit_files
from unit.doctor.host import DRIVER, DoctorHost

# What of a host is a link here: nearly everything that is read or written.
_LINKED = ("etc", "usr", "lib", "var", "run", "proc", "sys", "dev", "boot", "opt")
_MINE = "the running host"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[DoctorHost]:
    """A host that works, whose folders are absolute links to other folders of its own."""
    made = DoctorHost.make(tmp_path)
    canary = tmp_path / "canary"
    for name in _LINKED:
        folder = made.root / name
        folder.mkdir(exist_ok=True)
        # The link's target, taken as the kernel takes it, is a folder of the running host.
        inside = made.root / str(canary / name).lstrip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(inside)
        folder.symlink_to(canary / name)
        (canary / name).mkdir(parents=True)
        (canary / name / "mine").write_text(_MINE)
    before = _state(canary)
    yield made
    assert _state(canary) == before, "something of the running host was changed"


def _state(folder: Path) -> dict[str, str]:
    """Return every file below a folder with what it holds."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder or link"
        )
        for path in sorted(folder.rglob("*"))
    }


def test_facts_and_kernels_are_the_other_hosts(host: DoctorHost) -> None:
    facts = read_facts(host.root)
    assert (facts.distro.id, facts.distro.codename) == ("debian", "bookworm")
    assert facts.kernel == KERNEL
    assert [engine.name for engine in facts.engines] == ["docker"]
    kernels = find_kernels(host.root)
    assert (kernels.running, kernels.installed) == (KERNEL, (KERNEL,))
    assert set(loaded_modules(host.root)) == {"demo"}
    assert configured_folder(host.root) == ""


def test_what_it_reads_of_its_own_links_is_not_the_running_hosts(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    root = tmp_path / "root"
    for name, text in {
        "etc/os-release": "ID=mine\nVERSION_ID=1\n",
        "etc/provision/provision.toml": "[drivers.mine]\n",
        "etc/apt/sources.list": "deb http://mine.example bookworm main\n",
        "proc/sys/kernel/osrelease": "9.9.9-mine\n",
        "proc/modules": "mine 1 0 - Live 0x0\n",
        "lib/modules/9.9.9-mine/modules.dep": "",
        "run/provision/status.json": '{"state": "mine"}',
        "var/lib/provision/mine/kernels/9.9.9-mine": "",
    }.items():
        (canary / name).parent.mkdir(parents=True, exist_ok=True)
        (canary / name).write_text(text)
    root.mkdir()
    for name in ("etc", "proc", "lib", "run", "var"):
        (root / name).symlink_to(canary / name)
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/os-release").write_text("ID=other\nVERSION_ID=2\n")
    assert read_facts(root).distro.id == "other"
    assert find_kernels(root).bootable == ()
    assert load(root).drivers == {}
    assert load_desired(root).drivers == {}
    assert read_sources(root) == []
    assert loaded_modules(root) == {}
    assert stored_drivers(root) == []


@pytest.mark.parametrize("name", ["etc/os-release", "usr/lib/os-release"])
def test_a_file_that_is_a_link_itself_is_read_below_the_root(tmp_path: Path, name: str) -> None:
    (tmp_path / "canary").write_text("ID=mine\n")
    root = tmp_path / "root"
    inside = root / str(tmp_path / "canary").lstrip("/")
    inside.parent.mkdir(parents=True)
    inside.write_text("ID=other\n")
    (root / name).parent.mkdir(parents=True)
    (root / name).symlink_to(tmp_path / "canary")
    assert read_facts(root).distro.id == "other"


def test_an_artifact_is_put_to_use_and_out_of_it_again(host: DoctorHost) -> None:
    layout = Layout(host.root, "demo")
    pin = make_pin()
    make_artifact(layout.entry(pin.short_digest), pin=pin)
    assert activate_entry(layout, layout.entry(pin.short_digest)).changes
    link_kernel(layout, KERNEL, pin.short_digest)
    assert linked_kernels(layout) == {KERNEL: pin.short_digest}
    assert current_entry(layout).name == pin.short_digest
    assert current_entry(layout).is_relative_to(host.root)
    assert set(stored_drivers(host.root)) == {DRIVER, "demo"}
    # A second run finds its own files again.
    assert activate_entry(layout, layout.entry(pin.short_digest)).changes == ()
    deactivate(layout)
    assert linked_kernels(layout) == {}


def test_the_agent_looks_and_publishes_below_the_root(host: DoctorHost) -> None:
    textfile = "/var/lib/metrics/provision.prom"
    text = f'[drivers.{DRIVER}]\n[metrics]\ntextfile = "{textfile}"\n'
    host_file(host, "etc/provision/provision.toml", text)
    with building(host.root), switching(host.root):
        pass
    desired = load_desired(host.root, keep=True)
    assert list(desired.drivers) == [DRIVER]
    _observed, _planned, status = plan_host(host.root, desired)
    assert status.kernels.running == KERNEL
    assert publish(host.root, status, desired.config) == []
    assert json.loads(in_root(host.root, STATUS).read_text())["state"] == status.state
    assert read_inputs(host.root, desired)


def test_doctor_looks_below_the_root(host: DoctorHost) -> None:
    results = {result.check: result for result in diagnose(observe(host.root))}
    for check in ("status", "units", "store", "engine", "kernel-log"):
        assert results[check].state == "ok", results[check]


def test_units_are_installed_and_removed_below_the_root(host: DoctorHost) -> None:
    files = unit_files(
        templates_dir(),
        UnitSettings(program="/bin/false", documentation="file:///", hooks=DEBIAN_HOOKS),
    )
    changes = plan_units(host.root, files)
    assert changes
    apply_units(host.root, changes, on_change=lambda _change: None)
    assert plan_units(host.root, files) == []
    apply_units(host.root, plan_units(host.root, []), on_change=lambda _change: None)
    assert plan_units(host.root, []) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda root: (root / "etc/oci-decorator").symlink_to("../../outside"),
        lambda root: (root / "etc/ld.so.conf.d").symlink_to("../../outside"),
        lambda root: (root / "var/lib/provision").symlink_to("../../.."),
    ],
)
def test_a_link_that_climbs_stays_below_the_root(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    root = tmp_path / "a/b/root"
    for name in ("etc", "var/lib"):
        (root / name).mkdir(parents=True)
    write(root)
    layout = Layout(root, "demo")
    pin = make_pin()
    make_artifact(layout.entry(pin.short_digest), pin=pin)
    activate_entry(layout, layout.entry(pin.short_digest))
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    assert {path.name for path in (tmp_path / "a/b").iterdir()} == {"root"}


def host_file(host: DoctorHost, name: str, text: str) -> None:
    """Write a file of the other host, whose folders are links."""
    inside = host.root / str(host.root.parent / "canary" / name).lstrip("/")
    inside.parent.mkdir(parents=True, exist_ok=True)
    inside.write_text(text)
