"""Authentication: which credentials and tokens are sent, and which hosts never get any."""

from __future__ import annotations

import json

import pytest

from provision.errors import ProvisionError
from provision.registry.credentials import Credentials
from provision.registry.tokens import Access
from unit.registry.memory import HOST, REPOSITORY, Answer, Asked, MemoryRegistry
from unit.registry.sample_blob import BLOB, SECRET, descriptor
from unit.registry.sample_blob import registry as registry  # noqa: PLC0414 - a fixture


def asking_for_tokens(
    registry: MemoryRegistry, realm: str, token: object = SECRET.username
) -> None:
    def handler(asked: Asked) -> Answer | None:
        if asked.url.startswith(realm):
            return Answer(200, json.dumps({"token": token}).encode())
        if asked.headers.get("Authorization") == f"Bearer {token}":
            return None
        challenge = f'Bearer realm="{realm}",service="registry",scope="x"'
        return Answer(401, headers={"WWW-Authenticate": challenge})

    registry.handlers.append(handler)


@pytest.mark.parametrize("credentials", [None, SECRET])
def test_a_token_is_asked_for_once_and_for_what_is_needed(
    registry: MemoryRegistry, credentials: Credentials | None
) -> None:
    asking_for_tokens(registry, f"https://{HOST}/token")
    registry.have_manifest({"a": 1})
    client = registry.client(credentials=credentials)
    client.manifest("1")
    client.manifest("1")
    tokens = [asked for asked in registry.asked if asked.path == "/token"]
    assert len(tokens) == 1
    assert tokens[0].headers.get("Authorization") == (credentials.basic if credentials else None)
    assert f"scope=repository%3A{REPOSITORY.replace('/', '%2F')}%3Apull" in tokens[0].url
    assert "service=registry" in tokens[0].url


def test_a_refresh_token_is_exchanged(registry: MemoryRegistry) -> None:
    asking_for_tokens(registry, f"https://{HOST}/token")
    registry.have_manifest({"a": 1})
    registry.client(credentials=Credentials(refresh_token=SECRET.password)).manifest("1")
    (asked,) = [asked for asked in registry.asked if asked.path == "/token"]
    assert asked.method == "POST"
    assert b"grant_type=refresh_token&refresh_token=secret" in asked.body


def test_basic_credentials_go_to_the_registry(registry: MemoryRegistry) -> None:
    def handler(asked: Asked) -> Answer | None:
        if asked.headers.get("Authorization") == SECRET.basic:
            return None
        return Answer(401, headers={"WWW-Authenticate": 'Basic realm="x"'})

    registry.handlers.append(handler)
    registry.have_manifest({"a": 1})
    assert registry.client(credentials=SECRET).manifest("1").data == b'{"a": 1}'
    with pytest.raises(ProvisionError, match="does not let this host in"):
        registry.client().manifest("1")


@pytest.mark.parametrize(
    ("realm", "message"),
    [
        ("https://evil.example/token", "credentials to be sent to 'evil.example'"),
        (f"https://{HOST}:8443/token", f"credentials to be sent to '{HOST}:8443'"),
        (f"https://x@{HOST}/token", "which is another host"),
        (f"http://{HOST}/token", "without TLS"),
        ("file:///etc/passwd", "an address that is not valid"),
        ("https://[", "an address that is not valid"),
        (f"https://{HOST}:99999/", "an address that is not valid"),
    ],
)
def test_a_stranger_gets_no_credentials(registry: MemoryRegistry, realm: str, message: str) -> None:
    asking_for_tokens(registry, realm)
    with pytest.raises(ProvisionError, match=message):
        registry.client(credentials=SECRET).manifest("1")
    assert [asked for asked in registry.asked if "Authorization" in asked.headers] == []


def test_another_host_for_tokens_can_be_allowed(registry: MemoryRegistry) -> None:
    asking_for_tokens(registry, "https://auth.example/token")
    registry.have_manifest({"a": 1})
    access = Access(token_hosts=("auth.example",))
    registry.client(access=access, credentials=SECRET).manifest("1")
    # And no one needs to allow it where there is no secret.
    registry.client().manifest("1")


@pytest.mark.parametrize("token", ["", 5, None, "a\r\nHost: evil.example", ["t"]])
def test_a_token_that_is_none_is_no_header(registry: MemoryRegistry, token: object) -> None:
    asking_for_tokens(registry, f"https://{HOST}/token", token)
    with pytest.raises(ProvisionError, match="gave no token"):
        registry.client().manifest("1")


def test_a_redirect_gets_no_credentials(registry: MemoryRegistry) -> None:
    def handler(asked: Asked) -> Answer | None:
        if asked.host == "cdn.example":
            return Answer(200, BLOB)
        if asked.headers.get("Authorization") != SECRET.basic:
            return Answer(401, headers={"WWW-Authenticate": "Basic"})
        return Answer(307, headers={"Location": "https://cdn.example/x?signature=1"})

    registry.handlers.append(handler)
    assert registry.client(credentials=SECRET).blob(descriptor(BLOB), len(BLOB)) == BLOB
    assert "Authorization" not in registry.asked[-1].headers


def test_a_redirect_that_asks_for_credentials_gets_none(registry: MemoryRegistry) -> None:
    def handler(asked: Asked) -> Answer | None:
        if asked.host == "evil.example":
            return Answer(401, headers={"WWW-Authenticate": "Basic"})
        return Answer(302, headers={"Location": "https://evil.example/x"})

    registry.handlers.append(handler)
    with pytest.raises(ProvisionError, match="does not let this host in"):
        registry.client(credentials=SECRET).manifest("1")
    assert all("Authorization" not in asked.headers for asked in registry.asked)
