"""Whatever a run raises, others can read what became of it: in status.json and the exit code."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
import requests

from kit.host_tree import DRIVER, KERNEL, NEXT, HostTree
from unit.cli.outcome import Outcome
from unit.cli.states import STATES
from unit.killing import KILLER

Call = Callable[..., Outcome]


@pytest.fixture
def call(host_tree: HostTree, call: Call) -> Call:
    return lambda *words: call(*words, "--root", host_tree.root)


@pytest.fixture
def ready(host_tree: HostTree, call: Call) -> HostTree:
    STATES["ready"](host_tree, call)
    return host_tree


def _status(host: HostTree) -> dict[str, Any]:
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
    error: Exception, host_tree: HostTree, call: Call
) -> None:
    host_tree.want("[drivers.another]\n")
    host_tree.offer()
    recipe = (host_tree.root / f"srv/drivers/{DRIVER}/driver.toml").read_text()
    host_tree.write("srv/drivers/another/driver.toml", recipe.replace(DRIVER, "another"))
    shutil.copytree(host_tree.root / f"srv/images/{DRIVER}", host_tree.root / "srv/images/another")
    with KILLER.raising(error, "srv/images/another"):
        done = call("apply")
    assert done.code == 1
    assert str(error) in done.out
    document = _status(host_tree)
    assert (document["state"], document["exit_code"]) == ("failed", 1)
    assert type(error).__name__ in document["error"]["message"]
    assert "Traceback" in document["error"]["details"]
    # The other driver is not affected.
    states = {driver["name"]: driver["is_ready"] for driver in document["drivers"]}
    assert states == {"another": False, DRIVER: True}


def test_a_defect_shows_even_where_what_is_there_serves(ready: HostTree, call: Call) -> None:
    with KILLER.raising(tarfile.ReadError("not a tar file"), "srv/images/demo"):
        document = call("apply", "--update", "--json")
    assert document.code == 1
    assert "ReadError" in document.document["error"]["message"]
    assert _status(ready)["state"] == "failed"
    assert _status(ready)["drivers"][0]["is_ready"]


_DEFECT, _DENIED = ValueError("no"), PermissionError(13, "no")
_STORE = f"var/lib/provision/{DRIVER}"


@pytest.mark.parametrize(
    ("where", "words", "error", "code"),
    [
        (_STORE, ["apply"], KeyboardInterrupt(), 130),
        ("var/lib/dpkg/lock", ["apply", "--wait-kernel"], _DEFECT, 1),
        (f"{_STORE}/kernels", ["apply", "--kernel", NEXT], _DEFECT, 1),
        ("proc/modules", ["apply", "--boot"], KeyboardInterrupt(), 130),
        ("etc/os-release", ["apply"], _DENIED, 1),
        # When all is done.
        (f"{_STORE}/*/load", ["apply"], _DEFECT, 1),
        # A host that can't be looked at.
        ("lib/modules", ["apply"], _DEFECT, 1),
        # Garbage collection, after the run.
        ("var/lib/dpkg/lock", ["apply", "--timer"], _DEFECT, 1),
    ],
)
def test_an_error_that_escapes_a_run_is_reported_too(
    where: str, words: list[str], error: BaseException, code: int, ready: HostTree, call: Call
) -> None:
    assert _status(ready)["state"] == "ready"
    ready.write("var/lib/dpkg/lock", "")
    with KILLER.raising(error, where):
        assert call(*words).code == code
    document = _status(ready)
    assert (document["state"], document["exit_code"]) == ("failed", code)
    assert document["error"]["message"]
    if where == "lib/modules" and words == ["apply"]:
        assert (document["drivers"], document["is_ready"]) == ([], False)
    # It is past when the next run ends well.
    assert call("apply").code == 0
    document = _status(ready)
    assert (document["state"], document["error"]) == ("ready", None)
    assert document["kernels"]["running"] == KERNEL
