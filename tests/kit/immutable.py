"""What hosts of images have that Debian has not: a read-only /usr, and a recorded updater."""

from __future__ import annotations

import struct

_READ_ONLY = """\
[Unit]
DefaultDependencies=no
Before=local-fs.target
After=systemd-remount-fs.service local-fs-pre.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/mount --bind /usr /usr
ExecStart=/bin/mount -o remount,bind,ro /usr
{more}[Install]
WantedBy=local-fs.target
"""
_UPDATER = '#!/bin/sh\n[ "$*" = "{words}" ] && exec cat {answer}\n'


def read_only_usr(*more: str) -> str:
    """A unit that makes /usr read-only at each boot, and then runs commands."""
    return _READ_ONLY.format(more="".join(f"ExecStart={command}\n" for command in more))


def recorded_updater(words: str, answer: str) -> str:
    """A program that repeats a recording, when it is asked in the words that belong to it."""
    return _UPDATER.format(words=words, answer=answer)


def kernel_image(version: str) -> bytes:
    """The beginning of a kernel image for x86, as the boot protocol lays it out."""
    head = bytearray(0x400)
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x20E, 0x100)
    return bytes(head[:0x300]) + version.encode() + b"\0" * 16
