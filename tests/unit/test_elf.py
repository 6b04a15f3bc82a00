"""What an ELF file is, is called, asks for and holds."""

from __future__ import annotations

import io
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.artifact import make_module
from provision.elf import HEAD_SIZE, Elf, elf_bits, elf_machine, elf_section, read_elf
from unit.sources.libraries import library


def _read(data: bytes) -> Elf | None:
    return read_elf(io.BytesIO(data))


@pytest.mark.parametrize("bits", [32, 64])
def test_a_library_has_a_name(bits: int) -> None:
    assert _read(library("libx.so.1", bits=bits)) == Elf(bits, soname="libx.so.1")
    assert _read(library(None, bits=bits)) == Elf(bits)


def test_a_file_that_ends_early_is_damaged() -> None:
    data = library("libx.so.1")
    for size in range(6, len(data), 7):
        with pytest.raises(ValueError, match="ELF file"):
            _read(data[:size])


def test_another_file_is_none() -> None:
    assert _read(b"#!/bin/sh\n") is None


@pytest.mark.parametrize("bits", [32, 64])
def test_the_head_says_the_class(bits: int) -> None:
    assert elf_bits(library("libx.so.1", bits=bits)[:HEAD_SIZE]) == bits


@pytest.mark.parametrize("head", [b"", b"\x7fELF", b"#!/bin/sh\n" * 2, b"\x7fELF\3" + bytes(15)])
def test_another_head_has_no_class_and_no_machine(head: bytes) -> None:
    assert elf_bits(head) is None
    assert elf_machine(head) is None


@pytest.mark.parametrize(("data", "order"), [(1, "<"), (2, ">")])
def test_the_head_says_the_machine(data: int, order: str) -> None:
    head = bytes((*b"\x7fELF", 2, data)) + bytes(10) + struct.pack(f"{order}2H", 3, 22)
    assert elf_machine(head) == "s390x"
    assert elf_machine(head[:-1]) is None


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_module_has_sections(order: str) -> None:
    module = make_module(order=order)
    assert b"license=GPL\0" in elf_section(module, b".modinfo")
    with pytest.raises(ValueError, match=r"no \.absent section"):
        elf_section(module, b".absent")


@given(st.integers(min_value=0), st.integers(min_value=0, max_value=255))
def test_a_section_is_found_or_refused(position: int, byte: int) -> None:
    data = bytearray(make_module())
    data[position % len(data)] = byte
    with suppress(ValueError, IndexError, struct.error):
        assert len(elf_section(bytes(data), b".modinfo")) <= len(data)
