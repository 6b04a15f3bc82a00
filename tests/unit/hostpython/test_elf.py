"""What an ELF file asks for."""

from __future__ import annotations

import pytest

from provision.hostpython.elf import Elf, is_elf, read_elf
from unit.hostpython.elf_files import elf_file


def test_a_program_asks_for_a_loader_libraries_and_folders() -> None:
    data = elf_file("libc.so.6", "libm.so.6", loader="/opt/x/lib/ld.so", rpath="/opt/x/lib")
    assert is_elf(data)
    assert read_elf(data) == Elf("/opt/x/lib/ld.so", ("libc.so.6", "libm.so.6"), "/opt/x/lib", None)


def test_a_library_may_ask_for_nothing() -> None:
    assert read_elf(elf_file(runpath="$ORIGIN")) == Elf(None, (), None, "$ORIGIN")


def test_a_file_that_ends_early_is_damaged() -> None:
    data = elf_file("libc.so.6", loader="/ld.so")
    for size in range(6, len(data), 7):
        with pytest.raises(ValueError, match="ELF file"):
            read_elf(data[:size])


def test_32_bit_files_are_refused() -> None:
    data = bytearray(elf_file())
    data[4] = 1
    with pytest.raises(ValueError, match="no 64-bit ELF file"):
        read_elf(bytes(data))
