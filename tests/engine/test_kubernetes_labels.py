"""Labels and events by the official client, against a server that talks as an API server does."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest

from kit.agent_host import AgentHost
from kit.product import Provision

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NODE = "/api/v1/nodes/node-1"
_EVENTS = "/api/v1/namespaces/default/events"
_MERGES = {"application/strategic-merge-patch+json", "application/merge-patch+json"}


class Server(ThreadingHTTPServer):
    """One node, and the events about it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.labels: dict[str, str] = {"kubernetes.io/hostname": "node-1"}
        self.events: list[dict[str, Any]] = []

    def node(self) -> dict[str, Any]:
        metadata = {"name": "node-1", "uid": "0c6e", "labels": self.labels}
        return {"kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": {}, "status": {}}


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path == _NODE:
            self._answer(200, self.server.node())
        else:
            self._refuse(404, "NotFound")

    def do_PATCH(self) -> None:
        # What the client patches with is up to its version.
        body = self._body()
        if self.path != _NODE or self.headers["Content-Type"] not in _MERGES:
            self._refuse(415, "UnsupportedMediaType")
            return
        for key, value in body["metadata"]["labels"].items():
            if value is None:
                self.server.labels.pop(key, None)
            else:
                self.server.labels[key] = value
        self._answer(200, self.server.node())

    def do_POST(self) -> None:
        body = self._body()
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "Event", **body}, "1.34", strict=True
        )
        self.server.events.append(body)
        self._answer(201, {"apiVersion": "v1", "kind": "Event", **body})

    def log_message(self, *_args: object) -> None:
        """Say nothing."""

    def _body(self) -> Any:  # noqa: ANN401 - JSON
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _refuse(self, code: int, reason: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason}
        self._answer(code, {**status, "code": code, "message": f"{self.path}: {reason}"})

    def _answer(self, code: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def _serving() -> Iterator[Server]:
    server = Server()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _kubeconfig(folder: Path, server: Server) -> Path:
    context = {"cluster": "c", "user": "u"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "users": [{"name": "u", "user": {"token": "made-up"}}],
        "contexts": [{"name": "x", "context": context}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document))
    return path


def test_a_node_has_the_labels_of_its_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = AgentHost.make(tmp_path / "host", running="6.1.0-47-amd64")
    host.configure("[drivers.v4l2loopback]\n")
    provision = Provision("unix:///nowhere")
    with _serving() as server:
        monkeypatch.setenv("KUBECONFIG", str(_kubeconfig(tmp_path, server)))
        words = ("status", "--root", host.root, "--kubernetes")
        provision.json(*words, "node-1")
        state = server.labels["provision/v4l2loopback.state"]
        assert server.labels["provision/ready"] == "false"
        assert server.labels["kubernetes.io/hostname"] == "node-1"
        (event,) = server.events
        assert event["involvedObject"] == {
            "kind": "Node",
            "apiVersion": "v1",
            "name": "node-1",
            "uid": "0c6e",
        }
        assert event["message"].startswith(f"v4l2loopback latest is {state}.")
        provision.json(*words, "node-1")
        assert len(server.events) == 1
        host.configure("")
        provision.json(*words, "node-1")
        assert "provision/v4l2loopback.state" not in server.labels
        code, error = provision.failure(*words, "node-2")
        assert (code, "no node 'node-2'" in error["message"]) == (3, True)
