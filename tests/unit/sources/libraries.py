"""ELF libraries with nothing but their SONAME, by hand after elf(5)."""

import struct


def library(soname: str | None, *, bits: int = 64) -> bytes:
    """A little-endian library of 32 or 64 bits."""
    wide = bits == 64
    names = b"\0" + (soname or "").encode() + b"\0"
    head, row, entry = (64, 56, "<qQ") if wide else (52, 32, "<iI")
    strings = head + 2 * row
    dynamic = strings + len(names)
    # At run time everything lies one page further than in the file.
    address = 0x1000
    entries = [(5, address + strings), *([(14, 1)] if soname else []), (0, 0)]
    table = b"".join(struct.pack(entry, key, value) for key, value in entries)
    size = dynamic + len(table)
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1, 1]) + bytes(9)
    start = ("QQQ", 0, head, 0) if wide else ("III", 0, head, 0)
    fixed = struct.pack("<HHI" + start[0], 3, 62, 1, *start[1:])
    fixed += struct.pack("<IHHHHHH", 0, head, row, 2, 0, 0, 0)
    rows = [(1, 0, address, size), (2, dynamic, address + dynamic, len(table))]
    segments = b"".join(
        struct.pack("<IIQQQQQQ", kind, 4, offset, at, at, length, length, 8)
        if wide
        else struct.pack("<IIIIIIII", kind, offset, at, at, length, length, 4, 8)
        for kind, offset, at, length in rows
    )
    return ident + fixed + segments + names + table
