"""What an ELF file is called and asks for."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.elf import Elf, read_elf
from unit.hostpython.elf_files import elf_file
from unit.sources.libraries import library


def _read(data: bytes) -> Elf | None:
    return read_elf(io.BytesIO(data))


def test_a_program_asks_for_a_loader_libraries_and_folders() -> None:
    data = elf_file("libc.so.6", "libm.so.6", loader="/opt/x/lib/ld.so", rpath="/opt/x/lib")
    assert _read(data) == Elf(
        64, loader="/opt/x/lib/ld.so", needed=("libc.so.6", "libm.so.6"), rpath="/opt/x/lib"
    )


def test_a_library_may_ask_for_nothing() -> None:
    assert _read(elf_file(runpath="$ORIGIN")) == Elf(64, runpath="$ORIGIN")


@pytest.mark.parametrize("bits", [32, 64])
def test_a_library_has_a_name(bits: int) -> None:
    assert _read(library("libx.so.1", bits=bits)) == Elf(bits, soname="libx.so.1")
    assert _read(library(None, bits=bits)) == Elf(bits)


def test_a_file_that_ends_early_is_damaged() -> None:
    data = elf_file("libc.so.6", loader="/ld.so")
    for size in range(6, len(data), 7):
        with pytest.raises(ValueError, match="ELF file"):
            _read(data[:size])


def test_another_file_is_none() -> None:
    assert _read(b"#!/bin/sh\n") is None


@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_program_is_read_or_refused(noise: bytes, at: int) -> None:
    data = bytearray(elf_file("libc.so.6", loader="/ld.so", rpath="/lib"))
    data[at : at + len(noise)] = noise
    try:
        found = _read(bytes(data))
    except ValueError:
        return
    assert found is None or found.bits in {32, 64}
