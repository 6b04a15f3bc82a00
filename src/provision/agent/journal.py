"""Writes to the journal with fields of our own, so that others can search by them.

Source: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/. The protocol is a datagram of lines, which
takes less code than a library that would have to be there on every host.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

from provision.rootfs import in_root

_SOCKET = Path("run/systemd/journal/socket")
# A datagram must fit into the socket's buffer (net.core.wmem_default, 208 KiB); longer texts
# would have to go by a file descriptor, and end up in the build's log anyway.
_LONGEST = 32 * 1024
# A journal that hangs takes nothing any more once its buffer is full.
_LIMIT_S = 1.0


class Priority(IntEnum):
    """How urgent an entry is: syslog(3)."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


def tell(root: Path, message: str, priority: Priority, fields: Mapping[str, object]) -> bool:
    """Write an entry to a host's journal.

    Args:
        root: Root of the host.
        message: The text.
        priority: How urgent it is.
        fields: Further fields; names get the prefix ``PROVISION_`` and upper case, values that are
            None are left out.

    Returns:
        Whether there is a journal that took it.
    """
    entry = {
        "MESSAGE": message,
        "PRIORITY": int(priority),
        "SYSLOG_IDENTIFIER": "provision",
        **{f"PROVISION_{name.upper()}": value for name, value in fields.items()},
    }
    data = b"".join(_field(name, str(v)) for name, v in entry.items() if v is not None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        door.settimeout(_LIMIT_S)
        try:
            door.sendto(data, str(in_root(root, _SOCKET)))
        except OSError:
            return False
    return True


def _field(name: str, value: str) -> bytes:
    data = value.encode()[:_LONGEST]
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
