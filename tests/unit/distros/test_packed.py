"""Packed indexes: damaged, lying and hostile ones."""

from __future__ import annotations

import gzip
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provision.distros.debian import release_file as packed
from provision.distros.debian.release_file import IndexFile, read_packed
from provision.errors import ProvisionError

TEXT = b"Package: tool\n" * 1000
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    "": bytes,
}


def index(suffix: str, unpacked: int | None = len(TEXT)) -> IndexFile:
    return IndexFile(f"main/binary-amd64/Packages{suffix}", "0" * 64, 1, unpacked)


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("said", [len(TEXT), None])
def test_a_whole_one_is_read(suffix: str, said: int | None, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(PACKERS[suffix](TEXT))
    assert read_packed(tmp_path / "f", index(suffix, said)) == TEXT


@pytest.mark.parametrize("suffix", PACKERS)
def test_more_than_it_says_is_refused(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(PACKERS[suffix](TEXT))
    with pytest.raises(ProvisionError, match=f"larger than {len(TEXT) - 1} bytes"):
        read_packed(tmp_path / "f", index(suffix, len(TEXT) - 1))


@pytest.mark.parametrize("suffix", [".xz", ".gz"])
def test_no_more_is_unpacked_than_it_says(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(PACKERS[suffix](bytes(32 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(ProvisionError, match="larger than 1000 bytes"):
            read_packed(tmp_path / "f", index(suffix, 1000))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("suffix", PACKERS)
def test_one_that_does_not_say_has_a_limit_all_the_same(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "MAX_TEXT", 100)
    (tmp_path / "f").write_bytes(PACKERS[suffix](TEXT))
    for said in (None, len(TEXT)):
        with pytest.raises(ProvisionError, match="larger than 100 bytes"):
            read_packed(tmp_path / "f", index(suffix, said))


@pytest.mark.parametrize("suffix", [".xz", ".gz"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-5],
        lambda data: data[:30] + b"\xff" * 8 + data[38:],
        lambda data: b"<html>" + data,
        lambda _data: b"<html>",
    ],
)
def test_a_damaged_one_is_an_error_of_its_own(suffix: str, damage: object, tmp_path: Path) -> None:
    assert callable(damage)
    (tmp_path / "f").write_bytes(damage(PACKERS[suffix](TEXT)))
    with pytest.raises(ProvisionError, match=rf"Packages\{suffix}' can't be unpacked"):
        read_packed(tmp_path / "f", index(suffix))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), suffix=st.sampled_from(sorted(PACKERS)), keep=st.booleans())
def test_any_bytes_are_read_or_refused(
    tmp_path: Path, data: bytes, suffix: str, *, keep: bool
) -> None:
    whole = PACKERS[suffix](TEXT)
    (tmp_path / "f").write_bytes(whole[: len(data)] + data + whole[len(data) :] if keep else data)
    try:
        read_packed(tmp_path / "f", index(suffix))
    except ProvisionError:
        return


@pytest.mark.parametrize("suffix", [".xz", ".gz"])
def test_one_that_is_made_of_several_is_read_as_a_whole(suffix: str, tmp_path: Path) -> None:
    half = len(TEXT) // 2
    pack = PACKERS[suffix]
    (tmp_path / "f").write_bytes(pack(TEXT[:half]) + bytes(8) + pack(TEXT[half:]) + bytes(4))
    assert read_packed(tmp_path / "f", index(suffix)) == TEXT


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_large_one_comes_in_pieces(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_CHUNK", 100)
    (tmp_path / "f").write_bytes(PACKERS[suffix](TEXT))
    chunks = list(packed.read_chunks(tmp_path / "f", index(suffix)))
    assert max(map(len, chunks)) == 100
    assert b"".join(chunks) == TEXT
