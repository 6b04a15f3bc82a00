"""Answers a registry's authentication challenge; decides which hosts may get credentials.

Source: https://distribution.github.io/distribution/spec/auth/token/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit

from provision.errors import ProvisionError
from provision.registry.credentials import Credentials

_PARAMETER = re.compile(r'([A-Za-z]+)="([^"]*)"')
# A token becomes a line of a header.
_TOKEN = re.compile(r"[\x21-\x7e]+")


class DeniedError(ProvisionError):
    """A registry denies this host access.

    Many give the same answer for missing repositories, so as not to reveal which exist.
    """


@dataclass(frozen=True, slots=True)
class Access:
    """Connection settings of a registry.

    Attributes:
        ca: File with the authorities that may have issued its certificate; None: the system's.
        plain_http: Whether to connect without TLS. Connections to this machine itself have no TLS
            unless ``ca`` is given.
        token_hosts: Further hosts that may get its credentials, for tokens.
    """

    ca: str | None = None
    plain_http: bool = False
    token_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class TokenRequest:
    """The request for an access token."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None = None


def answer(
    challenge: str, scope: str, *, base: str, access: Access, credentials: Credentials | None
) -> str | TokenRequest:
    """Return the ``Authorization`` that answers a challenge, or the request for a token.

    Args:
        challenge: The header ``WWW-Authenticate`` of the registry's refusal.
        scope: The scope to request.
        base: The registry's address.
        access: Its connection settings.
        credentials: The credentials for the registry.

    Raises:
        ProvisionError: They are missing, or would be sent to another host or without TLS.
    """
    host = urlsplit(base).netloc
    kind, _, rest = challenge.partition(" ")
    if kind.lower() == "basic" and credentials is not None and credentials.password:
        return credentials.basic
    if kind.lower() != "bearer":
        raise denied(host, "no credentials are known for it")
    given = dict(_PARAMETER.findall(rest))
    try:
        realm = urljoin(base, given.get("realm", ""))
    except ValueError:
        realm = ""
    place = split_address(realm, host)
    if place.scheme not in {"https", urlsplit(base).scheme}:
        raise ProvisionError(
            f"The registry {host} wants a token to be asked for without TLS, at '{realm}'.",
            resolution="Have the registry name an https address for tokens.",
        )
    if credentials is not None and place.netloc not in {host, *access.token_hosts}:
        raise ProvisionError(
            f"The registry {host} wants its credentials to be sent to '{place.netloc}', which is"
            " another host.",
            resolution="If that host issues the registry's tokens, allow it: [registry]"
            f' token_hosts = ["{place.netloc}"] in /etc/provision/provision.toml.',
        )
    return _token_request(place, given.get("service", ""), scope, credentials)


def _token_request(
    realm: SplitResult, service: str, scope: str, credentials: Credentials | None
) -> TokenRequest:
    """Return the request for a token at an address that was checked."""
    url = realm.geturl()
    parameters = {"service": service, "scope": scope}
    query = urlencode({name: value for name, value in parameters.items() if value})
    if credentials is not None and credentials.refresh_token:
        grant = {
            "grant_type": "refresh_token",
            "refresh_token": credentials.refresh_token,
            "client_id": "provision",
        }
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        return TokenRequest("POST", url, form, f"{query}&{urlencode(grant)}".encode())
    who = {"Authorization": credentials.basic} if credentials else {}
    return TokenRequest("GET", f"{url}{'&' if realm.query else '?'}{query}", who)


def token_in(text: bytes, host: str) -> str:
    """Return the access token in an answer.

    Raises:
        ProvisionError: The answer has no token.
    """
    try:
        document = json.loads(text)
        token = document.get("token") or document.get("access_token")
    except (ValueError, AttributeError, RecursionError) as error:
        raise denied(host, "what gives tokens answered no JSON object") from error
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise denied(host, "what gives tokens gave no token")
    return token


def split_address(url: str, host: str) -> SplitResult:
    """Return the parts of an address that a registry gave.

    Raises:
        ProvisionError: It is not one of http or https.
    """
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ProvisionError(
            f"The registry {host} leads to an address that is not valid: '{url[:200]}'.",
            resolution="Check the address of the registry, and whether"
            " a proxy answers in its place.",
        )
    return parts


def denied(host: str, why: str) -> DeniedError:
    """Return the error for a registry that refuses this host."""
    return DeniedError(
        f"The registry {host} does not let this host in: {why}.",
        resolution=f"Log in: docker login {host}, or podman login {host}; for the agent, as root."
        " Another file of credentials: [registry] auth_file in /etc/provision/provision.toml.",
    )
