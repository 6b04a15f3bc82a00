"""Which versions a request accepts, for archives, registries and the store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.build.request import VersionRequest, is_of

THERE = ("595.84", "580.95.05", "580.9", "535.261.03", "53.1")


@pytest.mark.parametrize(
    ("request_", "accepted"),
    [
        (VersionRequest(), THERE),
        (VersionRequest(prefer="580.9"), THERE),
        (VersionRequest("580"), ("580.95.05", "580.9")),
        (VersionRequest("580.9"), ("580.9",)),
        (VersionRequest("53"), ("53.1",)),
        (VersionRequest("lts", ("535", "580")), ("535.261.03", "580.95.05", "580.9")),
        (VersionRequest("lts", ()), ()),
        (VersionRequest("lts"), ()),
    ],
)
def test_the_order_is_that_of_the_branches(
    request_: VersionRequest, accepted: tuple[str, ...]
) -> None:
    assert tuple(request_.accepted(THERE)) == accepted
    assert {version for version in THERE if request_.accepts(version)} == set(accepted)


def test_a_kind_of_branch_is_no_version() -> None:
    assert VersionRequest("535.261.03").exact == "535.261.03"
    assert VersionRequest("lts", ("535",)).exact is None
    assert VersionRequest().exact is None


PARTS = st.lists(st.integers(0, 999).map(str), min_size=1, max_size=4)


@given(PARTS, PARTS)
def test_a_branch_is_whole_parts_of_a_version(version: list[str], branch: list[str]) -> None:
    assert is_of(".".join(version), ".".join(branch)) == (version[: len(branch)] == branch)
