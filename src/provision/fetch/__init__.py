"""The only place that downloads. Files get their name once a checksum or a signature is right."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from provision.errors import NotFoundError, ProvisionError, WrongContentError
from provision.fetch.http import (
    check_secure,
    content,
    get_small,
    length,
    request,
    retried,
)
from provision.files import local_path, replacing, sha256_file
from provision.progress import Transfer, report
from provision.run import HOSTILE_MEMORY, find_program, run

__all__ = [
    "download",
    "download_any",
    "download_signed",
    "download_summed",
    "get_small",
]

# The limit for files of unknown size. The largest driver has less than 1 GiB.
LARGEST = 4 << 30
_MAX_SUM = 4096
_CHUNK = 1 << 20
_MD5 = re.compile(r"[0-9A-Fa-f]{32}")


def download(url: str, *, sha256: str, destination: Path, limit: int = LARGEST) -> bool:
    """Download a file with a known sha256.

    The file appears under its name only when it is complete and its checksum is right.

    Returns:
        Whether it was downloaded; an existing file with this checksum stays.
    """
    if destination.is_file() and sha256_file(destination) == sha256:
        return False

    def receive() -> None:
        with replacing(destination) as stream:
            got = _receive(url, stream, limit)
            if got != sha256:
                raise _wrong_content(url, expected=sha256, got=got)

    retried(url, receive)
    return True


def download_summed(url: str, *, destination: Path) -> None:
    """Download a file with an MD5 in ``URL.md5``.

    The MD5 only detects damage, and HTTPS authenticates the server. So plain HTTP is refused, also
    in redirects.
    """
    check_secure(url, url)
    expected = _published_md5(url)

    def receive() -> None:
        with destination.open("wb") as stream:
            _receive(url, stream, LARGEST, secure=True)

    retried(url, receive)
    with destination.open("rb") as stream:
        got = hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    if got != expected:
        raise ProvisionError(
            f"'{url}' is not the file that was published: its MD5 is wrong.",
            resolution="Try again later: it may be damaged or in the middle of an update.",
            details=f"expected {expected}\ngot      {got}",
        )


def download_any(url: str, *, destination: Path, limit: int) -> str:
    """Download a file that the caller must check before its use: nothing is checked here."""

    def receive() -> str:
        with destination.open("wb") as stream:
            return _receive(url, stream, limit)

    return retried(url, receive)


def _published_md5(url: str) -> str:
    text = get_small(f"{url}.md5", limit=_MAX_SUM, secure=True).decode("ascii", "replace").split()
    if not text or not _MD5.fullmatch(text[0]):
        raise ProvisionError(
            f"'{url}.md5' holds no MD5.",
            resolution="Something else answered in its place: a proxy's page, or a broken mirror.",
        )
    return text[0].lower()


def _receive(url: str, stream: IO[bytes], limit: int, *, secure: bool = False) -> str:
    """Write a download durably to an open file, and return its sha256."""
    digest = hashlib.sha256()
    done = 0
    with _opened(url, limit, secure=secure) as (total, chunks):
        for chunk in chunks:
            stream.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            report(Transfer(url, done, total))
        stream.flush()
        os.fsync(stream.fileno())
    return digest.hexdigest()


@contextmanager
def _opened(url: str, limit: int, *, secure: bool) -> Iterator[tuple[int | None, Iterator[bytes]]]:
    """Yield the size of a file, if it is known, and its content."""
    path = local_path(url)
    if path is None:
        with request(url, secure=secure) as response:
            yield length(response), content(response, limit=limit)
        return
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            yield size, iter(partial(file.read, _CHUNK), b"")
    except OSError as error:
        raise NotFoundError(
            f"The file '{path}' can't be read: {error.strerror}.",
            resolution="Put it there on the machine that builds, or correct the address in"
            " driver.toml.",
        ) from error


def _wrong_content(url: str, *, expected: str, got: str) -> WrongContentError:
    return WrongContentError(
        f"'{url}' is not the file that was expected: its sha256 is wrong.",
        resolution="Try again later or from another mirror: it may be damaged, altered, or in the"
        " middle of an update. If its publisher has replaced it on purpose, check it and write the"
        " new sha256 where the old one stands.",
        details=f"expected {expected}\ngot      {got}",
    )


# A signature has some hundred bytes.
_MAX_SIGNATURE = 1 << 20


def download_signed(url: str, *, keyring: Path, destination: Path) -> None:
    """Download a file with a signature in ``URL.sig``.

    Args:
        keyring: File with the keys that may sign it, in OpenPGP's binary form.
    """
    with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
        draft, signature = Path(folder, "file"), Path(folder, "signature")
        download_any(f"{url}.sig", destination=signature, limit=_MAX_SIGNATURE)
        download_any(url, destination=draft, limit=LARGEST)
        verify_detached(draft, signature, keyring=keyring, name=url)
        draft.replace(destination)


def verify_detached(file: Path, signature: Path, *, keyring: Path, name: str) -> None:
    """Check a file by a separate file with its signature: with ``gpgv``, or else with ``sqv``.

    apt needs one of them, so every Debian has one.
    """
    if find_program("gpgv") is None and find_program("sqv"):
        words = ["sqv", "--keyring", str(keyring), "--signature-file", str(signature), str(file)]
    else:
        words = ["gpgv", "--keyring", str(keyring), str(signature), str(file)]
    done = run(words, why="check the signature of a download", check=False, memory=HOSTILE_MEMORY)
    if done.returncode != 0:
        raise WrongContentError(
            f"'{name}' has no valid signature by a key of {keyring}.",
            resolution="Don't use it: it may have been altered. Download it again, and see that the"
            " key is the publisher's.",
            details=done.stderr.strip() or None,
        )
