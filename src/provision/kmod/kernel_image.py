"""The kernel within an image of x86: a program, compressed, behind the code that unpacks it.

That code takes most of the time that an emulated processor needs for a boot. QEMU starts the
program itself as well, if it has the entry of PVH. Sources:
https://docs.kernel.org/arch/x86/boot.html, https://xenbits.xen.org/docs/unstable/misc/pvh.html.
"""

from __future__ import annotations

import lzma
import struct
import tempfile
import zlib
from pathlib import Path

from provision import zstd
from provision.errors import ProvisionError

_MAGIC_AT, _MAGIC = 0x202, b"HdrS"
# setup_sects; payload_offset and payload_length.
_SECTORS_AT, _PAYLOAD_AT = 0x1F1, 0x248
_SECTOR = 512
# What older headers mean by none.
_SECTORS = 4
# The type and the name of the ELF note XEN_ELFNOTE_PHYS32_ENTRY.
_PVH_NOTE = struct.pack("<I4s", 18, b"Xen\0")
# More than any kernel.
_LIMIT = 1 << 30


def program_of(image: bytes) -> bytes | None:
    """Return the program in an image; None: there is none that QEMU could start."""
    if image[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC:
        return None
    try:
        offset, length = struct.unpack_from("<II", image, _PAYLOAD_AT)
        begin = ((image[_SECTORS_AT] or _SECTORS) + 1) * _SECTOR + offset
        program = _decompressed(image[begin : begin + length])
    except (struct.error, zlib.error, lzma.LZMAError, OSError, ValueError, ProvisionError):
        # QEMU has it unpacked by its own code, and says what is wrong with it.
        return None
    return program if program is not None and _PVH_NOTE in program else None


def _decompressed(payload: bytes) -> bytes | None:
    """Return its content; but for gzip, whose own end says it, four bytes with the size follow."""
    if payload.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(wbits=31).decompress(payload)
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "kernel.zst"), Path(folder, "kernel")
            source.write_bytes(payload[:-4])
            zstd.decompress(source, target, limit=_LIMIT, why="start a kernel")
            return target.read_bytes()
    return None
