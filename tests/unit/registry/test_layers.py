"""Layers as streams: what is read is what was packed, whatever the threads do."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import ProvisionError
from provision.registry import find as layers
from provision.registry.find import layer_content

CONTENTS = st.lists(st.binary(max_size=3000), max_size=6)
SIZES = st.lists(st.integers(1, 5000), min_size=1, max_size=5)


@pytest.mark.parametrize("is_gzip", [True, False])
@given(parts=CONTENTS, sizes=SIZES, chunk=st.integers(1, 4000), zeros=st.integers(0, 1000))
def test_what_is_read_is_what_was_packed(
    *, is_gzip: bool, parts: list[bytes], sizes: list[int], chunk: int, zeros: int
) -> None:
    """Members of gzip one after the other, as some programs write them, are one stream."""
    whole = b"".join(parts)
    is_gzip = is_gzip and bool(parts)
    padded = b"".join(gzip.compress(part) + bytes(zeros) for part in parts)
    read = b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "_CHUNK", chunk)
        with layer_content(io.BytesIO(padded if is_gzip else whole), is_gzip=is_gzip) as content:
            for size in itertools.cycle(sizes):
                data = content.read(size)
                assert len(data) <= size
                read += data
                if not data:
                    break
    assert read == whole


def _packed(size: int) -> bytes:
    return gzip.compress(hashlib.shake_256(b"layer").digest(size))


@pytest.mark.parametrize(
    "stored",
    [
        _packed(3 << 20)[:-20],
        _packed(3 << 20)[:1000],
        _packed(3 << 20)[:-8] + bytes(8),
        _packed(1000) + b"something else",
        _packed(1000) + _packed(1000)[:-1],
        b"no gzip at all",
    ],
    ids=[
        "cut off",
        "early",
        "another checksum",
        "more behind it",
        "cut off behind it",
        "nothing of it",
    ],
)
def test_what_can_not_be_decompressed_is_said_by_the_reader(stored: bytes) -> None:
    before = threading.active_count()
    with (
        pytest.raises(ProvisionError),
        layer_content(io.BytesIO(stored), is_gzip=True),
    ):
        pass
    assert threading.active_count() == before


def test_a_layer_that_unpacks_to_too_much_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "LARGEST_CONTENT", 1 << 20)
    stored = io.BytesIO(gzip.compress(bytes(64 << 20)) * 16)
    with (
        pytest.raises(ProvisionError),
        layer_content(stored, is_gzip=True),
    ):
        pass
    assert stored.tell() < len(stored.getvalue()) / 2


def test_a_reader_that_stops_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    stored = io.BytesIO(_packed(8 << 20))

    def stop() -> None:
        with layer_content(stored, is_gzip=True) as content:
            assert content.read(100)
            raise EOFError

    with pytest.raises(EOFError):
        stop()
    assert threading.active_count() == before
    assert stored.tell() < 4 << 20
