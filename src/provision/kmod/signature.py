"""The signature at the end of a kernel module: read and appended.

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

MAGIC = b"~Module signature appended~\n"
# algo, hash, id_type, signer_len, key_id_len, three bytes of padding, sig_len.
_RECORD = struct.Struct(">5B3xI")
_PKCS7 = 2


@dataclass(frozen=True, slots=True)
class Appended:
    """A signature at the end of a module.

    Attributes:
        content_size: Bytes before it: what is signed.
        message: The PKCS#7 message, in DER.
    """

    content_size: int
    message: bytes


def find_signature(data: bytes | mmap) -> Appended | None:
    """Return the signature at the end of a module's bytes; None if it has none.

    Raises:
        ValueError: There is the magic text, and what is before it makes no sense.
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
    """Return the signature of a module file; None if it has none.

    Raises:
        ValueError: What there is makes no sense.
        OSError: The file can't be read.
    """
    if path.stat().st_size == 0:
        return None
    with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
        return find_signature(data)


def append_signature(path: Path, message: bytes) -> None:
    """Append a signature to a module file; one that it has already no longer counts.

    Args:
        path: The module; not in use yet, because a run that is killed leaves half of it.
        message: PKCS#7 in DER: detached, over the whole file as it is.

    Raises:
        OSError: The file can't be written.
    """
    record = _RECORD.pack(0, 0, _PKCS7, 0, 0, len(message))
    with path.open("ab") as stream:
        stream.write(message + record + MAGIC)


def read_content(path: Path, appended: Appended) -> bytes:
    """Return a module without its signature."""
    with path.open("rb") as stream:
        return stream.read(appended.content_size)


def content_digest(path: Path, appended: Appended) -> str:
    """Return the sha256 of a module without its signature, as 64 hexadecimal digits."""
    return hashlib.sha256(read_content(path, appended)).hexdigest()
