"""What branches are, how long they live, and which one a wish is."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from provision.catalogue.fields import Upstream
from provision.documents import parse_json
from provision.errors import ConfigError
from provision.sources.upstream import (
    Answer,
    Branches,
    Release,
    UpstreamResult,
    known_branches,
    nvidia_releases,
)

DATA = Path(__file__).parents[2] / "data/releases"
TODAY = date(2026, 11, 22)
NVIDIA: dict[str, Any] = {
    "sources": [{"kind": "git-tags", "url": "https://vendor.example/driver.git"}],
    "branches": {
        "535": {"maturity": "lts", "end_of_life": "2026-06"},
        "580": {"maturity": "production", "end_of_life": "2028-06-15"},
        "595": {"maturity": "production", "end_of_life": "2027-03"},
        "610": {"maturity": "new-feature", "end_of_life": "2026-08"},
    },
}


def upstream(**changes: object) -> Upstream:
    return parse_json(json.dumps({**NVIDIA, **changes}), Upstream, name="driver.toml")


def branches(*releases: Release, **changes: object) -> Branches:
    recipe = upstream(**changes)
    answer = Answer(url="https://vendor.example", read=0, releases=releases)
    return known_branches(recipe, [UpstreamResult(recipe.sources[0], answer.url, answer)])


def vendors() -> Branches:
    """What NVIDIA's list and the recipe say together."""
    content = (DATA / "releases.json").read_bytes()
    return branches(*nvidia_releases(content, url="https://x", machine="x86_64"))


def test_a_vendor_counts_more_than_the_recipe_and_dates_are_the_recipes() -> None:
    branch = vendors().of("580.1")
    assert (branch.maturity, branch.newest, branch.released) == ("lts", "580.178.04", "2026-08-18")
    assert branch.last_day == date(2028, 6, 15)
    assert branches().of("580.1").maturity == "production"


def test_branches_stand_newest_first_by_number() -> None:
    found = branches(Release(version="1000.1"), Release(version="99.1"))
    assert [b.name for b in found.all] == ["1000", "610", "595", "580", "535", "99"]


@pytest.mark.parametrize(
    ("wish", "names"),
    [
        # What is past its end comes last: it is better than nothing.
        ("lts", ("580", "535")),
        ("production", ("595", "580", "535")),
        ("new-feature", ("595", "580", "610", "535")),
        ("latest", None),
        ("580", None),
    ],
)
def test_a_wish_is_the_branches_of_its_kind(wish: str, names: tuple[str, ...] | None) -> None:
    assert vendors().followed(wish, TODAY) == names


def test_the_default_is_the_newest_where_branches_have_no_kinds() -> None:
    known = branches(Release(version="0.12.7"), branch_parts=2, branches={"0.12": {}})
    assert known.followed("production", TODAY) is None
    assert known.followed("lts", TODAY) == ()


def test_a_branch_lives_through_its_last_day() -> None:
    branch = vendors().of("535.261.03")
    assert branch.last_day == date(2026, 6, 30)
    assert not branch.has_ended(date(2026, 6, 30))
    assert branch.has_ended(date(2026, 7, 1))
    assert not vendors().of("470.1").has_ended(TODAY)


@pytest.mark.parametrize(
    ("version", "today", "name"),
    [
        ("535.1", TODAY, "580"),
        ("610.1", TODAY, None),
        ("595.1", TODAY, None),
        # None of the same kind is newer; what is fit for production will do.
        ("550.1", TODAY, "595"),
        ("535.1", date(2030, 1, 1), None),
    ],
)
def test_the_successor_lives_and_is_newer_and_of_the_same_kind(
    version: str, today: date, name: str | None
) -> None:
    known = vendors()
    found = known.successor(known.of(version), today)
    assert (found.name if found else None) == name


def test_branches_may_have_more_parts() -> None:
    found = branches(Release(version="0.12.7"), branch_parts=2, branches={"0.12": {}})
    assert found.of("0.12.7").name == "0.12"
    assert found.of("0.12").name == "0.12"
    assert found.of("0.15.1").name == "0.15"


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"branches": {"535": {"end_of_life": "2026-13"}}}, "branches.535.end_of_life"),
        ({"branches": {"535": {"end_of_life": "June"}}}, "branches.535.end_of_life"),
        ({"branches": {"r535": {}}}, "branches.r535"),
        ({"sources": [{"kind": "rss", "url": "https://x"}]}, "sources.0"),
        ({"sources": [{"kind": "git-tags", "url": "https://x/{distro}"}]}, "{distro}"),
        ({"sources": [{"kind": "git-tags", "url": "https://x", "pattern": "("}]}, "pattern"),
        ({"sources": [{"kind": "git-tags", "url": "https://x", "pattern": "v"}]}, "one group"),
        ({"sources": [{"kind": "git-tags", "url": "file:///etc/passwd"}]}, "url"),
    ],
)
def test_mistakes_of_a_recipe_are_named(change: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as refused:
        upstream(**change)
    assert place in (refused.value.details or "")


def test_addresses_hold_the_architecture_as_the_vendor_calls_it() -> None:
    source = {"kind": "git-tags", "url": "https://x/{arch}/y", "arch": {"aarch64": "sbsa"}}
    (found,) = upstream(sources=[source]).sources
    assert found.address("x86_64") == "https://x/x86_64/y"
    assert found.address("aarch64") == "https://x/sbsa/y"
