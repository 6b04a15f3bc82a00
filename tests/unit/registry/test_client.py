"""The protocol of registries: manifests, tags, uploads and errors."""

from __future__ import annotations

import json

import pytest

from provision.errors import ProvisionError
from provision.fetch import WrongContentError
from unit.registry.memory import HOST, REPOSITORY, Answer, Asked, MemoryRegistry
from unit.registry.sample_blob import SECRET
from unit.registry.sample_blob import registry as registry  # noqa: PLC0414 - a fixture


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


def test_a_manifest_with_another_digest_is_refused(registry: MemoryRegistry) -> None:
    digest = registry.have_manifest({"a": 1})
    registry.manifests[digest] = b'{"a":1}'
    with pytest.raises(WrongContentError, match="different content"):
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
    with pytest.raises(ProvisionError, match="not return a list of tags"):
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
