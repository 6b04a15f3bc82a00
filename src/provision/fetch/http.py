"""Downloads over HTTP, checked by sha256 or signature before anybody sees them."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from provision import __version__
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.fetch.clear_signed import SignatureError, verify_detached, verify_signed
from provision.files import sha256_file, sync_directory
from provision.progress import Progress, Transfer, silent

if TYPE_CHECKING:
    import requests

log = logging.getLogger(__name__)

_CHUNK = 1 << 18
_ATTEMPTS = 4
# Seconds before the second attempt; doubled each time.
_PAUSE = 0.5
# Seconds to connect, and seconds of silence while reading.
_CONNECT_TIMEOUT = 10.0
_READ_TIMEOUT = 60.0
# An InRelease has some 150 kB.
_MAX_SIGNED = 16 << 20
# Of what no index gives the size of. The largest driver has less than 1 GiB.
LARGEST = 4 << 30
_MAX_SUM = 4096
# Of what is read into memory: small pieces, so that the time is looked at now and then.
_SMALL_CHUNK = 1 << 12
# Seconds for such a file as a whole.
_WITHIN = 120.0
_MD5 = re.compile(r"[0-9A-Fa-f]{32}")
_NUMBER = re.compile(r"[0-9]{1,18}")
_RETRIED_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_REACH = (
    "Check that this machine reaches that address. Behind a proxy, set https_proxy and http_proxy"
    " (and REQUESTS_CA_BUNDLE, if it has a certificate of its own); with an own mirror, name it in"
    " /etc/provision/provision.toml."
)


class WrongContentError(ProvisionError):
    """Something answers, with another file than the one whose sha256 is known."""


class UnreachableError(ProvisionError):
    """The network or the server failed, so that the same request may work later."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A document whose signature was good.

    Attributes:
        payload: Only the signed text, without the signature or anything around it.
        etag: The server's name for this content, if it gave one.
        last_modified: The server's date of this content, if it gave one.
    """

    payload: bytes
    etag: str | None = None
    last_modified: str | None = None


class _TroubleError(Exception):
    """Connection trouble: worth another attempt."""


def download(
    url: str,
    *,
    sha256: str,
    destination: Path,
    limit: int = LARGEST,
    progress: Progress = silent,
) -> bool:
    """Download a file whose content is known beforehand.

    The file appears under its name only when it is complete and right.

    Args:
        url: Its address.
        sha256: Its checksum, 64 hexadecimal digits.
        destination: Where it goes; the folder is made if it is missing.
        limit: Bytes that it may have; no more are written. Its size, where that is known.
        progress: Receives how far it is.

    Returns:
        Whether it was downloaded: a right file that is there already stays.

    Raises:
        NotFoundError: The server doesn't have it.
        UnreachableError: The server can't be reached, or kept failing.
        ProvisionError: The content is not what it should be.
        OSError: The folder can't be written, or the disk is full.
    """
    if destination.is_file() and sha256_file(destination) == sha256:
        return False
    destination.parent.mkdir(parents=True, exist_ok=True)
    for last in _attempts():
        handle, name = tempfile.mkstemp(dir=destination.parent, prefix=f".{destination.name}.")
        temporary = Path(name)
        try:
            got = _receive(url, handle, limit, progress)
            if got != sha256:
                raise _wrong_content(url, expected=sha256, got=got)
            temporary.chmod(0o644)
            temporary.replace(destination)
        except _TroubleError as error:
            _give_up_or_wait(url, error, last=last)
        else:
            sync_directory(destination.parent)
            return True
        finally:
            temporary.unlink(missing_ok=True)
    raise AssertionError("the last attempt returns or raises")


def download_summed(url: str, *, destination: Path, progress: Progress = silent) -> None:
    """Download a file whose MD5 its publisher has beside it, as ``URL.md5``.

    That finds what was damaged on the way; who wrote it is what HTTPS says, so nothing else is
    asked, and no redirect to anything else is followed.

    Raises:
        UsageError: The address is not one of HTTPS.
        NotFoundError: The server has no such file, or no checksum of it.
        UnreachableError: The server can't be reached, or kept failing.
        ProvisionError: The content is not what it should be.
        OSError: The folder can't be written, or the disk is full.
    """
    _check_secure(url, url)
    expected = _published_md5(url)
    for last in _attempts():
        try:
            with destination.open("wb") as stream:
                _receive(url, os.dup(stream.fileno()), LARGEST, progress, secure=True)
            break
        except _TroubleError as error:
            _give_up_or_wait(url, error, last=last)
    with destination.open("rb") as stream:
        got = hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    if got != expected:
        raise ProvisionError(
            f"'{url}' is not the file that was published: its MD5 is wrong.",
            resolution="Try again later: it may be damaged or in the middle of an update.",
            details=f"expected {expected}\ngot      {got}",
        )


def download_signed(
    url: str, *, keyring: Path, destination: Path, progress: Progress = silent
) -> None:
    """Download a file whose signature its publisher has beside it, as ``URL.sig``.

    A file that is there already stays if its signature is good.

    Args:
        url: Its address.
        keyring: File with the keys that may sign it, in OpenPGP's binary form.
        destination: Where it goes; the folder is made if it is missing.
        progress: Receives how far it is.

    Raises:
        NotFoundError: The server lacks the file or its signature.
        UnreachableError: The server can't be reached, or kept failing.
        SignatureError: It has no good signature by one of the keys.
        OSError: The folder can't be written, or the disk is full.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    signature = destination.with_name(f".{destination.name}.sig")
    draft = destination.with_name(f".{destination.name}.draft")
    try:
        download_any(f"{url}.sig", destination=signature, limit=_MAX_SIGNED, progress=progress)
        if destination.is_file():
            draft = destination
        else:
            download_any(url, destination=draft, limit=LARGEST, progress=progress)
        verify_detached(draft, signature, keyring=keyring, name=url)
        draft.replace(destination)
        sync_directory(destination.parent)
    except SignatureError:
        destination.unlink(missing_ok=True)
        raise
    finally:
        signature.unlink(missing_ok=True)
        if draft != destination:
            draft.unlink(missing_ok=True)


def download_any(url: str, *, destination: Path, limit: int, progress: Progress = silent) -> str:
    """Download what the caller checks before it is used: nothing vouches for the content yet.

    Args:
        url: Its address.
        destination: Where it goes; a file there is written over.
        limit: Bytes that it may have; no more are written.
        progress: Receives how far it is.

    Returns:
        Its sha256, 64 hexadecimal digits.

    Raises:
        NotFoundError: The server doesn't have it.
        UnreachableError: The server can't be reached, or kept failing.
        ProvisionError: It is larger than it may be, or the server refused.
        OSError: The file can't be written, or the disk is full.
    """
    for last in _attempts():
        try:
            with destination.open("wb") as stream:
                return _receive(url, os.dup(stream.fileno()), limit, progress)
        except _TroubleError as error:
            _give_up_or_wait(url, error, last=last)
    raise AssertionError("the last attempt returns or raises")


def _published_md5(url: str) -> str:
    text = get_small(f"{url}.md5", limit=_MAX_SUM, secure=True).decode("ascii", "replace").split()
    if not text or not _MD5.fullmatch(text[0]):
        raise ProvisionError(
            f"'{url}.md5' holds no MD5.",
            resolution="Something else answered in its place: a proxy's page, or a broken mirror.",
        )
    return text[0].lower()


def get_small(url: str, *, limit: int, patient: bool = True, secure: bool = False) -> bytes:
    """Return a small file about whose content nothing is known beforehand.

    An address of HTTPS that leads to one of plain HTTP is refused: nothing else vouches for it.

    Args:
        url: Its address.
        limit: Bytes that it may have.
        patient: Whether connection trouble is worth several attempts.
        secure: Whether plain HTTP is refused from the start.

    Raises:
        NotFoundError: The server doesn't have it.
        UnreachableError: The server can't be reached, kept failing, or takes too long.
        ProvisionError: It is too large, or the server sent us to plain HTTP.
    """
    for last in _attempts(_ATTEMPTS if patient else 1):
        end = time.monotonic() + _WITHIN
        try:
            with _request(url, {}, secure=secure) as response:
                _refuse_downgrade(url, response)
                return b"".join(_until(end, _content(response, limit=limit, chunk=_SMALL_CHUNK)))
        except _TroubleError as error:
            _give_up_or_wait(url, error, last=last)
    raise AssertionError("the last attempt returns or raises")


def _until(end: float, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what comes before a time of the monotonic clock."""
    for chunk in chunks:
        if time.monotonic() > end:
            raise _TroubleError(f"the transfer took more than {_WITHIN:g} s")
        yield chunk


def _refuse_downgrade(url: str, response: requests.Response) -> None:
    passed = [hop.url for hop in (*response.history, response)]
    plain = next((hop for hop in passed if not hop.startswith("https:")), None)
    if url.startswith("https:") and plain is not None:
        raise ProvisionError(
            f"'{url}' leads to an address without TLS: '{plain}'.",
            resolution="Someone on the way may have changed it: try another network, or ask who"
            " runs the proxy.",
        )


def get_signed(
    url: str, *, keyrings: Sequence[Path], known: Signed | None = None, patient: bool = True
) -> Signed:
    """Download a clear-signed text and return what is signed in it.

    Args:
        url: Its address.
        keyrings: Files with the keys that may sign it, in OpenPGP's binary form.
        known: What it was before; not sent again by a server that knows that it is still that.
        patient: Whether connection trouble is worth several attempts.

    Returns:
        The document, or ``known`` itself where that is still current.

    Raises:
        NotFoundError: The server doesn't have it, or no program that checks signatures is there.
        UnreachableError: The server can't be reached, or kept failing.
        SignatureError: It has no good signature by one of the keys.
    """
    headers = {}
    if known is not None and known.etag:
        headers["If-None-Match"] = known.etag
    if known is not None and known.last_modified:
        headers["If-Modified-Since"] = known.last_modified
    for last in _attempts(_ATTEMPTS if patient else 1):
        try:
            with _request(url, headers) as response:
                if known is not None and response.status_code == HTTPStatus.NOT_MODIFIED:
                    return known
                text = b"".join(_content(response, limit=_MAX_SIGNED))
                found = response.headers
        except _TroubleError as error:
            _give_up_or_wait(url, error, last=last)
        else:
            payload = verify_signed(text, keyrings=keyrings, name=url)
            return Signed(payload, found.get("ETag"), found.get("Last-Modified"))
    raise AssertionError("the last attempt returns or raises")


def _attempts(count: int = _ATTEMPTS) -> Iterator[float | None]:
    """Yield the seconds to wait if this attempt fails; None for the last."""
    for attempt in range(count):
        yield None if attempt == count - 1 else _PAUSE * 2**attempt


def _give_up_or_wait(url: str, error: _TroubleError, *, last: float | None) -> None:
    if last is None:
        raise UnreachableError(
            f"Could not download '{url}'.", resolution=_REACH, details=str(error)
        ) from error
    log.info("%s: %s; trying again in %g s", url, error, last)
    time.sleep(last)


@contextmanager
def _request(
    url: str, headers: Mapping[str, str], *, secure: bool = False
) -> Iterator[requests.Response]:
    import requests  # noqa: PLC0415 - 0.15 s that a command with a warm cache doesn't pay

    try:
        with _opened(url, headers) as response:
            for hop in (*response.history, response) if secure else ():
                _check_secure(url, hop.url)
            _check_status(url, response)
            yield response
    except (
        requests.ConnectionError,
        requests.Timeout,
        requests.exceptions.ChunkedEncodingError,
    ) as error:
        raise _TroubleError(str(error)) from error
    except requests.RequestException as error:
        raise _refused(url, error) from error


def _opened(url: str, headers: Mapping[str, str]) -> requests.Response:
    """Return the server's answer, of which only the head was read.

    Raises:
        requests.RequestException: Whatever the library says of network and server.
        ProvisionError: The address, a proxy's or the file of certificates makes no sense.
    """
    import requests  # noqa: PLC0415 - as above
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - as above

    try:
        return requests.get(
            url,
            headers={
                # A compressed transfer would change the bytes whose checksum is known.
                "Accept-Encoding": "identity",
                "User-Agent": f"provision/{__version__}",
                **headers,
            },
            stream=True,
            timeout=(_CONNECT_TIMEOUT, _READ_TIMEOUT),
        )
    except requests.RequestException:
        raise
    except (HTTPError, OSError, ValueError) as error:
        # The library lets these through: a proxy or a host's name that can't be parsed, a missing
        # REQUESTS_CA_BUNDLE.
        raise _refused(url, error) from error


def _refused(url: str, error: Exception) -> ProvisionError:
    return ProvisionError(f"Could not download '{url}'.", resolution=_REACH, details=str(error))


def _check_secure(url: str, hop: str) -> None:
    """Refuse an address, or where it led, that is not one of HTTPS."""
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
        raise _TroubleError(f"the server answered {status} {response.reason}")
    if status in {404, 410}:
        raise NotFoundError(
            f"'{url}' does not exist ({status} {response.reason}).",
            resolution="It may have been withdrawn; see whether there is a newer version.",
        )
    if not response.ok:
        raise ProvisionError(
            f"The server answered {status} {response.reason} to '{url}'.", resolution=_REACH
        )


def _content(response: requests.Response, *, limit: int, chunk: int = _CHUNK) -> Iterator[bytes]:
    """Yield a response's content, never more than the limit.

    A transfer that ends early is connection trouble.
    """
    expected = _length(response)
    received = 0
    if expected is not None and expected > limit:
        raise _too_large(response.url, limit)
    for piece in response.iter_content(chunk):
        received += len(piece)
        if received > limit:
            raise _too_large(response.url, limit)
        yield piece
    if expected is not None and received < expected:
        raise _TroubleError(f"the transfer ended after {received} of {expected} bytes")


def _length(response: requests.Response) -> int | None:
    text = response.headers.get("Content-Length", "")
    encoded = response.headers.get("Content-Encoding", "identity") != "identity"
    return int(text) if _NUMBER.fullmatch(text) and not encoded else None


def _too_large(url: str, limit: int) -> ProvisionError:
    return ProvisionError(
        f"'{url}' is not the file that was expected: it is larger than {limit} bytes.",
        resolution="Try again later or from another mirror: something else answers there.",
    )


def _receive(url: str, handle: int, limit: int, progress: Progress, *, secure: bool = False) -> str:
    """Write a download to an open file, closing it, and return its sha256."""
    digest = hashlib.sha256()
    done = 0
    with os.fdopen(handle, "wb") as stream, _request(url, {}, secure=secure) as response:
        total = _length(response)
        for chunk in _content(response, limit=limit):
            stream.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            progress(Transfer(url, done, total))
        stream.flush()
        os.fsync(stream.fileno())
    return digest.hexdigest()


def _wrong_content(url: str, *, expected: str, got: str) -> WrongContentError:
    return WrongContentError(
        f"'{url}' is not the file that was expected: its sha256 is wrong.",
        resolution="Try again later or from another mirror: it may be damaged, altered, or in the"
        " middle of an update. If its publisher has replaced it on purpose, check it and write the"
        " new sha256 where the old one stands.",
        details=f"expected {expected}\ngot      {got}",
    )
