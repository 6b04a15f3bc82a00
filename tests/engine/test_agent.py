"""The agent with a real engine: `provision apply` keeps a host's tree as provision.toml wants it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from kit.agent_host import AgentHost
from kit.hosts import NEW_KERNEL, OLD_KERNEL, SMALL_DRIVER

if TYPE_CHECKING:
    from pathlib import Path

    from kit.product import Provision

_WANTED = f"[drivers.{SMALL_DRIVER}]\n"


@pytest.fixture
def agent_host(tmp_path: Path) -> AgentHost:
    """A host on the old kernel that boots the new one next, and should have the small driver."""
    host = AgentHost.make(tmp_path / "host", running=OLD_KERNEL, others=[NEW_KERNEL])
    host.configure(_WANTED)
    return host


@pytest.fixture
def applied(agent_host: AgentHost, provision: Provision) -> AgentHost:
    """The same after an apply."""
    document = _apply(provision, agent_host)
    assert document["status"]["state"] == "ready", document
    return agent_host


def _apply(provision: Provision, host: AgentHost, *words: str, code: int = 0) -> dict[str, Any]:
    done = provision("apply", "--root", host.root, *words, "--json", check=False)
    assert done.returncode == code, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _kinds(document: dict[str, Any]) -> list[str]:
    return [f"{action['kind']} {action['kernel']}" for action in document["actions"]]


def test_a_host_gets_its_driver_for_this_kernel_and_the_next(
    provision: Provision, agent_host: AgentHost
) -> None:
    planned = provision.json("plan", "--root", agent_host.root)
    document = _apply(provision, agent_host)
    kinds = [f"prepare {OLD_KERNEL}", f"activate {OLD_KERNEL}", f"prepare {NEW_KERNEL}"]
    assert _kinds(planned) == _kinds(document) == kinds
    assert agent_host.current(SMALL_DRIVER) == agent_host.link(SMALL_DRIVER, OLD_KERNEL)
    for release in (OLD_KERNEL, NEW_KERNEL):
        entry = agent_host.store(SMALL_DRIVER) / agent_host.link(SMALL_DRIVER, release)
        assert (entry / "lib/modules" / release).is_dir()
        provision("verify", entry)
    status = json.loads((agent_host.root / "run/provision/status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("ready", 0)
    assert agent_host.leftovers() == []


def test_the_second_time_nothing_is_done_and_no_engine_is_asked(
    provision: Provision, applied: AgentHost
) -> None:
    without = type(provision)("unix:///nonexistent/docker.sock")
    document = _apply(without, applied)
    assert (document["actions"], document["changed"]) == ([], False)
    assert without.json("plan", "--root", applied.root)["actions"] == []
