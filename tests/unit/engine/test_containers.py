"""Which containers are started and removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest
from docker import APIClient
from docker.errors import APIError
from requests import Response

from provision.engine import docker_api as containers
from provision.engine.docker_api import Container, ContainerRequest, Engine, container_owner
from provision.engine.tar_streams import pack
from provision.errors import ProvisionError


class FakeClient:
    """An engine with a container of a killed run, and one of another process."""

    def __init__(self) -> None:
        self.there = {"left": "mine", "others": "theirs"}
        self.wishes: list[dict[str, Any]] = []
        self.starts = True
        self.running: set[str] = set()
        self.signals: list[str] = []

    def containers(self, *, filters: dict[str, str], **which: bool) -> list[dict[str, str]]:
        assert which == {"all": True}
        owner = filters["label"].removeprefix("provision.solve=")
        return [{"Id": name} for name, label in self.there.items() if label == owner]

    def remove_container(self, name: str, *, force: bool) -> None:
        assert force
        del self.there[name]

    def kill(self, name: str, signal: str) -> None:
        self.signals.append(signal)
        if name not in self.running:
            raise APIError("is not running")
        self.running.remove(name)
        # As asked for by auto_remove.
        del self.there[name]

    def create_host_config(self, **wish: object) -> dict[str, object]:
        self.wishes.append(wish)
        return wish

    def create_container(
        self, _image: str, *, labels: dict[str, str], **_more: object
    ) -> dict[str, str]:
        self.there["new"] = labels["provision.solve"]
        return {"Id": "new"}

    def attach_socket(self, name: str, params: dict[str, int]) -> BytesIO:
        assert name in self.there
        assert params == {"stdin": 1, "stream": 1}
        return BytesIO()

    def start(self, name: str) -> None:
        assert name in self.there
        if not self.starts:
            raise RuntimeError("no such network")
        self.running.add(name)


def running(client: FakeClient, request: ContainerRequest) -> AbstractContextManager[Container]:
    return Engine(cast("APIClient", client), "unix:///fake.sock").container(request)


def start(client: FakeClient, request: ContainerRequest) -> None:
    with running(client, request):
        assert set(client.there) == {"new", "others"}
        # As another process does that has no lock of this one's.
        client.there["more"] = request.owner


def test_leftovers_go_before_and_only_ones_own_afterwards() -> None:
    client = FakeClient()
    start(client, ContainerRequest("sha256:1", "mine"))
    assert set(client.there) == {"others", "more"}


def test_hosts_that_share_an_engine_keep_each_others_containers(tmp_path: Path) -> None:
    state = tmp_path / "state"
    owner = container_owner(state, "work")
    assert (container_owner(state, "work"), container_owner(state, "other") != owner) == (
        owner,
        True,
    )
    # Another host has its state at the same path.
    state.rename(tmp_path / "elsewhere")
    assert container_owner(state, "work") != owner


def test_one_that_cannot_be_started_is_removed() -> None:
    client = FakeClient()
    client.starts = False
    with pytest.raises(RuntimeError):
        start(client, ContainerRequest("sha256:1", "mine"))
    assert set(client.there) == {"others"}


def test_one_that_ended_by_itself_is_removed() -> None:
    client = FakeClient()
    with running(client, ContainerRequest("sha256:1", "mine")):
        client.running.clear()
    assert set(client.there) == {"others"}


def test_only_a_failure_waits_for_the_end_of_a_container() -> None:
    """Its first process may not have got to its handler of signals by then."""
    client = FakeClient()
    request = ContainerRequest("sha256:1", "mine")
    start(client, request)
    with (
        pytest.raises(ZeroDivisionError),
        running(client, request),
    ):
        raise ZeroDivisionError
    assert client.signals == ["TERM", "KILL"]
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


class TalkingClient:
    """An engine whose container prints and writes prepared output."""

    base_url, api_version = "http://engine.example", "1.43"
    status = 200
    # Bytes until the connection ends.
    sent: int | None = None

    def __init__(self, *, chunks: tuple[bytes, ...] = (), content: bytes = b"") -> None:
        self.chunks = chunks
        self.tar = pack({"file": content}).read()

    def exec_create(self, *_given: object, **_more: object) -> dict[str, str]:
        return {"Id": "exec"}

    def post(self, _url: str, **_given: object) -> Response:
        response = Response()
        response.status_code = self.status
        frames = (b"\1\0\0\0" + len(one).to_bytes(4, "big") + one for one in self.chunks)
        response.raw = BytesIO(b"".join(frames)[: self.sent])
        return response

    def exec_inspect(self, _name: str) -> dict[str, int]:
        return {"ExitCode": 0}

    def get_archive(self, *_given: object) -> tuple[Iterator[bytes], None]:
        return iter((self.tar,)), None

    def container(self) -> Container:
        request = ContainerRequest("sha256:1", "mine")
        return Container(cast("APIClient", self), "c", request, lambda _what: nullcontext())


def test_a_line_without_an_end_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_MAX_LINE", 4)
    client = TalkingClient(chunks=(b"a\nabcdefg", b"hij", b"kl\nz"))
    seen: list[str] = []
    client.container().run("x", on_line=seen.append)
    assert "".join(seen) == "aabcdefghijklz"
    assert max(map(len, seen)) <= 8


@pytest.mark.parametrize("sent", [3, 8, 12])
def test_a_connection_that_ends_in_mid_output_is_an_error(sent: int) -> None:
    client = TalkingClient(chunks=(b"a line that is never whole\n",))
    client.sent = sent
    with pytest.raises(ConnectionError):
        client.container().run("x", on_line=lambda _line: None)


def test_a_script_that_the_engine_does_not_start_is_an_error() -> None:
    client = TalkingClient()
    client.status = 409
    with pytest.raises(APIError):
        client.container().run("x", on_line=lambda _line: None)


def test_a_file_of_a_container_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_MAX_FILE", 4)
    assert TalkingClient(content=b"1234").container().read("/file") == b"1234"
    with pytest.raises(ProvisionError):
        TalkingClient(content=b"12345").container().read("/file")
