"""Checksums that vendors publish."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.fileserver import served
from provision.errors import (
    NotFoundError,
    ProvisionError,
    UnreachableError,
    UsageError,
    WrongContentError,
)
from provision.sources.vendor_sums import SumRecord, parse_sums, published_sum

DATA = Path(__file__).parents[2] / "data/releases"
NAME = "NVIDIA-Linux-x86_64-580.159.03.run"
SUM = "32c85d99b0f640c9501f61b39ddad208fd0288d015c4fbc5fd0435c07783fa77"


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and its address."""
    with served(tmp_path) as url:
        yield tmp_path, url


@pytest.mark.parametrize(
    "text",
    [
        f"{SUM}  {NAME}\n",
        f"{SUM} *{NAME}\n",
        f"{SUM.upper()}  ./{NAME}\n",
        f"{SUM}\n",
        f"SHA256 ({NAME}) = {SUM}\n",
        f"-----BEGIN PGP SIGNED MESSAGE-----\n\n{'0' * 64}  other.run\n{SUM}  {NAME}\n",
    ],
)
def test_the_sum_of_a_file_is_read(vendor: tuple[Path, str], text: str) -> None:
    folder, url = vendor
    (folder / f"{NAME}.sha256sum").write_text(text)
    assert published_sum(f"{url}/{NAME}", f"{url}/{NAME}.sha256sum") == SUM


@pytest.mark.parametrize(
    ("text", "error"),
    [
        # None is there, or it is of another file.
        (None, NotFoundError),
        (f"{SUM}\n", NotFoundError),
        # Two of one file, and none at all.
        (f"{SUM}  {NAME}\n{'0' * 64}  {NAME}\n", ProvisionError),
        ("", ProvisionError),
        ("<html>Not here</html>", ProvisionError),
        ("0123  short", ProvisionError),
    ],
)
def test_a_file_without_one_published_sum_is_refused(
    vendor: tuple[Path, str], text: str | None, error: type[ProvisionError]
) -> None:
    folder, url = vendor
    if text is not None:
        (folder / "sums").write_text(text)
    with pytest.raises(error):
        published_sum(f"{url}/{NAME}", f"{url}/sums")


def test_plain_http_vouches_for_nothing() -> None:
    with pytest.raises(UsageError):
        published_sum("https://vendor.example/a", "http://vendor.example/a.sha256")


_words = st.sampled_from([SUM, SUM[1:], "SHA256 (a/b) = ", " ", "  *", "a", "/", "\n"])


@given(st.text(max_size=200) | st.lists(_words, max_size=9).map("".join))
def test_any_text_is_read(text: str) -> None:
    for name, sums in parse_sums(text).items():
        assert "/" not in name
        assert all(len(digest) == 64 for digest in sums)


FILE = "https://driver.example/1.0/driver-1.0.run"
SUMS = f"{FILE}.sha256sum"
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

    def sum_of(self, url: str = FILE, *, again: bool = False) -> str:
        record = SumRecord(self.folder, again, self.vendor.ask)
        return record.sum_of(url, SUMS)

    def entry(self) -> dict[str, str]:
        entry: dict[str, str] = json.loads(self.file.read_text())["sums"][FILE]
        return entry


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path, Vendor(ONE))


def test_what_was_first_said_counts_without_asking_again(record: Record) -> None:
    assert record.sum_of() == ONE
    record.vendor.says = OTHER
    assert record.sum_of() == ONE
    assert record.vendor.asked == [(FILE, SUMS)]
    assert (record.entry()["sha256"], record.entry()["said_by"]) == (ONE, SUMS)


def test_another_answer_later_is_an_error_that_says_who_said_what_and_when(record: Record) -> None:
    record.sum_of()
    first, before = record.entry()["first"], record.file.read_bytes()
    assert record.sum_of(again=True) == ONE
    record.vendor.says = OTHER
    with pytest.raises(WrongContentError) as caught:
        record.sum_of(again=True)
    old, new = str(caught.value.details).splitlines()
    assert old == f"{first}: {SUMS} said {ONE}"
    assert new.endswith(f"{SUMS} says {OTHER}")
    assert record.file.read_bytes() == before


@pytest.mark.parametrize("error", [UnreachableError("no network"), NotFoundError("gone")])
def test_where_the_vendor_is_silent_what_is_known_counts(
    error: ProvisionError, record: Record, notes: list[str]
) -> None:
    record.sum_of()
    record.vendor.says = error
    assert record.sum_of(again=True) == ONE
    assert notes
    with pytest.raises(type(error)):
        record.sum_of(f"{FILE}x")


def test_what_is_no_sum_is_not_kept(record: Record) -> None:
    record.vendor.says = ProvisionError("it holds no sha256")
    with pytest.raises(ProvisionError):
        record.sum_of()
    assert not record.file.exists()


def test_a_damaged_record_is_not_overwritten(record: Record) -> None:
    record.file.write_text("{")
    with pytest.raises(ProvisionError) as caught:
        record.sum_of()
    assert f"mv {record.file}" in str(caught.value.resolution)
    assert record.vendor.asked == []
