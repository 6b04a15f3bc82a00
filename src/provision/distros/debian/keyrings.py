"""Key files in the form that ``gpgv`` reads."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from provision.errors import ProvisionError
from provision.files import write_atomic

# https://www.rfc-editor.org/rfc/rfc9580#name-forming-ascii-armor
_BLOCK = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*?\n(?P<body>.*?)-----END PGP PUBLIC KEY BLOCK-----",
    re.DOTALL,
)


def dearmor(text: str, *, name: str) -> bytes:
    """Return the keys of an armored text in binary form.

    Args:
        text: One or more blocks. As a deb822 field it is indented, and its empty line is a dot.
        name: What error messages call it.

    Raises:
        ProvisionError: It holds no key.
    """
    keys = b""
    for block in _BLOCK.finditer(text):
        lines = [line.strip() for line in block["body"].splitlines()]
        # Headers such as "Version: …" have a colon, the checksum starts with '='.
        data = [line for line in lines if line not in {"", "."} and ":" not in line]
        try:
            keys += base64.b64decode("".join(d for d in data if d[0] != "="), validate=True)
        except ValueError as error:
            raise ProvisionError(f"The key in '{name}' is damaged: {error}.") from error
    if not keys:
        raise ProvisionError(f"There is no OpenPGP key in '{name}'.")
    return keys


def binary_keyring(path: Path, folder: Path) -> Path:
    """Return a key file itself, or a binary copy of it in ``folder`` where it is armored.

    Raises:
        ProvisionError: It holds no key.
        OSError: It can't be read.
    """
    content = path.read_bytes()
    if not content.lstrip().startswith(b"-----BEGIN PGP"):
        return path
    return store_key(content.decode(errors="replace"), folder, name=str(path))


def store_key(text: str, folder: Path, *, name: str) -> Path:
    """Write an armored key as a binary file into ``folder`` and return its path.

    Raises:
        ProvisionError: It holds no key.
    """
    binary = dearmor(text, name=name)
    path = folder / f"{hashlib.sha256(binary).hexdigest()}.gpg"
    write_atomic(path, binary)
    return path
