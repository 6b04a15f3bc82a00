"""Device rules where systemd and crun have put them: above the cgroup that the process is in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cache import cached
from kit.daemon_reload import KEPT, SCRIPT, parse
from kit.guest import DEBIAN_13, Guest, guest_of
from kit.probe import need
from kit.process import run
from kit.product import DECORATOR
from kit.repackaged import download

# No other test that isn't nightly uses this guest, which takes minutes to make.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(5)]

# Those of the newest crun's libraries that Debian 13 lacks or has too old.
_NEWEST = ("crun", "libblake3-0", "libjson-c5")


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    """A guest with the hook, its own crun, and as `crun-newest` the newest one of Debian."""
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    newest = cached("crun-newest", _fetch)
    with guest_of(DEBIAN_13) as guest:
        guest("mkdir /root/programs")
        guest.put(DECORATOR, "/root/programs/oci-decorator")
        guest.put(SCRIPT, "/root/devices.sh")
        guest.put(newest / "usr", "/root/newest")
        guest(
            "ln -s oci-decorator /root/programs/oci-decorator-runtime\n"
            "cp -a /root/newest/lib/x86_64-linux-gnu/lib*.so.* /usr/local/lib/ && ldconfig\n"
            "install /root/newest/bin/crun /usr/local/bin/crun-newest\n"
            # What is tested are cgroups, with containers that no engine labels.
            "setenforce 0"
        )
        yield guest


@pytest.mark.parametrize("runtime", ["runc", "crun", "crun-newest"])
def test_a_container_may_use_its_devices(guest: Guest, runtime: str) -> None:
    if runtime == "crun-newest":
        version = guest("crun-newest --version").stdout.split()[2]
        assert tuple(map(int, version.split(".")[:2])) >= (1, 23)
    said = parse(guest(f"sh /root/devices.sh /root/programs {runtime}").stdout)
    assert said["before spec"] == said["before hook"] == said["after spec"] == KEPT


def _fetch(draft: Path) -> None:
    draft.mkdir()
    for package in download("testing", ["crun"], draft):
        if package.name.partition("_")[0] in _NEWEST:
            run(["dpkg-deb", "--extract", package, draft])
        package.unlink()
