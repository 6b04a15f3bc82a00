"""Requests over HTTP: repeated after connection trouble, and bounded in size and time."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from provision import __version__
from provision.errors import NotFoundError, ProvisionError, UnreachableError, UsageError
from provision.files import in_root

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

T = TypeVar("T")


# The library's object before the reason, such as HTTPSConnectionPool(…): or <… object at 0x…>:
_OBJECT = re.compile(r"^(?:\w+\([^()]*\)|<[^<>]*>): ")


class TroubleError(Exception):
    """Connection trouble that is worth another attempt."""


def retried(url: str, attempt: Callable[[], T], *, patient: bool = True) -> T:
    """Return the result of an attempt; after connection trouble, pause and try again.

    Args:
        attempt: Raises ``TroubleError`` if a repetition may help.
    """
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
        with _opened(url) as response:
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


def _opened(url: str) -> requests.Response:
    """Return the server's answer, of which only the head was read."""
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
    """Yield a response's content, never more than the limit.

    Raises:
        TroubleError: The transfer ended early.
    """
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
