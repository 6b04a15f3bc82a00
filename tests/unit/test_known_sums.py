"""Checksums that vendors publish, kept as they were first seen."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError, known_sums
from provision.fetch.known_sums import ChangedSumError, parse_sums, published_sum
from provision.progress import Note

URL = "https://driver.example/1.0/driver-1.0.run"
SUMS = f"{URL}.sha256sum"
ONE, OTHER = "a" * 64, "b" * 64


class Vendor:
    """A server with one list of sums."""

    def __init__(self, text: str) -> None:
        self.text: str | Exception = text
        self.asked: list[str] = []

    def get(self, url: str, *, limit: int) -> bytes:
        assert limit <= 1 << 20
        self.asked.append(url)
        if isinstance(self.text, Exception):
            raise self.text
        return self.text.encode()


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Vendor:
    made = Vendor(f"{ONE}  driver-1.0.run\n")
    monkeypatch.setattr(known_sums, "get_small", made.get)
    return made


def test_what_was_first_said_counts_without_asking_again(vendor: Vendor, tmp_path: Path) -> None:
    assert published_sum(URL, SUMS, state=tmp_path) == ONE
    vendor.text = f"{OTHER}  driver-1.0.run\n"
    assert published_sum(URL, SUMS, state=tmp_path) == ONE
    assert vendor.asked == [SUMS]
    record = json.loads((tmp_path / ".known-sums.json").read_text())
    assert record["sums"][URL]["sha256"] == ONE
    assert record["sums"][URL]["said_by"] == SUMS


def test_another_answer_later_is_an_error_that_says_who_said_what_and_when(
    vendor: Vendor, tmp_path: Path
) -> None:
    published_sum(URL, SUMS, state=tmp_path)
    first = json.loads((tmp_path / ".known-sums.json").read_text())["sums"][URL]["first"]
    before = (tmp_path / ".known-sums.json").read_bytes()
    assert published_sum(URL, SUMS, state=tmp_path, again=True) == ONE
    vendor.text = f"{OTHER}  driver-1.0.run\n"
    with pytest.raises(ChangedSumError) as caught:
        published_sum(URL, SUMS, state=tmp_path, again=True)
    old, new = str(caught.value.details).splitlines()
    assert old == f"{first}: {SUMS} said {ONE}"
    assert new.endswith(f"{SUMS} says {OTHER}")
    assert "driver.toml" in str(caught.value.resolution)
    assert (tmp_path / ".known-sums.json").read_bytes() == before


@pytest.mark.parametrize("error", [UnreachableError("no network"), NotFoundError("gone")])
def test_where_the_vendor_is_silent_what_is_known_counts(
    error: ProvisionError, vendor: Vendor, tmp_path: Path
) -> None:
    published_sum(URL, SUMS, state=tmp_path)
    vendor.text = error
    said: list[object] = []
    assert published_sum(URL, SUMS, state=tmp_path, again=True, progress=said.append) == ONE
    assert isinstance(said[0], Note)
    with pytest.raises(type(error)):
        published_sum(f"{URL}x", SUMS, state=tmp_path)


def test_a_version_without_a_published_sum_is_told_what_to_write(
    vendor: Vendor, tmp_path: Path
) -> None:
    vendor.text = NotFoundError("404")
    with pytest.raises(NotFoundError, match="publishes no checksum of") as caught:
        published_sum(URL, SUMS, state=tmp_path)
    assert "'sha256'" in str(caught.value.resolution)
    assert caught.value.details == "404"


@pytest.mark.parametrize("text", ["<html>Sign in</html>", "", f"{ONE}  another.run\n", "x  y"])
def test_what_is_no_list_with_the_file_is_refused(
    text: str, vendor: Vendor, tmp_path: Path
) -> None:
    vendor.text = text
    with pytest.raises(ProvisionError, match="has no sha256 of 'driver"):
        published_sum(URL, SUMS, state=tmp_path)
    assert not (tmp_path / ".known-sums.json").exists()


def test_a_damaged_record_is_not_overwritten(vendor: Vendor, tmp_path: Path) -> None:
    (tmp_path / ".known-sums.json").write_text("{")
    with pytest.raises(ProvisionError, match="is damaged") as caught:
        published_sum(URL, SUMS, state=tmp_path)
    assert f"mv {tmp_path / '.known-sums.json'}" in str(caught.value.resolution)
    assert vendor.asked == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{ONE}  driver.run\n", ONE),
        (f"{OTHER}  other.run\n{ONE.upper()} *./x/driver.run\n", ONE),
        (f"{ONE}\n", ONE),
        (f"{ONE}\n{OTHER}\n", None),
        (f"{ONE[:-1]}  driver.run\n", None),
    ],
)
def test_a_sum_is_found_by_the_files_name(text: str, found: str | None) -> None:
    assert parse_sums(text, "driver.run") == found


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert parse_sums(text, "driver.run") is None or ONE[:0] in text
