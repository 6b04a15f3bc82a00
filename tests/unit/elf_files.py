"""ELF files with nothing but what a loader reads, by hand; a real one is in tests/hosts."""

from __future__ import annotations

import struct

_BASE = 0x400000


def elf_file(
    *needed: str, loader: str | None = None, rpath: str | None = None, runpath: str | None = None
) -> bytes:
    """Return a 64-bit little-endian file with one loaded, one dynamic, and one loader segment."""
    strings = b"\0"
    entries = []
    named = [(1, name) for name in needed]
    named += [(tag, text) for tag, text in ((15, rpath), (29, runpath)) if text is not None]
    for tag, text in named:
        entries.append((tag, len(strings)))
        strings += text.encode() + b"\0"
    interpreter = (loader or "").encode() + b"\0"
    count = 3 if loader else 2
    at_strings = 64 + 56 * count
    at_loader = at_strings + len(strings)
    at_dynamic = at_loader + len(interpreter)
    # The table of strings is named by its address in memory, not in the file.
    entries += [(5, _BASE + at_strings), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", tag, value) for tag, value in entries)
    size = at_dynamic + len(dynamic)
    segments = [(1, 0, _BASE, size), (2, at_dynamic, _BASE + at_dynamic, len(dynamic))]
    if loader:
        segments.append((3, at_loader, _BASE + at_loader, len(interpreter)))
    headers = b"".join(
        struct.pack("<IIQQQQQQ", kind, 5, offset, address, address, length, length, 8)
        for kind, offset, address, length in segments
    )
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQI", 3, 62, 1, 0, 64, 0, 0)
    head += struct.pack("<HHHHHH", 64, 56, count, 0, 0, 0)
    return head + headers + strings + interpreter + dynamic
