"""Debian's order of versions, and the Depends field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debian import debian_support
from provision.distros.archive import (
    compare_versions,
    parse_depends,
    upstream_version,
    version_key,
)
from provision.errors import ProvisionError

NAME = st.from_regex(r"[a-z0-9][a-z0-9+.-]{1,12}", fullmatch=True)
VERSION = st.from_regex(r"([0-9]:)?[0-9][A-Za-z0-9.+~]{0,8}(-[0-9a-z.]{1,4})?", fullmatch=True)
CONDITION = st.builds("({} {})".format, st.sampled_from(["<<", "<=", "=", ">=", ">>"]), VERSION)
GROUP = st.lists(st.tuples(NAME, st.none() | CONDITION), min_size=1, max_size=3).map(tuple)


@given(st.lists(GROUP, max_size=5).map(tuple))
def test_the_names_of_what_is_written_are_read(
    groups: tuple[tuple[tuple[str, str | None], ...], ...],
) -> None:
    text = ", ".join(" | ".join(" ".join(filter(None, part)) for part in group) for group in groups)
    assert parse_depends(text) == tuple(tuple(name for name, _ in group) for group in groups)


def test_what_is_no_relation_is_an_error() -> None:
    with pytest.raises(ProvisionError):
        parse_depends("gcc-12, what is this (")


_VERSION = st.from_regex(r"([0-9]:)?[0-9][A-Za-z0-9.+~]{0,6}(-[0-9a-z.~]{1,4})?", fullmatch=True)


@given(_VERSION, _VERSION)
def test_the_order_is_that_of_dpkg(one: str, other: str) -> None:
    assert compare_versions(one, other) == debian_support.version_compare(one, other)


@given(st.text(max_size=8), st.text(max_size=8))
def test_any_text_of_a_vendor_has_a_place(one: str, other: str) -> None:
    assert compare_versions(one, other) == -compare_versions(other, one)


def test_a_vendors_version_is_between_its_neighbours() -> None:
    versions = ["7.1.0", "7.0.22_OSE", "7.0.20_OSE", "7.0.20"]
    assert sorted(versions, key=version_key) == versions[::-1]


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("535.261.03-1", "535.261.03"),
        ("535.309.01-0+deb12u1", "535.309.01"),
        ("2:1.0-rc-3", "1.0-rc"),
        ("6.1", "6.1"),
        ("7.0.20_OSE", "7.0.20_OSE"),
    ],
)
def test_the_upstream_part_has_no_epoch_and_no_revision(version: str, upstream: str) -> None:
    assert upstream_version(version) == upstream
