"""No link below ``--root`` leads to the running host: no command reads or writes there.

The other host's folders are absolute links, as on many systems, to places that it has itself. The
running host is played by a folder at which those links arrive when they are followed as the
kernel does: each is ``CANARY/…``, and the other host has a copy of the same path below its root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.artifact import KERNEL, make_artifact, make_pin
from kit.files import write_all
from kit.host_tree import DRIVER, HostTree
from provision.files import in_root
from provision.host.kernels import find_kernels
from provision.kmod.modules import loaded_modules
from provision.store.activate import activate_entry
from provision.store.entries import linked_kernels, stored_drivers
from provision.store.layout import Layout
from unit.cli.outcome import Outcome

Call = Callable[..., Outcome]

# What of a host is a link here: nearly everything that is read or written.
_LINKED = ("boot", "dev", "etc", "lib", "proc", "run", "srv", "sys", "usr", "var")
# What doctor sees that this host has.
_WELL = ("status", "units", "store", "kernel-log", "engine")
# Of the running host; whoever reads it says so.
_FOREIGN = "stranger"
_CANARY = {
    "etc/provision/provision.toml": f"[drivers.{_FOREIGN}]\n",
    "etc/apt/sources.list": f"deb http://{_FOREIGN}.example bookworm main\n",
    "proc/sys/kernel/osrelease": f"9.9.9-{_FOREIGN}\n",
    "proc/modules": f"{_FOREIGN} 1 0 - Live 0x0\n",
    f"lib/modules/9.9.9-{_FOREIGN}/modules.dep": "",
    "run/provision/status.json": f'{{"state": "{_FOREIGN}"}}',
    f"var/lib/provision/{_FOREIGN}/kernels/9.9.9-{_FOREIGN}": "",
    "usr/bin/podman": "",
    # It is a link to a file.
    "release": f"ID={_FOREIGN}\n",
}


@pytest.fixture
def host(host_tree: HostTree, plain_path: Path) -> Iterator[Path]:
    """The root of a host that wants a driver, whose kernel doesn't run here."""
    host_tree.want('\n[metrics]\ntextfile = "/var/lib/metrics/provision.prom"\n')
    settings = host_tree.root / "etc/provision/provision.toml"
    settings.write_text(settings.read_text().replace('"never"', '"fallback"'))
    host_tree.offer()
    host_tree.write("usr/bin/dockerd", "")
    host_tree.write("var/lib/dpkg/status", "")
    host_tree.have("videodev")
    listens = "0: 00000002 00000000 00010000 0001 01 1 /run/docker.sock"
    host_tree.write("proc/net/unix", f"Num RefCount Protocol Flags Type St Inode Path\n{listens}\n")
    host_tree.write("proc/sys/kernel/random/boot_id", "another\n")
    root, canary = host_tree.root, plain_path / "canary"
    write_all(canary, _CANARY)
    inside = root / canary.relative_to("/")
    inside.mkdir(parents=True)
    (root / "etc/os-release").rename(inside / "release")
    (root / "etc/os-release").symlink_to(canary / "release")
    for name in _LINKED:
        (root / name).mkdir(exist_ok=True)
        (canary / name).mkdir(exist_ok=True)
        # The link's target, taken as the kernel takes it, is a folder of the running host.
        (root / name).rename(inside / name)
        (root / name).symlink_to(canary / name)
    before = _contents(canary)
    yield root
    assert _contents(canary) == before, "something of the running host was changed"


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def test_what_commands_read_and_write_is_the_other_hosts(call: Call, host: Path) -> None:
    assert find_kernels(host).installed == (KERNEL,)
    assert list(loaded_modules(host)) == ["videodev"]
    # Each with a part of its document, since what is not found is no error.
    for words, code, part in (
        ("facts", 0, {"kernel": KERNEL}),
        ("status", 0, {"state": "pending"}),
        ("devices --rescan", 0, {"devices": {}}),
        ("apply", 0, {"changed": True}),
        ("apply", 0, {"changed": False, "actions": []}),
        ("status --check", 0, {"state": "ready"}),
        ("verify demo", 0, {"findings": []}),
        ("gc", 0, {"artifacts": []}),
        ("units install", 0, {"changed": True}),
        ("units install", 0, {"changed": False}),
        ("doctor", 0, {}),
        ("units remove", 0, {"changed": True}),
        ("uninstall", 0, {"changed": True}),
        ("status", 0, {"state": "pending"}),
    ):
        outcome = call(*words.split(), "--root", host, "--json")
        assert (outcome.code, part.items() <= outcome.document.items()) == (code, True), words
        assert _FOREIGN not in f"{outcome.out}{outcome.err}", words
        if words == "facts":
            (engine,) = outcome.document["engines"]
            assert engine["program"] == "/usr/bin/dockerd"
        if words == "gc":
            assert list(stored_drivers(host)) == [DRIVER]
            assert [*linked_kernels(Layout(host, DRIVER))] == [KERNEL]
            assert in_root(host, "var/lib/metrics/provision.prom").is_file()
        if words == "doctor":
            states = {one["check"]: one["state"] for one in outcome.document["checks"]}
            assert {states[check] for check in _WELL} == {"ok"}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("etc/oci-decorator", "../../outside"),
        ("etc/ld.so.conf.d", "../../outside"),
        ("var/lib/provision", "../../.."),
    ],
)
def test_a_link_that_climbs_stays_below_the_root(tmp_path: Path, name: str, target: str) -> None:
    root = tmp_path / "a/b/root"
    for folder in ("etc", "var/lib"):
        (root / folder).mkdir(parents=True)
    (root / name).symlink_to(target)
    layout = Layout(root, "demo")
    pin = make_pin()
    make_artifact(layout.entry(pin.short_digest), pin=pin)
    activate_entry(layout, layout.entry(pin.short_digest))
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    assert {path.name for path in (tmp_path / "a/b").iterdir()} == {"root"}
