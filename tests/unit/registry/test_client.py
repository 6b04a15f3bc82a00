"""The protocol of registries: authentication, limits, resuming, redirects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import requests

from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError, WrongContentError
from provision.registry.credentials import Credentials
from provision.registry.manifests import Descriptor
from provision.registry.tokens import Access
from unit.registry.memory import HOST, REPOSITORY, Answer, Asked, MemoryRegistry, digest_of

SECRET = Credentials("me", "secret")
BLOB = bytes(range(256)) * 40_000


def descriptor(data: bytes) -> Descriptor:
    return Descriptor(mediaType="x/y", digest=digest_of(data), size=len(data))


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


def test_a_manifest_comes_by_tag_and_by_digest(registry: MemoryRegistry) -> None:
    digest = registry.have_manifest({"a": 1})
    by_tag = registry.client().manifest("1")
    assert by_tag == registry.client().manifest(digest)
    assert by_tag.digest == digest
    assert all(asked.url.startswith(f"https://{HOST}/v2/{REPOSITORY}/") for asked in registry.asked)


@pytest.mark.parametrize("said", [True, False])
def test_whether_a_manifest_is_there_takes_a_head(registry: MemoryRegistry, *, said: bool) -> None:
    digest = registry.have_manifest({"a": 1})
    headers = {"Docker-Content-Digest": digest if said else "md5:1"}

    def head(asked: Asked) -> Answer | None:
        is_there = asked.method == "HEAD" and asked.path.endswith("/1")
        return Answer(200, headers=headers) if is_there else None

    registry.handlers.append(head)
    assert registry.client().head("1") == digest
    assert [asked.method for asked in registry.asked] == (["HEAD"] if said else ["HEAD", "GET"])
    assert registry.client().head("2") is None


@pytest.mark.parametrize("date", [None, 1_790_000_000.0])
def test_the_registrys_time_is_in_its_answers(registry: MemoryRegistry, date: float | None) -> None:
    registry.date = date
    assert registry.client().time() == date
    registry.handlers.append(lambda _: Answer(200, headers={"Date": "yesterday"}))
    assert registry.client().time() is None
    registry.handlers.append(lambda _: Answer(404))
    assert registry.client().time() is None


def test_a_removal_that_is_refused_is_no_error(registry: MemoryRegistry) -> None:
    digest = registry.have_manifest({"a": 1})
    registry.deletes = False
    assert not registry.client().delete(digest)
    registry.deletes = True
    assert registry.client().delete(digest)
    assert registry.manifests == {}
    registry.handlers.append(lambda _: Answer(500))
    with pytest.raises(UnreachableError):
        registry.client().delete(digest)


@pytest.mark.parametrize(
    ("host", "access", "scheme"),
    [
        ("registry.example:5000", Access(), "https"),
        ("registry.example:5000", Access(plain_http=True), "http"),
        ("127.0.0.1:5000", Access(), "http"),
        ("127.0.0.1:5000", Access(ca="/ca.pem"), "https"),
        ("[::1]:5000", Access(), "http"),
        ("127.0.0.1.example:5000", Access(), "https"),
    ],
)
def test_only_this_machine_is_spoken_to_without_tls_unasked(
    registry: MemoryRegistry, host: str, access: Access, scheme: str
) -> None:
    client = registry.client(f"{host}/x:1", access=access)
    with pytest.raises(NotFoundError, match="has no"):
        client.manifest("1")
    assert registry.asked[0].url == f"{scheme}://{host}/v2/x/manifests/1"


@pytest.mark.parametrize(
    ("host", "is_direct"), [("127.0.0.1:5000", True), ("registry.example", False)]
)
def test_this_machine_is_not_behind_a_proxy(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch, host: str, *, is_direct: bool
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://proxy.example:3128")
    client = registry.client(f"{host}/x:1")
    assert client.transport.session is not None
    client.transport.session.trust_env = True
    with pytest.raises(NotFoundError):
        client.manifest("1")
    proxied = "http://proxy.example:3128" in str(registry.proxies)
    assert proxied is not is_direct


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


@pytest.mark.parametrize(
    ("location", "message"),
    [
        (f"http://{HOST}/x", "from https to http"),
        ("http://127.0.0.1/x", "from https to http"),
        ("file:///etc/passwd", "an address that is not valid"),
        ("https://[", "can't be asked"),
        ("https://h:99999/", "an address that is not valid"),
        ("", "from one address to the next"),
        ("/loop", "from one address to the next"),
    ],
)
def test_a_redirect_to_where_nothing_good_comes_from(
    registry: MemoryRegistry, location: str, message: str
) -> None:
    registry.handlers.append(lambda _asked: Answer(302, headers={"Location": location}))
    with pytest.raises(ProvisionError, match=message):
        registry.client().manifest("1")
    assert all(asked.url.startswith(f"https://{HOST}/") for asked in registry.asked)


def test_a_server_that_is_busy_is_asked_again(registry: MemoryRegistry) -> None:
    registry.have_manifest({"a": 1})
    answers = [Answer(503), Answer(429, headers={"Retry-After": "7"})]
    registry.handlers.append(lambda _asked: answers.pop() if answers else None)
    registry.client().manifest("1")
    assert registry.slept == [7, 1]


def test_a_server_that_stays_busy_is_given_up(registry: MemoryRegistry) -> None:
    answer = Answer(503, headers={"Retry-After": "99999"})
    registry.handlers.append(lambda _asked: answer)
    with pytest.raises(UnreachableError, match="could not be asked"):
        registry.client().manifest("1")
    assert registry.slept == [60, 60, 60]


def test_a_connection_that_fails_is_tried_again(registry: MemoryRegistry) -> None:
    failures = [requests.ConnectionError("reset"), requests.Timeout("slow")]

    def handler(_asked: Asked) -> Answer | None:
        if failures:
            raise failures.pop()
        return None

    registry.handlers.append(handler)
    registry.have_manifest({"a": 1})
    registry.client().manifest("1")
    assert len(registry.slept) == 2


def test_a_certificate_that_is_not_trusted_is_not_tried_again(registry: MemoryRegistry) -> None:
    def handler(_asked: Asked) -> Answer | None:
        raise requests.exceptions.SSLError("self-signed certificate")

    registry.handlers.append(handler)
    with pytest.raises(ProvisionError, match="no certificate that this machine trusts") as caught:
        registry.client().manifest("1")
    assert "[registry] ca" in (caught.value.resolution or "")
    assert registry.slept == []


def cut_off(registry: MemoryRegistry, *, at: int, ranges: bool) -> None:
    """Have transfers end early, and ranges be understood or not."""

    def handler(asked: Asked) -> Answer | None:
        stored = BLOB
        given = asked.headers.get("Range")
        start = int(given.removeprefix("bytes=").rstrip("-")) if given and ranges else 0
        rest = stored[start : start + at]
        headers = {"Content-Range": f"bytes {start}-{start + at}/*"} if start else {}
        return Answer(206 if start else 200, rest, headers)

    registry.handlers.append(handler)


def test_a_transfer_that_was_cut_off_goes_on(registry: MemoryRegistry, tmp_path: Path) -> None:
    cut_off(registry, at=2_000_000, ranges=True)
    registry.client().download(descriptor(BLOB), tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == BLOB
    ranges = [asked.headers.get("Range") for asked in registry.asked]
    assert ranges == [None, *(f"bytes={n * 2_000_000}-" for n in range(1, 6))]


def test_a_server_without_ranges_begins_again(registry: MemoryRegistry, tmp_path: Path) -> None:
    answers = [Answer(200, BLOB), Answer(200, BLOB[:5000])]
    registry.handlers.append(lambda _asked: answers.pop())
    registry.client().download(descriptor(BLOB), tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == BLOB


def test_a_transfer_that_never_gets_further_ends(registry: MemoryRegistry, tmp_path: Path) -> None:
    cut_off(registry, at=1000, ranges=True)
    with pytest.raises(UnreachableError):
        registry.client().download(descriptor(BLOB), tmp_path / "blob")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("served", "error"),
    [
        (BLOB[:-1] + b"x", WrongContentError),
        (BLOB + b"x", ProvisionError),
        (BLOB * 3, ProvisionError),
        (b"", UnreachableError),
    ],
)
def test_a_blob_with_another_content_leaves_nothing(
    registry: MemoryRegistry, tmp_path: Path, served: bytes, error: type[ProvisionError]
) -> None:
    registry.handlers.append(lambda _asked: Answer(200, served))
    with pytest.raises(error):
        registry.client().download(descriptor(BLOB), tmp_path / "blob")
    with pytest.raises((error, WrongContentError)):
        registry.client().blob(descriptor(BLOB), len(BLOB))
    assert list(tmp_path.iterdir()) == []


def test_an_answer_that_trickles_ends(registry: MemoryRegistry) -> None:
    def handler(_asked: Asked) -> Answer | None:
        # An hour passes while each transfer goes on.
        registry.now += 3600
        return Answer(200, b"{}" + b" " * 1000)

    registry.handlers.append(handler)
    clock = iter(range(0, 100_000, 3600))
    client = registry.client()
    client.transport.clock = lambda: float(next(clock))
    with pytest.raises(UnreachableError) as caught:
        client.manifest("1")
    assert "takes too long" in (caught.value.details or "")


@pytest.mark.parametrize("headers", [{}, {"Content-Length": "104857600"}])
def test_a_manifest_of_a_hundred_megabytes_is_cut_off(
    registry: MemoryRegistry, headers: dict[str, str]
) -> None:
    body = b"x" * (8 << 20)
    registry.handlers.append(lambda _asked: Answer(200, body, headers))
    with pytest.raises(ProvisionError, match="is larger than 4194304 bytes"):
        registry.client().manifest("1")
    assert len(registry.asked) == 1


def test_a_manifest_with_another_digest_is_refused(registry: MemoryRegistry) -> None:
    digest = registry.have_manifest({"a": 1})
    registry.manifests[digest] = b'{"a":1}'
    with pytest.raises(WrongContentError, match="another content"):
        registry.client().manifest(digest)


def test_tags_come_in_pages(registry: MemoryRegistry) -> None:
    pages = {
        "n=1000": (["1", "2"], '</v2/x/tags/list?last=2&n=1000>; rel="next"'),
        "last=2&n=1000": (["3", "not a tag", 4], ""),
    }

    def handler(asked: Asked) -> Answer | None:
        tags, link = pages[asked.url.partition("?")[2]]
        return Answer(200, json.dumps({"tags": tags}).encode(), {"Link": link})

    registry.handlers.append(handler)
    assert registry.client().tags() == ("1", "2", "3")


def test_tags_that_never_end_do(registry: MemoryRegistry) -> None:
    link = '<https://evil.example/v2/x/tags/list?last=1>; rel="next"'
    registry.handlers.append(lambda _asked: Answer(200, b'{"tags":["1"]}', {"Link": link}))
    assert registry.client().tags() == ("1",)
    assert {asked.host for asked in registry.asked} == {HOST}
    assert len(registry.asked) == 50


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"tags": 3}', b"[" * 100_000])
def test_a_list_of_tags_that_is_none(registry: MemoryRegistry, body: bytes) -> None:
    registry.handlers.append(lambda _asked: Answer(200, body))
    with pytest.raises(ProvisionError, match="no list of tags"):
        registry.client().tags()


def test_an_upload_goes_nowhere_else(registry: MemoryRegistry) -> None:
    stored = registry.client(credentials=SECRET).put_blob(b"hello")
    assert registry.blobs[stored.digest] == b"hello"
    asked = len(registry.asked)
    # What is there is not sent again.
    registry.client().put_blob(b"hello")
    assert [one.method for one in registry.asked[asked:]] == ["HEAD"]
    away = Answer(202, headers={"Location": "https://evil.example/upload"})
    registry.handlers.append(lambda asked: away if asked.method == "POST" else None)
    with pytest.raises(ProvisionError, match=r"evil\.example/upload', which is another host"):
        registry.client().put_blob(b"other")
    assert {one.host for one in registry.asked} == {HOST}


@pytest.mark.parametrize("location", ["https://[::1", "//[", "", "ftp://registry.example/x"])
def test_an_address_for_uploads_that_is_none(registry: MemoryRegistry, location: str) -> None:
    answer = Answer(202, headers={"Location": location})
    registry.handlers.append(lambda asked: answer if asked.method == "POST" else None)
    if location:
        with pytest.raises(ProvisionError, match="wants an upload to go to"):
            registry.client().put_blob(b"other")
    else:
        registry.client().put_blob(b"other")
    assert {one.host for one in registry.asked} == {HOST}


def test_a_next_page_that_is_nowhere(registry: MemoryRegistry) -> None:
    link = '<https://[evil/?last=1>; rel="next"'
    answers = [Answer(200, b'{"tags":["2"]}'), Answer(200, b'{"tags":["1"]}', {"Link": link})]
    registry.handlers.append(lambda _asked: answers.pop())
    assert registry.client().tags() == ("1", "2")
    assert {asked.host for asked in registry.asked} == {HOST}


def test_a_range_with_too_many_digits_begins_again(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    headers = {"Content-Range": f"bytes {'0' * 5000}5000-9/*"}
    answers = [Answer(200, BLOB), Answer(206, b"", headers), Answer(200, BLOB[:5000])]
    registry.handlers.append(lambda _asked: answers.pop())
    registry.client().download(descriptor(BLOB), tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == BLOB


def test_what_the_registry_says_of_a_failure_is_shown(registry: MemoryRegistry) -> None:
    registry.handlers.append(lambda _asked: Answer(418, b'{"errors":"short and stout"}'))
    with pytest.raises(ProvisionError, match="answered 418") as caught:
        registry.client().manifest("1")
    assert "short and stout" in (caught.value.details or "")


def test_a_registry_does_not_write_on_the_terminal(registry: MemoryRegistry) -> None:
    said = b"\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\r\nOK \xe2\x80\xaegnp\tend\x9b"
    registry.handlers.append(lambda _asked: Answer(418, said))
    with pytest.raises(ProvisionError) as caught:
        registry.client().manifest("1")
    assert caught.value.details == "?]0;owned??[2Jred\nOK ?gnp\tend\ufffd"
