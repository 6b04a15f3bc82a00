"""Checksums that vendors publish, kept as they were first seen."""

import json
from pathlib import Path

import pytest

from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.fetch.known_sums import ChangedSumError, known_sum
from provision.progress import Note

URL = "https://driver.example/1.0/driver-1.0.run"
SUMS = f"{URL}.sha256sum"
ONE, OTHER = "a" * 64, "b" * 64


class Vendor:
    """Says one sum of every file."""

    def __init__(self, says: str) -> None:
        self.says: str | Exception = says
        self.asked: list[tuple[str, str]] = []

    def ask(self, url: str, sums: str) -> str:
        self.asked.append((url, sums))
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


class Record:
    """What is kept in a folder."""

    def __init__(self, folder: Path, vendor: Vendor) -> None:
        self.file = folder / ".known-sums.json"
        self.folder, self.vendor = folder, vendor
        self.said: list[object] = []

    def sum_of(self, url: str = URL, *, again: bool = False) -> str:
        return known_sum(
            url,
            SUMS,
            ask=self.vendor.ask,
            state=self.folder,
            again=again,
            progress=self.said.append,
        )

    def entry(self) -> dict[str, str]:
        entry: dict[str, str] = json.loads(self.file.read_text())["sums"][URL]
        return entry


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path, Vendor(ONE))


def test_what_was_first_said_counts_without_asking_again(record: Record) -> None:
    assert record.sum_of() == ONE
    record.vendor.says = OTHER
    assert record.sum_of() == ONE
    assert record.vendor.asked == [(URL, SUMS)]
    assert (record.entry()["sha256"], record.entry()["said_by"]) == (ONE, SUMS)


def test_another_answer_later_is_an_error_that_says_who_said_what_and_when(record: Record) -> None:
    record.sum_of()
    first, before = record.entry()["first"], record.file.read_bytes()
    assert record.sum_of(again=True) == ONE
    record.vendor.says = OTHER
    with pytest.raises(ChangedSumError) as caught:
        record.sum_of(again=True)
    old, new = str(caught.value.details).splitlines()
    assert old == f"{first}: {SUMS} said {ONE}"
    assert new.endswith(f"{SUMS} says {OTHER}")
    assert "driver.toml" in str(caught.value.resolution)
    assert record.file.read_bytes() == before


@pytest.mark.parametrize("error", [UnreachableError("no network"), NotFoundError("gone")])
def test_where_the_vendor_is_silent_what_is_known_counts(
    error: ProvisionError, record: Record
) -> None:
    record.sum_of()
    record.vendor.says = error
    record.said.clear()
    assert record.sum_of(again=True) == ONE
    assert isinstance(record.said[0], Note)
    with pytest.raises(type(error)):
        record.sum_of(f"{URL}x")


def test_what_is_no_sum_is_not_kept(record: Record) -> None:
    record.vendor.says = ProvisionError("it holds no sha256")
    with pytest.raises(ProvisionError, match="no sha256"):
        record.sum_of()
    assert not record.file.exists()


def test_a_damaged_record_is_not_overwritten(record: Record) -> None:
    record.file.write_text("{")
    with pytest.raises(ProvisionError, match="is damaged") as caught:
        record.sum_of()
    assert f"mv {record.file}" in str(caught.value.resolution)
    assert record.vendor.asked == []
