"""Labels and events of a node, with the API stood in for; tests/engine has the real client."""

from __future__ import annotations

import importlib
import re
from types import SimpleNamespace
from typing import Any

import pytest

from provision.errors import NotFoundError, ProvisionError
from provision.export.node_labels import labels_of, publish


def status(state: str = "ready", version: str | None = "535.261.03", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    slot = {"release": "6.1.0-56-amd64", "reason": more.get("reason"), "resolution": "Build it."}
    driver = {
        "name": "nvidia",
        "wanted": "535",
        "state": state,
        "version": version,
        "kernels": [slot],
    }
    return {"is_ready": state == "ready", "drivers": [driver]}


class Api:
    """A node, and what is asked for."""

    def __init__(self, labels: dict[str, str] | None) -> None:
        self.labels = labels
        self.patches: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def read_node(self, name: str, **_: object) -> SimpleNamespace:
        if self.error:
            raise self.error
        return SimpleNamespace(metadata=SimpleNamespace(name=name, uid="u", labels=self.labels))

    def patch_node(self, _name: str, body: dict[str, Any], **_: object) -> None:
        self.patches.append(body["metadata"]["labels"])

    def create_namespaced_event(self, _space: str, body: dict[str, Any], **_: object) -> None:
        self.events.append(body)


def test_labels_say_state_and_version() -> None:
    assert labels_of(status()) == {
        "provision/ready": "true",
        "provision/nvidia.state": "ready",
        "provision/nvidia.version": "535.261.03",
    }
    assert labels_of(status(version="1:2.0+deb~" + "x" * 80))["provision/nvidia.version"] == (
        "1_2.0_deb_" + "x" * 53
    )
    assert "provision/nvidia.version" not in labels_of(status(version=None))


def test_only_what_changed_is_sent() -> None:
    api = Api({"other": "kept", "provision/old.state": "ready", "provision/ready": "true"})
    done = publish(status(), "node-1", api)
    assert api.patches == [
        {
            "provision/old.state": None,
            "provision/nvidia.state": "ready",
            "provision/nvidia.version": "535.261.03",
        }
    ]
    assert done.events == {"nvidia": "ready"}
    again = Api(labels_of(status()))
    assert publish(status(), "node-1", again).labels == {}
    assert (again.patches, again.events) == ([], [])


@pytest.mark.parametrize(
    ("state", "kind", "reason"),
    [
        ("ready", "Normal", "DriverReady"),
        ("reboot-required", "Warning", "DriverRebootRequired"),
        ("failed", "Warning", "DriverFailed"),
    ],
)
def test_a_state_is_one_event(state: str, kind: str, reason: str) -> None:
    api = Api(None)
    publish(status(state, reason="It does not build." + "x" * 2000), "node-1", api)
    (event,) = api.events
    assert (event["type"], event["reason"]) == (kind, reason)
    assert event["involvedObject"]["name"] == "node-1"
    assert event["message"].startswith(f"nvidia 535.261.03 is {state}. 6.1.0-56-amd64: It does not")
    assert len(event["message"]) <= 1024
    same = Api(labels_of(status(state)))
    publish(status(state), "node-1", same)
    assert same.events == []


def test_any_drivers_name_is_one_that_kubernetes_takes() -> None:
    long = status()
    long["drivers"][0]["name"] = "a_" + "b" * 62
    assert max(len(label.partition("/")[2]) for label in labels_of(long)) == 63
    api = Api({})
    publish(long, "node-1", api)
    (event,) = api.events
    assert re.fullmatch(r"node-1\.a-b{62}\.[0-9a-f]+", event["metadata"]["name"])
    again = Api(labels_of(long))
    publish(long, "node-1", again)
    assert again.events == []


def test_an_event_that_fails_is_sent_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api({})
    monkeypatch.setattr(api, "create_namespaced_event", lambda *_, **__: 1 / 0)
    with pytest.raises(ProvisionError):
        publish(status(), "node-1", api)
    assert api.patches == []


class _HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("said no")
        self.status, self.reason = status, "said no"


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (_HttpError(404), "The cluster has no node 'node-1'"),
        (_HttpError(403), "does not let this account"),
        (_HttpError(500), "could not be brought up to date"),
        (OSError("refused"), "could not be brought up to date"),
    ],
)
def test_what_goes_wrong_is_said(error: Exception, match: str) -> None:
    api = Api({})
    api.error = error
    with pytest.raises(ProvisionError, match=match):
        publish(status(), "node-1", api)


def test_without_the_client_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(NotFoundError) as raised:
        publish(status(), "node-1")
    assert "provision[kubernetes]" in str(raised.value.resolution)
    assert "python3-kubernetes" in str(raised.value.resolution)
