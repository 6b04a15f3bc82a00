"""The agent with a real engine: `provision apply` keeps a host as provision.toml wants it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kit.agent_host import AgentHost
from kit.engine import Engine
from kit.fileserver import served
from kit.hosts import NEW_KERNEL, OLD_KERNEL, SMALL_DRIVER
from kit.made_up import BROKEN_LINE, MADE_UP, made_up_source, write_made_up
from kit.process import run, wait_for
from kit.product import Provision

pytestmark = pytest.mark.minutes(3)

_WANTED = f"[drivers.{SMALL_DRIVER}]\n"
# What an agent in a pod has: the host's root in a folder, here of a host in Flatcar's layout.
_IN_A_POD = """
mount --rbind / "$1"
mount -t tmpfs boot "$1/boot"
mkdir "$1/boot/flatcar"
mount -t tmpfs programs "$1/usr/local/bin"
printf '#!/bin/sh\necho CURRENT_OP=%s\n' "$2" >"$1/usr/local/bin/update_engine_client"
chmod +x "$1/usr/local/bin/update_engine_client"
exec "$3" status --json --root "$1"
"""
_BROKEN = "1.4"
_LONG = "1.1"


@pytest.fixture
def agent_host(tmp_path: Path) -> AgentHost:
    """A host on the old kernel that boots the new one next, and should have the small driver."""
    host = AgentHost.make(tmp_path / "host", running=OLD_KERNEL, others=[NEW_KERNEL])
    host.configure(_WANTED)
    return host


@pytest.fixture(scope="module")
def applied_once(provision: Provision, tmp_path_factory: pytest.TempPathFactory) -> AgentHost:
    """Such a host after an apply; made once, and only to be copied."""
    root = tmp_path_factory.mktemp("applied") / "host"
    host = AgentHost.make(root, running=OLD_KERNEL, others=[NEW_KERNEL])
    host.configure(_WANTED)
    document = _apply(provision, host)
    assert document["status"]["state"] == "ready", document
    return host


@pytest.fixture
def applied(applied_once: AgentHost, tmp_path: Path) -> AgentHost:
    """A host after an apply."""
    shutil.copytree(applied_once.root, tmp_path / "host", symlinks=True)
    return AgentHost(tmp_path / "host")


def _apply(provision: Provision, host: AgentHost, *words: str, code: int = 0) -> dict[str, Any]:
    return provision.json("apply", "--root", host.root, *words, status=code)


def _kinds(document: dict[str, Any]) -> list[str]:
    return [f"{action['kind']} {action['kernel']}" for action in document["actions"]]


@pytest.mark.tier(1)
def test_a_host_gets_its_driver_for_this_kernel_and_the_next(
    provision: Provision, agent_host: AgentHost
) -> None:
    planned = provision.json("plan", "--root", agent_host.root)
    assert {one["source"] for one in planned["artifacts"]} == {"build"}
    assert not agent_host.store(SMALL_DRIVER).exists()
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


@pytest.mark.tier(1)
def test_the_second_time_nothing_is_done_and_no_engine_is_asked(
    provision: Provision, applied: AgentHost
) -> None:
    without = type(provision)("unix:///nonexistent/docker.sock")
    document = _apply(without, applied)
    assert (document["actions"], document["changed"]) == ([], False)
    assert without.json("plan", "--root", applied.root)["actions"] == []


def test_a_wiped_store_is_filled_again_from_the_images(
    provision: Provision, applied: AgentHost
) -> None:
    before = applied.entries(SMALL_DRIVER)
    shutil.rmtree(applied.root / "var/lib/provision")
    document = _apply(provision, applied)
    assert "(from: engine)" in document["actions"][0]["result"]
    assert applied.entries(SMALL_DRIVER) == before


@pytest.fixture
def made_up(agent_host: AgentHost, tmp_path: Path) -> Iterator[AgentHost]:
    """A host with one kernel, and a driver of its own whose newest version is broken."""
    agent_host.remove_kernel(NEW_KERNEL)
    files = tmp_path / "files"
    sources = {version: made_up_source(files, version) for version in ("1.2", "1.3")}
    sources[_BROKEN] = made_up_source(files, _BROKEN, extra=BROKEN_LINE)
    sources[_LONG] = made_up_source(files, _LONG, seconds=20)
    with served(files) as url:
        write_made_up(agent_host.root / "srv/drivers", sources, url)
        yield agent_host


def _want(host: AgentHost, version: str) -> None:
    host.configure(f'[drivers.{MADE_UP}]\nversion = "{version}"\n')
    path = host.root / "etc/provision/provision.toml"
    path.write_text('catalogue = ["/srv/drivers"]\n' + path.read_text())


def _version(host: AgentHost) -> str:
    tool = host.store(MADE_UP) / "current/driver/usr/bin/hello-tool"
    return tool.read_text().split()[-1]


def test_a_version_that_does_not_compile_costs_nothing_and_is_not_tried_again(
    provision: Provision, made_up: AgentHost
) -> None:
    _want(made_up, "1.3")
    _apply(provision, made_up)
    _want(made_up, _BROKEN)
    document = _apply(provision, made_up, code=1)
    slot = AgentHost.slot(document["status"], MADE_UP, OLD_KERNEL)
    assert (slot["state"], slot["is_ready"], slot["version"]) == ("failed", True, "1.3")
    assert slot["failure"]["reason"] == "compile"
    assert "no_such_thing" in slot["failure"]["details"]
    assert "no_such_thing" in document["error"]["details"]
    assert _version(made_up) == "1.3"
    again = _apply(provision, made_up, code=1)
    assert again["actions"] == []
    assert _kinds(_apply(provision, made_up, "--retry", code=1)) == [f"prepare {OLD_KERNEL}"]
    _want(made_up, "1.2")
    assert _apply(provision, made_up)["status"]["state"] == "ready"
    assert _version(made_up) == "1.2"


@pytest.mark.nightly
def test_an_engine_that_is_restarted_in_a_build_is_waited_for(
    provision: Provision, made_up: AgentHost, engine: Engine
) -> None:
    _want(made_up, _LONG)
    words = ("apply", "--root", made_up.root)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(provision, *words, check=False)
        wait_for("make", lambda: running.done() or _is_compiling(engine), within_s=600)
        engine.restart(crash=True)
        done = running.result()
    assert done.returncode == 0, done.output
    assert "Waiting for the engine" in done.stderr
    assert _version(made_up) == _LONG


def _is_compiling(engine: Engine) -> bool:
    """Whether the long step of the build is under way."""
    return any(
        "sleep" in engine.docker("top", name, check=False).stdout for name in engine.containers()
    )


@pytest.mark.parametrize(
    ("said", "notes"), [("UPDATE_STATUS_IDLE", 0), ("", 1)], ids=["nothing waits", "unclear"]
)
def test_an_agent_in_a_pod_learns_from_the_hosts_updater_what_boots_next(
    said: str, notes: int, tmp_path: Path
) -> None:
    namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    words = (_IN_A_POD, "sh", tmp_path, said, Provision().program)
    done = run([*namespaces, "sh", "-euc", *words], check=False)
    assert len(json.loads(done.stdout)["kernels"]["notes"]) == notes
