"""The whole chain on a real kernel: built, installed, loaded, and in the hands of containers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kit.guest import IMAGE
from kit.hosts import SMALL_DRIVER

if TYPE_CHECKING:
    from kit.guest import Guest

# busybox opens it for reading and writing; `: <>` does nothing else.
pytestmark = [pytest.mark.xdist_group("loaded guest"), pytest.mark.minutes(2)]

_OPEN = "': <>/dev/video0 && echo opened'"
_SAME_BUILD = """python3 -c '
import sys
note = open("/sys/module/v4l2loopback/notes/.note.gnu.build-id", "rb").read()
sys.exit(note not in open(sys.argv[1], "rb").read())
'"""
_FLAG = "-e OCI_V4L2LOOPBACK=all"
START = (
    "docker run --rm --network none --runtime oci-decorator",
    "podman --runtime oci-decorator run --rm --network none",
)


@pytest.fixture(scope="module")
def guest(loaded_guest: Guest) -> Guest:
    """A guest with the driver in its store and its module loaded; the steps are asserted below."""
    return loaded_guest


def test_the_module_is_loaded_from_the_store_and_not_from_the_system(guest: Guest) -> None:
    assert "v4l2loopback" in guest("cat /proc/modules").stdout
    assert guest("find /lib/modules -name 'v4l2loopback*'").stdout == ""
    entry = guest(f"readlink -f /var/lib/provision/{SMALL_DRIVER}/current").stdout.strip()
    # What the linker made of the content: the kernel keeps it of each module.
    guest(f"{_SAME_BUILD} $(find {entry} -name v4l2loopback.ko)")
    assert guest("stat -c %F /dev/video0").stdout == "character special file\n"


@pytest.mark.parametrize("start", START)
def test_a_container_with_the_flag_opens_the_device(guest: Guest, start: str) -> None:
    assert guest(f"{start} {_FLAG} {IMAGE} sh -c {_OPEN}").stdout == "opened\n"


@pytest.mark.parametrize("start", START)
def test_a_container_without_the_flag_has_no_device(guest: Guest, start: str) -> None:
    done = guest(f"{start} {IMAGE} ls /dev/video0", check=False)
    assert done.returncode != 0
    assert "No such file" in done.stderr


@pytest.mark.parametrize("start", START)
def test_the_cgroup_and_not_only_the_missing_node_keeps_others_out(
    guest: Guest, start: str
) -> None:
    """A node of the same numbers, made in a container without the flag, can't be opened."""
    script = "'mknod /tmp/video0 c 81 0 && : <>/tmp/video0'"
    done = guest(f"{start} --cap-add MKNOD {IMAGE} sh -c {script}", check=False)
    assert done.returncode != 0
    assert "Operation not permitted" in done.stderr


@pytest.mark.parametrize("start", START)
def test_the_drivers_program_is_there_and_read_only(guest: Guest, start: str) -> None:
    script = "'test -x /usr/bin/v4l2loopback-ctl && : >>/usr/bin/v4l2loopback-ctl'"
    done = guest(f"{start} {_FLAG} {IMAGE} sh -c {script}", check=False)
    assert done.returncode != 0
    assert "Read-only file system" in done.stderr


def test_an_unloaded_module_takes_its_device_along(guest: Guest) -> None:
    guest(f"provision unload {SMALL_DRIVER}")
    assert guest("ls /dev/video0", check=False).returncode != 0
    loaded = json.loads(guest(f"provision load {SMALL_DRIVER} --json").stdout)
    assert loaded
    assert guest("stat -c %F /dev/video0").stdout == "character special file\n"
