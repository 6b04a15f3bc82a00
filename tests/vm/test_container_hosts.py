"""Engines in less usual ways, with a real device: live-restore, crun, hooks only, rootless."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.cache import REPOSITORY
from kit.guest import IMAGE, Guest
from vm.managed import OPEN

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(4)]

_FLAG = "-e OCI_V4L2LOOPBACK=all"
_HOOKS = "/usr/share/containers/oci/hooks.d"
_LIVE_RESTORE = """\
{"live-restore": true,
 "runtimes": {"oci-decorator": {"path": "/usr/local/bin/oci-decorator-runtime"}}}
"""
_CRUN = 'runtimes = ["crun"]\n'
_USER = "runuser -u someone -- env XDG_RUNTIME_DIR=/run/user/$(id -u someone)"


@pytest.fixture(scope="module")
def guest(loaded_guest: Guest) -> Guest:
    """A guest with a driver loaded and dockerd set to leave containers alone when it restarts."""
    loaded_guest.write("/etc/docker/daemon.json", _LIVE_RESTORE)
    loaded_guest("systemctl reload docker")
    return loaded_guest


@pytest.fixture
def docker_container(guest: Guest) -> Iterator[str]:
    """A decorated container that runs."""
    run = "docker run -d --name kept --network none --runtime oci-decorator"
    guest(f"{run} {_FLAG} {IMAGE} sleep 10000")
    yield "docker exec kept"
    guest("docker rm -f kept", check=False)


def test_a_container_outlives_a_restart_of_docker(guest: Guest, docker_container: str) -> None:
    pid = guest("docker inspect -f '{{.State.Pid}}' kept").stdout
    guest("systemctl restart docker")
    assert guest("docker inspect -f '{{.State.Pid}}' kept").stdout == pid
    assert guest(f"{docker_container} {OPEN}").stdout == "opened\n"
    # Started again by the new dockerd, it is decorated again.
    guest("docker restart -t 0 kept")
    assert guest("docker inspect -f '{{.State.Pid}}' kept").stdout != pid
    assert guest(f"{docker_container} {OPEN}").stdout == "opened\n"


def test_crun_behind_the_runtime(guest: Guest) -> None:
    guest.write("/etc/oci-decorator/config.toml", _CRUN)
    for start in (
        "docker run --rm --network none --runtime oci-decorator",
        "podman --runtime oci-decorator run --rm --network none",
    ):
        assert guest(f"{start} {_FLAG} {IMAGE} {OPEN}").stdout == "opened\n"
    guest("rm /etc/oci-decorator/config.toml")


def test_hooks_in_place_of_the_runtime(guest: Guest) -> None:
    """Podman's own runtime, crun: the device comes with the specification, before the start."""
    guest.put(REPOSITORY / "hooks/hooks.d", "/root/hooks")
    start = "podman --hooks-dir /root/hooks --runtime crun run --rm --network none"
    assert guest(f"{start} {_FLAG} {IMAGE} {OPEN}").stdout == "opened\n"
    done = guest(f"{start} {IMAGE} ls /dev/video0", check=False)
    assert "No such file" in done.stderr


def test_the_prestart_hook_by_itself_sets_device_rules_of_cgroup_v2(guest: Guest) -> None:
    """As for an engine without `precreate`: a BPF program lets the container use the node."""
    guest("mkdir -p /root/prestart && cp /root/hooks/20-* /root/prestart")
    start = "podman --hooks-dir /root/prestart --runtime crun run --rm --network none"
    assert guest(f"{start} {_FLAG} {IMAGE} {OPEN}").stdout == "opened\n"
    # The rules that were there hold still: no other device than before.
    script = "sh -c 'mknod /tmp/sda b 254 0 && : </tmp/sda'"
    done = guest(f"{start} --cap-add MKNOD {_FLAG} {IMAGE} {script}", check=False)
    assert "Operation not permitted" in done.stderr


def test_a_user_without_rights_gets_a_device_that_is_theirs_to_open(guest: Guest) -> None:
    """Rootless podman with the hooks: it mounts nodes, and the host's own rights count."""
    guest("useradd -m someone && loginctl enable-linger someone")
    guest(f"mkdir -p {_HOOKS} && cp /root/hooks/* {_HOOKS}")
    guest("until test -S /run/user/$(id -u someone)/bus; do sleep 0.5; done")
    guest("cp /root/image.tar /home/someone")
    guest(f"cd / && {_USER} podman import -q /home/someone/image.tar own")
    start = f"cd / && {_USER} podman --hooks-dir {_HOOKS} run --rm --network none {_FLAG} own"
    refused = guest(f"{start} {OPEN}", check=False)
    assert refused.returncode != 0
    assert "Permission denied" in refused.stderr
    guest("chmod 666 /dev/video0")
    assert guest(f"{start} {OPEN}").stdout == "opened\n"
