"""Whatever a run raises, others can read what became of it: in status.json and the exit code."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
import requests

from kit.artifact import KERNEL
from kit.host_tree import DRIVER, NEXT
from unit.agent.host import Host
from unit.cli.outcome import Outcome

Call = Callable[..., Outcome]


def _raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_given: object, **_more: object) -> Any:  # noqa: ANN401 - nothing comes back
        raise error

    return fail


def _status(host: Host) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((host.root / "run/provision/status.json").read_text())
    return document


@pytest.mark.parametrize(
    "error",
    [
        tarfile.ReadError("not a tar file"),
        requests.ConnectionError("Connection aborted"),
        RecursionError("too deep"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_library_raises_in_an_action_is_a_failure_of_that_action(
    error: Exception, host: Host, call: Call
) -> None:
    host.configure(f"[drivers.other]\n[drivers.{DRIVER}]\n")

    def build(_settings: object, resolved: Any, **more: bool) -> Any:  # noqa: ANN401
        if resolved.pin.driver.name == "other":
            raise error
        return host.build(None, resolved, **more)

    host.builds = build
    done = call("apply", "--root", host.root)
    assert done.code == 1
    assert str(error) in done.out
    document = _status(host)
    assert (document["state"], document["exit_code"]) == ("failed", 1)
    assert type(error).__name__ in document["error"]["message"]
    assert "Traceback" in document["error"]["details"]
    # The other driver is not affected.
    states = {driver["name"]: driver["is_ready"] for driver in document["drivers"]}
    assert states == {"other": False, DRIVER: True}


def test_a_defect_shows_even_where_what_is_there_serves(ready: Host, call: Call) -> None:
    ready.builds = _raising(tarfile.ReadError("not a tar file"))
    assert call("apply", "--update", "--root", ready.root).code == 1
    assert _status(ready)["state"] == "failed"
    assert _status(ready)["drivers"][0]["is_ready"]
    document = call("apply", "--update", "--root", ready.root, "--json").document
    assert "ReadError" in document["error"]["message"]


_DEFECT, _DENIED = ValueError("no"), PermissionError(13, "no")


@pytest.mark.parametrize(
    ("where", "words", "error", "code"),
    [
        ("provision.agent.run.clean", ["apply"], KeyboardInterrupt(), 130),
        ("provision.host.kernels._busy", ["apply", "--wait-kernel"], _DEFECT, 1),
        ("provision.agent.run.linked_kernels", ["apply", "--kernel", NEXT], _DEFECT, 1),
        ("provision.agent.run.clean", ["apply", "--boot"], KeyboardInterrupt(), 130),
        ("provision.agent.run.is_written", ["apply"], _DENIED, 1),
        # A host that can't be looked at.
        ("provision.agent.run.observe", ["apply"], _DEFECT, 1),
        ("provision.agent.removal.find_kernels", ["apply", "--timer"], _DENIED, 1),
    ],
)
def test_an_error_that_escapes_a_run_is_reported_too(
    where: str,
    words: list[str],
    error: BaseException,
    code: int,
    ready: Host,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call("apply", "--root", ready.root)
    assert _status(ready)["state"] == "ready"
    with monkeypatch.context() as patch:
        patch.setattr(where, _raising(error))
        assert call(*words, "--root", ready.root).code == code
    document = _status(ready)
    assert (document["state"], document["exit_code"]) == ("failed", code)
    assert document["error"]["message"]
    if "observe" in where and words == ["apply"]:
        assert (document["drivers"], document["is_ready"]) == ([], False)
    # It is past when the next run ends well.
    assert call("apply", "--root", ready.root).code == 0
    document = _status(ready)
    assert (document["state"], document["error"]) == ("ready", None)
    assert document["kernels"]["running"] == KERNEL
