"""The only place that downloads. Downloads are checked by a checksum or a signature."""

from __future__ import annotations

from provision.fetch.downloads import (
    SignatureError,
    WrongContentError,
    download,
    download_any,
    download_signed,
    download_summed,
)
from provision.fetch.http import UnreachableError, get_small

__all__ = [
    "SignatureError",
    "UnreachableError",
    "WrongContentError",
    "download",
    "download_any",
    "download_signed",
    "download_summed",
    "get_small",
]
