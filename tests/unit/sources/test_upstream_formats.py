"""Vendors' formats, as they are published, damaged, and made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import ProvisionError
from provision.sources import upstream

_WITHIN_S = 2.0

DATA = Path(__file__).parents[2] / "data/releases"
URL = "https://vendor.example/file"


def data(name: str) -> bytes:
    return (DATA / name).read_bytes()


def versions(releases: tuple[upstream.Release, ...]) -> list[str]:
    return [release.version for release in releases]


def nvidia(content: bytes, machine: str = "x86_64") -> tuple[upstream.Release, ...]:
    return upstream.nvidia_releases(content, url=URL, machine=machine)


def test_releases_json_has_branches_with_what_they_are() -> None:
    found = {release.version: release for release in nvidia(data("releases.json"))}
    assert list(found) == ["535.261.03", "535.54.03", "580.178.04", "595.91.07", "610.57.04"]
    lts = found["535.261.03"]
    assert (lts.branch, lts.maturity, lts.released) == ("535", "lts", "2025-07-17")
    assert lts.url is not None
    assert lts.url.endswith("/NVIDIA-Linux-x86_64-535.261.03.run")
    assert found["535.54.03"].released is None
    assert found["595.91.07"].maturity == "production"
    assert found["610.57.04"].maturity == "new-feature"


def test_versions_for_other_architectures_are_left_out() -> None:
    assert "535.54.03" not in versions(nvidia(data("releases.json"), "aarch64"))
    renamed = data("releases.json").replace(b'"aarch64"]', b'"sbsa"]')
    assert "595.91.07" in versions(nvidia(renamed, "aarch64"))
    assert nvidia(renamed, "riscv64") == ()


def test_unknown_members_and_kinds_of_branches_are_accepted() -> None:
    document = json.loads(data("releases.json"))
    document["580"] |= {"type": "Some new branch", "end": {"of": "life"}}
    document["580"]["driver_info"][0]["sha512"] = "0"
    found = {release.version: release for release in nvidia(json.dumps(document).encode())}
    assert found["580.178.04"].maturity is None


READERS: dict[str, Callable[[bytes], object]] = {
    "releases.json": nvidia,
    "tags": lambda content: upstream.git_tags(
        content.decode("utf-8", "replace"), url=URL, pattern="(.*)"
    ),
}
_PAGE = b"\n <!DOCTYPE html><html><body>Moved</body></html>"


@pytest.mark.parametrize(
    ("reader", "content"),
    [
        ("releases.json", _PAGE),
        ("releases.json", _PAGE.lower()),
    ],
)
def test_what_is_in_another_format_is_refused_by_its_address(reader: str, content: bytes) -> None:
    with pytest.raises(ProvisionError) as refused:
        READERS[reader](content)
    assert URL in f"{refused.value.message} {refused.value.resolution}"


_DRIVER = ("535", "driver_info", 1, "release_version")


@pytest.mark.parametrize(
    ("reader", "members"),
    [
        ("releases.json", {_DRIVER: None}),
        ("releases.json", {_DRIVER: 535}),
        ("releases.json", {_DRIVER: "../535"}),
        ("releases.json", {("580", "driver_info"): {}}),
        ("releases.json", {("580", "driver_info", 0, "release_date"): "Aug 18"}),
        # All are named together.
        ("releases.json", {_DRIVER: None, ("580", "driver_info"): {}}),
    ],
)
def test_a_changed_format_is_named_by_address_and_member(
    reader: str, members: dict[tuple[str | int, ...], object]
) -> None:
    document = json.loads(data(reader))
    for keys, value in members.items():
        table = document
        for key in keys[:-1]:
            table = table[key]
        if value is None:
            del table[keys[-1]]
        else:
            table[keys[-1]] = value
    with pytest.raises(ProvisionError) as refused:
        READERS[reader](json.dumps(document).encode())
    assert URL in refused.value.message
    named = [line.partition(": ")[0] for line in str(refused.value.details).splitlines()]
    assert named == [".".join(map(str, keys)) for keys in members]


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_answer_is_more_than_refused(content: bytes) -> None:
    for read in READERS.values():
        try:
            read(content)
        except ProvisionError as error:
            assert URL in error.message  # noqa: PT017 - that it may be raised is what is tested


_NAMES = st.sampled_from(["535", "type", "driver_info", "release_version", "nvidia_driver"])
_JSON: st.SearchStrategy[object] = st.deferred(
    lambda: (
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=10)
        | st.lists(_JSON, max_size=3)
        | st.dictionaries(_NAMES | st.text(max_size=5), _JSON, max_size=4)
    )
)


@given(_JSON)
def test_no_json_is_more_than_refused(document: object) -> None:
    content = json.dumps(document).encode()
    try:
        nvidia(content)
    except ProvisionError as error:
        assert URL in error.message  # noqa: PT017 - as above


def test_tags_are_versions_where_the_pattern_says_so() -> None:
    text = "".join(
        f"{digit * 40}\trefs/tags/{name}\n"
        for digit, name in [
            ("1", "v9.0.1"),
            ("2", "v9.0.2"),
            ("3", "v9.0.2^{}"),
            ("4", "v9.0.2-rc1"),
            ("5", "nightly"),
        ]
    )
    found = upstream.git_tags(text, url=URL, pattern="v([0-9.]+)")
    # An annotated tag is about the commit of its second line.
    assert [(r.version, r.commit) for r in found] == [("9.0.1", "1" * 40), ("9.0.2", "3" * 40)]


def test_an_answer_has_a_bounded_number_of_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "_MOST", 4)
    with pytest.raises(ProvisionError):
        nvidia(data("releases.json"))
