"""Debian's order of versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.distros.debian import compare_versions, upstream_version, version_key

VERSION = st.from_regex(r"([0-9]:)?[0-9][A-Za-z0-9.+~]{0,6}(-[0-9a-z.~]{1,4})?", fullmatch=True)


@given(VERSION, VERSION)
def test_keys_and_comparison_agree(one: str, other: str) -> None:
    assert (compare_versions(one, other) < 0) == (version_key(one) < version_key(other))
    assert compare_versions(one, other) == -compare_versions(other, one)


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("535.261.03-1", "535.261.03"),
        ("535.309.01-0+deb12u1", "535.309.01"),
        ("2:1.0-rc-3", "1.0-rc"),
        ("6.1", "6.1"),
    ],
)
def test_the_upstream_part_has_no_epoch_and_no_revision(version: str, upstream: str) -> None:
    assert upstream_version(version) == upstream


def test_what_is_no_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="Invalid version"):
        version_key("not a version")
