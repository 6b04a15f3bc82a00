"""The only place that downloads: bounded in size and time, and repeated after connection trouble.

Files get their name once a checksum or a signature is right.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from provision import __version__
from provision.errors import (
    NotFoundError,
    ProvisionError,
    UnreachableError,
    UsageError,
    WrongContentError,
)
from provision.files import in_root, local_path, replacing, sha256_file
from provision.progress import Transfer, report
from provision.run import HOSTILE_MEMORY, find_program, run

if TYPE_CHECKING:
    import requests

log = logging.getLogger(__name__)

# The limit for files of unknown size. The largest driver has less than 1 GiB.
LARGEST = 4 << 30
_MAX_SUM = 4096
# A signature has some hundred bytes.
_MAX_SIGNATURE = 1 << 20
_CHUNK = 1 << 18
_MD5 = re.compile(r"[0-9A-Fa-f]{32}")
_ATTEMPTS = 4
# Seconds before the second attempt; doubled each time.
_PAUSE = 0.5
# Seconds to connect, and seconds of silence while reading.
_CONNECT_TIMEOUT = 10.0
_READ_TIMEOUT = 60.0
_NUMBER = re.compile(r"[0-9]{1,18}")
_RETRIED_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_REACH = (
    "Check that this machine reaches that address. Behind a proxy, name it in"
    " /etc/provision/provision.toml ([network] proxy), and add its authority, if it has one, to"
    " those of the system; with an own mirror, name that there."
)

# Of Debian, Flatcar and Arch; of the RHEL family; of SUSE; of Alpine.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

# What a library puts before the reason, such as HTTPSConnectionPool(…): or <… object at 0x…>:
_OBJECT = re.compile(r"^(?:\w+\([^()]*\)|<[^<>]*>): ")

T = TypeVar("T")


def download(url: str, *, sha256: str, destination: Path, limit: int = LARGEST) -> bool:
    """Download a file with a known sha256; return whether that was needed.

    The file appears under its name only when it is complete and its checksum is right.
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


def download_signed(url: str, *, keyring: Path, destination: Path) -> None:
    """Download a file with a signature in ``URL.sig``; the keyring is in OpenPGP's binary form."""
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


class TroubleError(Exception):
    """Connection trouble that is worth another attempt."""


def retried(url: str, attempt: Callable[[], T], *, patient: bool = True) -> T:
    """Return the result of an attempt; after a ``TroubleError``, pause and try again."""
    pauses = [_PAUSE * 2**number for number in range(_ATTEMPTS - 1)] if patient else []
    for pause in pauses:
        try:
            return attempt()
        except TroubleError as error:
            log.info("%s: %s; trying again in %g s", url, error, pause)
            time.sleep(pause)
    try:
        return attempt()
    except TroubleError as error:
        raise UnreachableError(
            f"Could not download '{url}'.", resolution=_REACH, details=str(error)
        ) from error


def get_small(url: str, *, limit: int, patient: bool = True, secure: bool = False) -> bytes:
    """Return a small file without a known checksum.

    A redirect from HTTPS to plain HTTP is refused: only TLS protects the content.
    """

    def read() -> bytes:
        with request(url, secure=secure) as response:
            _refuse_downgrade(url, response)
            return b"".join(content(response, limit=limit))

    return retried(url, read, patient=patient)


def _refuse_downgrade(url: str, response: requests.Response) -> None:
    passed = [hop.url for hop in (*response.history, response)]
    plain = next((hop for hop in passed if not hop.startswith("https:")), None)
    if url.startswith("https:") and plain is not None:
        raise ProvisionError(
            f"'{url}' leads to an address without TLS: '{plain}'.",
            resolution="Someone on the way may have changed it: try another network, or ask who"
            " runs the proxy.",
        )


@contextmanager
def request(url: str, *, secure: bool = False) -> Iterator[requests.Response]:
    """Send a request; yield the answer, with its content still to be read."""
    import requests  # noqa: PLC0415 - 0.15 s that a command with a warm cache doesn't pay

    try:
        with _answer(url) as response:
            for hop in (*response.history, response) if secure else ():
                check_secure(url, hop.url)
            _check_status(url, response)
            yield response
    except (
        requests.ConnectionError,
        requests.Timeout,
        requests.exceptions.ChunkedEncodingError,
    ) as error:
        raise TroubleError(_reason(error)) from error
    except requests.RequestException as error:
        raise _refused(url, error) from error


def _answer(url: str) -> requests.Response:
    import requests  # noqa: PLC0415 - as above
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - as above

    from provision.fetch.sessions import bounded_session  # noqa: PLC0415 - as above

    try:
        with bounded_session() as session:
            return session.get(
                url,
                headers={
                    # A compressed transfer would change the bytes whose checksum is known.
                    "Accept-Encoding": "identity",
                    "User-Agent": f"provision/{__version__}",
                },
                stream=True,
                timeout=(_CONNECT_TIMEOUT, _READ_TIMEOUT),
            )
    except requests.RequestException:
        raise
    except (HTTPError, OSError, ValueError) as error:
        # The library does not wrap these: a proxy or a host's name that can't be parsed, a missing
        # REQUESTS_CA_BUNDLE.
        raise _refused(url, error) from error


def _refused(url: str, error: Exception) -> ProvisionError:
    return ProvisionError(f"Could not download '{url}'.", resolution=_REACH, details=_reason(error))


def check_secure(url: str, hop: str) -> None:
    """Refuse an address, or a redirect's target, that does not use HTTPS."""
    if urlsplit(hop).scheme != "https":
        raise UsageError(
            f"'{url}' is not asked without HTTPS{'' if hop == url else f' (it leads to {hop})'}:"
            " only a checksum from the same server vouches for its content.",
            resolution="Give an address that begins with https://, or the file's sha256, where a"
            " setting takes one.",
        )


def _check_status(url: str, response: requests.Response) -> None:
    status = response.status_code
    if status in _RETRIED_STATUS:
        raise TroubleError(f"the server answered {status} {response.reason}")
    if status in {404, 410}:
        raise NotFoundError(
            f"'{url}' does not exist ({status} {response.reason}).",
            resolution="It may have been withdrawn; see whether there is a newer version.",
        )
    if not response.ok:
        raise ProvisionError(
            f"The server answered {status} {response.reason} to '{url}'.", resolution=_REACH
        )


def content(response: requests.Response, *, limit: int) -> Iterator[bytes]:
    """Yield a response's content, never more than the limit; a ``TroubleError``: it ended early."""
    expected = length(response)
    received = 0
    if expected is not None and expected > limit:
        raise _too_large(response.url, limit)
    for piece in response.iter_content(_CHUNK):
        received += len(piece)
        if received > limit:
            raise _too_large(response.url, limit)
        yield piece
    if expected is not None and received < expected:
        raise TroubleError(f"the transfer ended after {received} of {expected} bytes")


def length(response: requests.Response) -> int | None:
    """Return the length that a server announces; None if it announces none."""
    text = response.headers.get("Content-Length", "")
    encoded = response.headers.get("Content-Encoding", "identity") != "identity"
    return int(text) if _NUMBER.fullmatch(text) and not encoded else None


def _too_large(url: str, limit: int) -> ProvisionError:
    return ProvisionError(
        f"'{url}' is not the file that was expected: it is larger than {limit} bytes.",
        resolution="Try again later or from another mirror: something else answers there.",
    )


def _reason(error: BaseException) -> str:
    """Return why a request failed, without the objects in which libraries wrap the reason."""
    wrapped = (getattr(error, "reason", None), *reversed(error.args))
    inner = next((one for one in wrapped if isinstance(one, BaseException)), None)
    if inner is not None:
        return _reason(inner)
    text = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    return _OBJECT.sub("", text) or type(error).__name__


def authorities_of(root: Path) -> Path | None:
    """Return the file with the certificates that a host trusts; None where it has none.

    They are those of its system, which admins add to, and not requests' own list: certifi.
    """
    bundles = [in_root(root, name) for name in _BUNDLES]
    return next((path for path in bundles if path.is_file()), None)
