"""The only place that downloads; what it leaves behind has been checked by sha256 or signature."""

from __future__ import annotations

from provision.fetch.clear_signed import SignatureError, verify_signed
from provision.fetch.http import (
    Signed,
    UnreachableError,
    WrongContentError,
    download,
    download_any,
    download_signed,
    download_summed,
    get_signed,
    get_small,
)

__all__ = [
    "SignatureError",
    "Signed",
    "UnreachableError",
    "WrongContentError",
    "download",
    "download_any",
    "download_signed",
    "download_summed",
    "get_signed",
    "get_small",
    "verify_signed",
]
