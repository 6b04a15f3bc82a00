"""A world is a bare Debian with a clone of this checkout, and leaves nothing behind."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from kit.probe import can_mount, is_root, need, need_programs
from kit.world import World

pytestmark = pytest.mark.minutes(2)

# Outlives the command that starts it, as engines do; the loop shows that its parent reaps it.
_LOOKED_AT = """
set -eu
. /etc/os-release
[ "$VERSION_ID" = 13 ]
[ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]
[ "$(awk '$3 ~ /^cgroup/' /proc/mounts | wc -l)" = 1 ]
[ "$(umask)" = 0077 ]
[ "$TZ" = X-5:45 ]
[ ! -e ../shared ]
test -x .ci/run
git status --porcelain >/tmp/changed
if command -v python3 docker cargo gcc; then exit 1; fi
unshare --user true
setsid sh -c 'sleep 1000; true' "$TOKEN" &
sh -c 'sleep 0.1 & echo $! >/tmp/orphan'
while [ -e "/proc/$(cat /tmp/orphan)" ]; do sleep 0.1; done
exit 5
"""


def test_a_world_is_bare_and_gone_with_its_command() -> None:
    need(is_root() and can_mount(), "root, and mounts", "run it as root")
    need_programs("debootstrap", "git")
    token = f"token-{os.getpid()}"
    with World.parse(f"debian:13,cgroup2,umask=077,TZ=X-5:45,TOKEN={token}") as world:
        assert world.run(["sh", "-c", _LOOKED_AT]) == 5
        folder = world.root.parent
    assert not folder.exists()
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert not [one for one in Path("/proc").glob("[0-9]*") if token in _words(one)]


def _words(process: Path) -> list[str]:
    with suppress(OSError):
        return (process / "cmdline").read_text(errors="replace").split("\0")
    return []
