"""A world is described by few words, and words that describe none are refused."""

from __future__ import annotations

import pytest

from kit.world import World


@pytest.mark.parametrize(
    ("text", "world"),
    [
        ("debian:13", World("debian:13")),
        ("debian:12,cgroup2", World("debian:12", only_cgroup2=True)),
        (
            "debian:13,umask=077,TZ=X-5:45,cgroup2",
            World("debian:13", only_cgroup2=True, umask="077", environment={"TZ": "X-5:45"}),
        ),
    ],
)
def test_words_describe_a_world(text: str, world: World) -> None:
    assert World.parse(text) == world


@pytest.mark.parametrize("text", ["", "debian:11", "debian:13,", "debian:13,cgroup3", "cgroup2"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="there is no"):
        World.parse(text)
