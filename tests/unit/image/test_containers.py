"""Which containers are started and removed."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from docker import APIClient

from provision.errors import ProvisionError
from provision.image import containers
from provision.image.containers import Container, ContainerRequest, running


class FakeClient:
    """An engine with a container of a killed run, and one of another process."""

    def __init__(self) -> None:
        self.there = {"left": "mine", "others": "theirs"}
        self.wishes: list[dict[str, Any]] = []
        self.starts = True

    def containers(self, *, filters: dict[str, str], **which: bool) -> list[dict[str, str]]:
        assert which == {"all": True}
        owner = filters["label"].removeprefix("provision.solve=")
        return [{"Id": name} for name, label in self.there.items() if label == owner]

    def remove_container(self, name: str, *, force: bool) -> None:
        assert force
        del self.there[name]

    def create_host_config(self, **wish: object) -> dict[str, object]:
        self.wishes.append(wish)
        return wish

    def create_container(
        self, _image: str, *, labels: dict[str, str], **_more: object
    ) -> dict[str, str]:
        self.there["new"] = labels["provision.solve"]
        return {"Id": "new"}

    def start(self, name: str) -> None:
        assert name in self.there
        if not self.starts:
            raise RuntimeError("no such network")


@contextmanager
def untranslated(_what: str) -> Iterator[None]:
    yield


def start(client: FakeClient, request: ContainerRequest) -> None:
    with running(cast("APIClient", client), request, untranslated):
        assert set(client.there) == {"new", "others"}
        # As another process does that has no lock of this one's.
        client.there["more"] = request.owner


def test_leftovers_go_before_and_only_ones_own_afterwards() -> None:
    client = FakeClient()
    start(client, ContainerRequest("sha256:1", "mine"))
    assert set(client.there) == {"others", "more"}


def test_one_that_cannot_be_started_is_removed() -> None:
    client = FakeClient()
    client.starts = False
    with pytest.raises(RuntimeError):
        start(client, ContainerRequest("sha256:1", "mine"))
    assert set(client.there) == {"others"}


def test_selinux_lets_a_container_read_what_is_bound() -> None:
    client = FakeClient()
    binds = {"/run/secrets/rhsm": "/etc/rhsm"}
    start(client, ContainerRequest("sha256:1", "mine", binds=binds))
    assert client.wishes[0]["binds"] == ["/etc/rhsm:/run/secrets/rhsm:ro"]
    assert client.wishes[0]["security_opt"] == ["label=disable"]
    del client.there["more"]
    client.there["left"] = "mine"
    start(client, ContainerRequest("sha256:1", "mine"))
    assert client.wishes[1]["security_opt"] is None


class Answering:
    """An engine whose container has one file and prints what it is given."""

    timeout = 60

    def __init__(self, content: bytes = b"", said: tuple[bytes, ...] = ()) -> None:
        self.content = content
        self.said = said

    def get_archive(self, _id: str, _path: str, _chunk: int) -> tuple[Iterator[bytes], None]:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo("closure")
            entry.size = len(self.content)
            archive.addfile(entry, io.BytesIO(self.content))
        return iter([packed.getvalue()]), None

    def exec_create(self, *_given: object, **_more: object) -> dict[str, str]:
        return {"Id": "e"}

    def exec_start(self, _id: str, *, stream: bool) -> Iterator[bytes]:
        assert stream
        return iter(self.said)

    def exec_inspect(self, _id: str) -> dict[str, int]:
        return {"ExitCode": 0}


def container(client: Answering) -> Container:
    wish = ContainerRequest("sha256:1", "mine")
    return Container(cast("APIClient", client), "c", wish, untranslated)


def test_no_more_is_read_than_a_listing_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_LARGEST", 8 << 20)
    whole = bytes(8 << 20)
    assert container(Answering(whole)).read("/closure") == whole
    with pytest.raises(ProvisionError, match="more than 8 MiB"):
        container(Answering(whole + b"x")).read("/closure")


def test_a_line_without_an_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_LONGEST_LINE", 4)
    lines: list[str] = []
    ran = container(Answering(said=(b"ab\ncde", b"fgh", b"ij", b"k\r\nlm")))
    assert ran.run("true", on_line=lines.append).status == 0
    assert lines == ["ab", "cdefgh", "ijk", "lm"]
