"""The only place that downloads. Downloads are checked by a checksum or a signature."""

from __future__ import annotations

from provision.fetch.downloads import WrongContentError, download, download_any, download_summed
from provision.fetch.http import UnreachableError, get_small
from provision.fetch.signed import (
    SignatureError,
    Signed,
    download_signed,
    get_signed,
    verify_signed,
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
