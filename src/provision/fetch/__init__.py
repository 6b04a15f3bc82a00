"""The only place that downloads; what it leaves behind has been checked by sha256 or signature."""

from __future__ import annotations

from provision.fetch.http import (
    Signed,
    UnreachableError,
    WrongContentError,
    download,
    download_signed,
    download_summed,
    download_unchecked,
    get_signed,
)
from provision.fetch.signature import SignatureError, verify_signed

__all__ = [
    "SignatureError",
    "Signed",
    "UnreachableError",
    "WrongContentError",
    "download",
    "download_signed",
    "download_summed",
    "download_unchecked",
    "get_signed",
    "verify_signed",
]
