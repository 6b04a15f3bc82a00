"""The first tier passes on hosts that are set up in another way than the one that tests it daily.

CI runs it on its machine and in a bare Debian 13 each time, with version 2 of cgroups only, another
umask or time zone by turns; these take turns at night.
"""

from __future__ import annotations

import pytest

from kit.probe import can_mount, is_root, need, need_programs
from kit.world import World

_TEST = "make test"
# A number with a comma, and messages of programs in another language.
_GERMAN = (
    "apt-get update -qq && apt-get install -qqy locales"
    " && localedef -i de_DE -f UTF-8 de_DE.UTF-8 && LC_ALL=de_DE.UTF-8 make test"
)


@pytest.mark.nightly
@pytest.mark.minutes(10)
@pytest.mark.parametrize(
    ("world", "command"),
    [
        pytest.param(world, command, marks=pytest.mark.xdist_group(f"world {world}"), id=world)
        for world, command in (
            ("debian:testing", _TEST),
            ("debian:13,TZ=X-5:45", _GERMAN),
            # Its /run is a tmpfs.
            ("debian:12,HOME=/run/home,CARGO_HOME=/root/.cargo", f"mkdir /run/home && {_TEST}"),
        )
    ],
)
def test_what_no_change_may_break_holds_in_it(world: str, command: str) -> None:
    need(is_root() and can_mount(), "root, and mounts", "run it as root")
    need_programs("debootstrap", "git")
    with World.parse(world) as there:
        assert there.run(["sh", "-c", command]) == 0
