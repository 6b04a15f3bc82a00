"""Which kernels tests take when the archive has dropped those that they name."""

from __future__ import annotations

import pytest

from kit.kernels import choose

_PINNED = ("6.1.0-47-amd64", "6.1.0-56-amd64")


@pytest.mark.parametrize(
    ("packaged", "chosen"),
    [
        (["6.1.0-47-amd64", "6.1.0-50-amd64", "6.1.0-56-amd64"], list(_PINNED)),
        (["6.1.0-50-amd64", "6.1.0-56-amd64"], ["6.1.0-50-amd64", "6.1.0-56-amd64"]),
        (["6.1.0-47-amd64", "6.1.0-55-amd64"], ["6.1.0-47-amd64", "6.1.0-55-amd64"]),
        # Neither is there, and the same one is the nearest of both.
        (["6.1.0-57-amd64", "6.1.0-58-amd64"], ["6.1.0-57-amd64", "6.1.0-58-amd64"]),
        # Of two that are equally near, the newer.
        (["6.1.0-45-amd64", "6.1.0-49-amd64", _PINNED[1]], ["6.1.0-49-amd64", _PINNED[1]]),
        # Another upstream version, and another flavour, are no kernels of the kind.
        (
            ["6.12.47+deb12-amd64", "6.1.0-47-cloud-amd64", "6.1.0-40-amd64", _PINNED[1]],
            ["6.1.0-40-amd64", _PINNED[1]],
        ),
    ],
)
def test_the_nearest_takes_the_place_of_a_dropped_one(
    packaged: list[str], chosen: list[str]
) -> None:
    assert choose(_PINNED, packaged) == chosen


def test_with_one_kernel_left_there_are_not_two() -> None:
    with pytest.raises(LookupError, match=r"no kernel like 6\.1\.0-56-amd64"):
        choose(_PINNED, ["6.1.0-47-amd64"])
