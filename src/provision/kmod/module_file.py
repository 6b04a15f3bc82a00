"""The file of a kernel module: its modinfo, its build id, and the signature at its end.

A module is a relocatable ELF file; its ``.modinfo`` section holds ``key=value`` strings, each
ended by a zero byte, and a note holds the identity of the build. Source:
include/linux/moduleparam.h of the kernel.

A module is followed by a PKCS#7 message, a fixed record with that message's length, and a magic
text. Source: struct module_signature in the kernel's include/linux/module_signature.h;
https://docs.kernel.org/admin-guide/module-signing.html.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from provision.elf import elf_section
from provision.errors import ProvisionError

# The exceptions that parsing raises for bytes that are no module.
UNREADABLE = (struct.error, IndexError, ValueError)
_MODINFO = b".modinfo"
_BUILD_ID = b".note.gnu.build-id"
MAGIC = b"~Module signature appended~\n"
# algo, hash, id_type, signer_len, key_id_len, three bytes of padding, sig_len.
_RECORD = struct.Struct(">5B3xI")
_PKCS7 = 2


def parse_modinfo(data: bytes | mmap) -> dict[str, str]:
    """Return the first value of each key of a module's bytes.

    Raises:
        UNREADABLE: They are not those of a 64-bit ELF file with a ``.modinfo`` section.
    """
    values: dict[str, str] = {}
    for entry in elf_section(data, _MODINFO).split(b"\0"):
        key, separator, value = entry.partition(b"=")
        if separator:
            values.setdefault(key.decode("ascii", "replace"), value.decode("utf-8", "replace"))
    return values


def read_identity(path: Path) -> tuple[bytes | None, dict[str, str]]:
    """Return the build-id note of a module file, if it has one, and its modinfo.

    Only these parts are read: modules of 60 MB are not rare.
    """
    try:
        with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
            info = parse_modinfo(data)
            try:
                return elf_section(data, _BUILD_ID), info
            except ValueError:
                return None, info
    except UNREADABLE as error:
        raise ProvisionError(
            f"'{path}' is no kernel module: {error}",
            resolution="Have the artifact made again: provision apply",
        ) from error


@dataclass(frozen=True, slots=True)
class Appended:
    """A signature at the end of a module."""

    # Number of bytes before it; these are signed.
    content_size: int
    # The PKCS#7 message, in DER.
    message: bytes


def find_signature(data: bytes | mmap) -> Appended | None:
    """Return the signature at the end of a module's bytes; None if it has none.

    Raises:
        ValueError: The magic text is there, and the bytes before it are not a valid signature.
    """
    size = len(data)
    record_at = size - len(MAGIC) - _RECORD.size
    if record_at < 0 or data[size - len(MAGIC) : size] != MAGIC:
        return None
    algorithm, hash_, kind, signer, key_id, length = _RECORD.unpack(
        data[record_at : record_at + _RECORD.size]
    )
    if (algorithm, hash_, kind, signer, key_id) != (0, 0, _PKCS7, 0, 0):
        raise ValueError("its signature is of a kind that the kernel does not take")
    begin = record_at - length
    if begin < 0:
        raise ValueError("its signature is longer than the module")
    return Appended(begin, data[begin:record_at])


def read_signature(path: Path) -> Appended | None:
    """Return the signature of a module file; None if it has none."""
    if path.stat().st_size == 0:
        return None
    with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
        return find_signature(data)


def append_signature(path: Path, message: bytes) -> None:
    """Append a signature to a module file; an earlier signature in it no longer counts.

    Args:
        path: The module, which must not be in use yet: a killed run leaves it half written.
    """
    record = _RECORD.pack(0, 0, _PKCS7, 0, 0, len(message))
    with path.open("ab") as stream:
        stream.write(message + record + MAGIC)


def content_digest(path: Path, appended: Appended) -> str:
    """Return the sha256 of a module without its signature, as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.sha256(stream.read(appended.content_size)).hexdigest()
