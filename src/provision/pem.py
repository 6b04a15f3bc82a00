"""Public keys in PEM files: where they are, and their fingerprints.

To verify a signature takes a library. To see whether a key is still trusted, its fingerprint
suffices, at boot too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from pathlib import Path

from provision.files import open_regular

_SUFFIXES = (".pub", ".pem")
LONGEST = 64 << 10
_KEY = re.compile(rb"-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----")


def key_files(place: Path) -> list[Path]:
    """Return the files of keys in a folder (``*.pub``, ``*.pem``), or the one file."""
    if place.is_dir():
        return sorted(path for path in place.iterdir() if path.suffix in _SUFFIXES)
    return [place] if place.is_file() else []


def fingerprint(pem: bytes) -> str | None:
    """Return the sha256 of a public key's DER, as ``openssl pkey -pubin -outform DER`` writes it.

    None: this is no public key.
    """
    found = _KEY.search(pem)
    if found is None:
        return None
    try:
        return f"sha256:{hashlib.sha256(base64.b64decode(found[1])).hexdigest()}"
    except binascii.Error:
        return None


def fingerprints(place: Path) -> frozenset[str]:
    """Return the fingerprints of the keys in a folder, or in one file; others are left out."""
    found = set()
    for path in key_files(place):
        try:
            with open_regular(path) as stream:
                data = stream.read(LONGEST + 1)
        except OSError:
            continue
        if len(data) <= LONGEST and (one := fingerprint(data)):
            found.add(one)
    return frozenset(found)
