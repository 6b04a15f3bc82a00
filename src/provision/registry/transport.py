"""Requests to a registry: authentication, redirects, retries and limits.

Source: https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from provision import __version__
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.registry.credentials import Credentials
from provision.registry.names import is_loopback
from provision.registry.tokens import Access, answer, denied, split_address, token_in

if TYPE_CHECKING:
    import requests

log = logging.getLogger(__name__)

_ATTEMPTS = 4
# Seconds before the second attempt, doubled each time; and the longest pause by request.
_PAUSE = 0.5
_LONGEST_PAUSE = 60.0
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 60.0
# The limit for a body: these seconds, and the time of a slow line.
_BODY_SECONDS = 120.0
_SLOWEST = 32 << 10
_REDIRECTS = 5
_REDIRECTED = frozenset({301, 302, 303, 307, 308})
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_CHUNK = 1 << 18
_LONGEST_TOKEN_ANSWER = 1 << 20
_LONGEST_COMPLAINT = 4096
_REACH = (
    "Check that this machine reaches the registry. Behind a proxy, name it: [network] proxy;"
    " for a registry with a certificate of its own, name its authority: [registry] ca in"
    " /etc/provision/provision.toml; for one without TLS: [registry] plain_http = true."
)


class RefusedError(ProvisionError):
    """The registry answered with a status for which there is no other error."""


class TroubleError(Exception):
    """Connection trouble that is worth another attempt.

    Attributes:
        pause: Seconds to wait, as requested by the server.
    """

    def __init__(self, text: str, *, pause: float = 0.0) -> None:
        super().__init__(text)
        self.pause = pause


@dataclass
class Transport:
    """Talks to one registry, with one pair of credentials.

    Attributes:
        host: Its ``host[:port]``.
        access: Its connection settings.
        credentials: Looks them up; called when the registry first asks for them.
        session: Sends requests; None: a new session.
        clock: A monotonic clock, in seconds.
        sleep: Waits for seconds.
    """

    host: str
    access: Access
    credentials: Callable[[], Credentials | None]
    session: requests.Session | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _tokens: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def base(self) -> str:
        """The registry's address."""
        local = is_loopback(self.host) and self.access.ca is None
        return f"{'http' if self.access.plain_http or local else 'https'}://{self.host}"

    def attempts(self) -> Iterator[float | None]:
        """Yield the seconds to wait if this attempt fails; None for the last."""
        for attempt in range(_ATTEMPTS):
            yield None if attempt == _ATTEMPTS - 1 else _PAUSE * 2**attempt

    def give_up_or_wait(self, what: str, error: TroubleError, pause: float | None) -> None:
        """Wait before the next attempt.

        Args:
            what: The requested object.
            error: The trouble.
            pause: Seconds; None after the last attempt.

        Raises:
            UnreachableError: There is no further attempt.
        """
        if pause is None:
            raise UnreachableError(
                f"The registry {self.host} could not be asked for {what}.",
                resolution=_REACH,
                details=str(error),
            ) from error
        pause = max(pause, min(error.pause, _LONGEST_PAUSE))
        log.info("%s: %s; trying again in %g s", what, error, pause)
        self.sleep(pause)

    @contextmanager
    def request(
        self,
        method: str,
        path: str,
        *,
        scope: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Iterator[requests.Response]:
        """Send a request once; yields the answer, of which only the head was read.

        Args:
            method: GET, HEAD, POST or PUT.
            path: A path of the registry, or a complete address that it gave.
            scope: The required scope, as in the token protocol.
            headers: Further headers.
            body: The body.

        Raises:
            TroubleError: Another attempt may help.
            NotFoundError: The registry does not have it.
            ProvisionError: It refuses, or its answer is not acceptable.
        """
        import requests  # noqa: PLC0415 - 0.15 s that a command with a full store doesn't pay

        try:
            response = self._answered(
                method, urljoin(self.base, path), scope, dict(headers or {}), body
            )
            try:
                self._check(response, path)
                yield response
            finally:
                response.close()
        except requests.exceptions.SSLError as error:
            raise ProvisionError(
                f"The registry {self.host} has no certificate that this machine trusts.",
                resolution=_REACH,
                details=str(error),
            ) from error
        except requests.RequestException as error:
            raise TroubleError(str(error)) from error

    def read(self, response: requests.Response, limit: int, what: str) -> Iterator[bytes]:
        """Yield an answer's body, within a limit of bytes and of time.

        Args:
            response: The answer.
            limit: Bytes.
            what: Its name in messages.

        Raises:
            TroubleError: The transfer ended early, stalled or takes too long.
            ProvisionError: It is larger.
        """
        from urllib3.exceptions import HTTPError  # noqa: PLC0415 - as above

        length = response.headers.get("Content-Length", "")
        expected = int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
        if expected is not None and expected > limit:
            raise _too_large(what, limit)
        deadline = self.clock() + _BODY_SECONDS + (expected or limit) / _SLOWEST
        # Returns available bytes at once; urllib3 before 2.1 waits for a whole chunk.
        take: Callable[[int], bytes] = getattr(response.raw, "read1", response.raw.read)
        received = 0
        while True:
            try:
                chunk = take(_CHUNK)
            except (HTTPError, OSError, ValueError) as error:
                raise TroubleError(str(error)) from error
            if not chunk:
                break
            received += len(chunk)
            if received > limit:
                raise _too_large(what, limit)
            yield chunk
            if self.clock() > deadline:
                raise TroubleError(f"after {received} bytes, {what} takes too long")
        if expected is not None and received < expected:
            raise TroubleError(f"the transfer ended after {received} of {expected} bytes")

    def _answered(
        self, method: str, url: str, scope: str, headers: dict[str, str], body: bytes | None
    ) -> requests.Response:
        """Return the answer after redirects and authentication."""
        asked = False
        for _ in range(_REDIRECTS + 2):
            is_own = _origin(url) == _origin(self.base)
            allowed = {"Authorization": self._tokens[scope]} if scope in self._tokens else {}
            response = self._send(method, url, {**headers, **(allowed if is_own else {})}, body)
            if response.status_code == HTTPStatus.UNAUTHORIZED and is_own and not asked:
                asked = True
                response.close()
                self._authenticate(response.headers.get("WWW-Authenticate", ""), scope)
            elif response.status_code in _REDIRECTED and method in {"GET", "HEAD"}:
                response.close()
                url = self._redirected(url, response.headers.get("Location", ""))
            else:
                return response
        raise ProvisionError(
            f"The registry {self.host} redirects too often.",
            resolution="Check the address of the registry, and whether"
            " a proxy answers in its place.",
        )

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> requests.Response:
        import requests  # noqa: PLC0415 - as above

        from provision.fetch.sessions import bounded_session  # noqa: PLC0415 - as above

        if self.session is None:
            self.session = bounded_session()
        sent = {
            # A compressed transfer would change the bytes whose digest is known.
            "Accept-Encoding": "identity",
            "User-Agent": f"provision/{__version__}",
            **headers,
        }
        options: dict[str, object] = {"verify": self.access.ca} if self.access.ca else {}
        if is_loopback(urlsplit(url).netloc):
            # A proxy has another loopback than this machine, and would see what is sent to it.
            options["proxies"] = {"no_proxy": "*"}
        try:
            return self.session.request(
                method,
                url,
                data=body,
                headers=sent,
                # Else the library would add what ~/.netrc has.
                auth=_unchanged,
                allow_redirects=False,
                stream=True,
                timeout=(_CONNECT_SECONDS, _SILENCE_SECONDS),
                **options,  # type: ignore[arg-type] # the stubs want every option of its own type
            )
        except requests.RequestException:
            raise
        except (OSError, ValueError) as error:
            # A missing file of certificates, a proxy's address that can't be parsed.
            raise ProvisionError(
                f"The registry {self.host} can't be asked.", resolution=_REACH, details=str(error)
            ) from error

    def _redirected(self, url: str, location: str) -> str:
        try:
            target = urljoin(url, location)
        except ValueError:
            target = location
        parts = split_address(target, self.host)
        if parts.scheme == "http" and urlsplit(url).scheme == "https":
            raise ProvisionError(
                f"The registry {self.host} leads from https to http ('{parts.hostname}'), which is"
                " not followed.",
                resolution="Have the registry's redirects go to https.",
            )
        return target

    def _authenticate(self, challenge: str, scope: str) -> None:
        """Get the authorization for the next request of a scope."""
        access, credentials = self.access, self.credentials()
        given = answer(challenge, scope, base=self.base, access=access, credentials=credentials)
        if isinstance(given, str):
            self._tokens[scope] = given
            return
        response = self._send(given.method, given.url, given.headers, given.body)
        try:
            if response.status_code in _RETRIED:
                raise TroubleError(f"a token could not be had: {response.status_code}")
            if not response.ok:
                raise denied(self.host, f"no token was given, but {response.status_code}")
            text = b"".join(self.read(response, _LONGEST_TOKEN_ANSWER, "a token"))
        finally:
            response.close()
        self._tokens[scope] = f"Bearer {token_in(text, self.host)}"

    def _check(self, response: requests.Response, path: str) -> None:
        status = response.status_code
        if status in _RETRIED:
            pause = response.headers.get("Retry-After", "")
            raise TroubleError(
                f"{urlsplit(response.url).hostname} answered {status}",
                pause=float(pause) if re.fullmatch(r"[0-9]{1,6}", pause) else 0.0,
            )
        if status == HTTPStatus.NOT_FOUND:
            raise NotFoundError(
                f"The registry {self.host} has no '{path.removeprefix('/v2/')}'.",
                resolution="Check whether the name is right: provision search DRIVER.",
            )
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise denied(self.host, f"it answered {status}")
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            said = _first_bytes(response).decode(errors="replace")
            raise RefusedError(
                f"The registry {self.host} answered {status} to '{path.removeprefix('/v2/')}'.",
                details=said.strip() or None,
                resolution="Look into the registry's log, or try again later.",
            )


def content_digest(data: bytes) -> str:
    """Return the digest of content, as registries write it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _first_bytes(response: requests.Response) -> bytes:
    take: Callable[[int], bytes] = getattr(response.raw, "read1", response.raw.read)
    return take(_LONGEST_COMPLAINT)


def _unchanged(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    default = {"https": 443, "http": 80}.get(parts.scheme)
    return parts.scheme, parts.hostname, parts.port or default


def _too_large(what: str, limit: int) -> ProvisionError:
    return ProvisionError(
        f"The registry's answer is refused: {what} is larger than {limit} bytes.",
        resolution="This is no artifact image that provision built: don't use it.",
    )
