"""Transfers that fail: repeated, continued, or ended at a limit."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError, WrongContentError
from provision.registry.tokens import Access
from unit.registry.memory import HOST, Answer, Asked, MemoryRegistry
from unit.registry.sample_blob import BLOB, descriptor
from unit.registry.sample_blob import registry as registry  # noqa: PLC0414 - a fixture


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


@pytest.mark.parametrize(
    ("location", "message"),
    [
        (f"http://{HOST}/x", "from https to http"),
        ("http://127.0.0.1/x", "from https to http"),
        ("file:///etc/passwd", "an address that is not valid"),
        ("https://[", "can't be asked"),
        ("https://h:99999/", "an address that is not valid"),
        ("", "redirects too often"),
        ("/loop", "redirects too often"),
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


def test_a_range_with_too_many_digits_begins_again(
    registry: MemoryRegistry, tmp_path: Path
) -> None:
    headers = {"Content-Range": f"bytes {'0' * 5000}5000-9/*"}
    answers = [Answer(200, BLOB), Answer(206, b"", headers), Answer(200, BLOB[:5000])]
    registry.handlers.append(lambda _asked: answers.pop())
    registry.client().download(descriptor(BLOB), tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == BLOB
