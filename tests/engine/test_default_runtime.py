"""Docker with our runtime as the default one: what outlives restarts of containers and engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.engine import Engine
from kit.hosts import IMAGE, Host, load_base
from kit.pages import snippet
from kit.process import Completed, wait_for
from kit.standins import ALLOWED, GPU, OPEN_NODES, stand_in

_PAGE = "how-to/configure-an-engine.md"
_PLAIN = "nothing\n"
# Where there is no file, there has to be no library and no node either.
_REPORT = f"""
if [ -e /dev/gpu0 ] || ldconfig -p | grep -q libgpu; then
    set -- /dev/gpu0; {OPEN_NODES}; ldconfig -p | grep -o '/opt/.*'; cat /opt/gpu/version
else
    echo nothing
fi
"""


def _decorated(version: str) -> str:
    return f"/dev/gpu0: {ALLOWED}\n/opt/gpu/lib/libgpu.so.1\n{version} /opt/gpu/version\n"


def _install(host: Host, version: str) -> None:
    """What an upgrade does: another entry of the store, and one rename to it."""
    store = host.store("gpu")
    entry = Host(store / version, host.config)
    stand_in(entry, GPU, content=f"{version} ")
    link = store / ".current"
    link.symlink_to(version)
    link.rename(store / "current")


@pytest.fixture
def gpu(host: Host) -> Host:
    """A host with the first version of a driver in its store, which has one node."""
    _install(host, "v1")
    (host.store("gpu") / "current/dev").rename(host.root / "dev")
    host.write_vendor("gpu", {**GPU, "root": "/var/lib/provision/gpu/current"})
    return host


@pytest.fixture(scope="module")
def docker(engine: Engine, shim_config: Path) -> Iterator[Engine]:
    """A Docker engine as the manual sets it up, but without `live-restore` at first."""
    del engine  # it has put the base image into the cache, and has found out what is missing
    settings = json.loads(snippet(_PAGE, "As the default"))
    settings.pop("live-restore")
    environment = {"OCI_DECORATOR_CONFIG": str(shim_config)}
    with Engine(settings=settings, environment=environment) as own:
        load_base(own)
        yield own


@pytest.fixture
def start(docker: Engine) -> Iterator[Callable[..., str]]:
    """Start a container that goes on, with these flags; its id."""

    def start(*flags: str) -> str:
        words = ("--init", *flags, IMAGE, "sleep", "infinity")
        return docker.docker("run", "--detach", *words).stdout.strip()

    yield start
    docker.remove_containers()


def _report(docker: Engine, container: str) -> str:
    return docker.docker("exec", container, "sh", "-c", _REPORT).stdout


@pytest.mark.usefixtures("gpu")
def test_a_flag_is_all_that_it_takes(docker: Engine) -> None:
    def report(*flags: str, check: bool = True) -> Completed:
        return docker.docker("run", "--rm", *flags, IMAGE, "sh", "-c", _REPORT, check=check)

    assert report().stdout == _PLAIN
    assert report("--env=OCI_GPU=").stdout == _decorated("v1")
    assert report("--env=OCI_GPU=all", "--read-only").stdout == _decorated("v1")
    refused = report("--env=OCI_GPU=fly", check=False)
    assert refused.returncode != 0
    assert 'unknown feature "fly"' in refused.stderr


@pytest.mark.usefixtures("gpu")
def test_exec_of_a_decorated_container_finds_everything(
    docker: Engine, start: Callable[..., str]
) -> None:
    assert _report(docker, start("--env=OCI_GPU=")) == _decorated("v1")
    # A variable that only the new process has asks for nothing: the container is made already.
    plain = start()
    late = ("exec", "--env=OCI_GPU=all", plain, "sh", "-c", _REPORT)
    assert docker.docker(*late).stdout == _PLAIN


def test_each_start_of_a_container_brings_the_driver_that_is_installed(
    docker: Engine, gpu: Host, start: Callable[..., str]
) -> None:
    container = start("--env=OCI_GPU=")
    _install(gpu, "v2")
    # It runs on with what it has.
    assert _report(docker, container) == _decorated("v1")
    docker.docker("restart", "--time=1", container)
    assert _report(docker, container) == _decorated("v2")
    _install(gpu, "v3")
    docker.docker("stop", "--time=1", container)
    docker.docker("start", container)
    assert _report(docker, container) == _decorated("v3")


def test_a_driver_that_goes_away_refuses_only_the_next_start(
    docker: Engine, gpu: Host, start: Callable[..., str]
) -> None:
    container = start("--env=OCI_GPU=")
    (gpu.store("gpu") / "current").unlink()
    assert _report(docker, container) == _decorated("v1")
    refused = docker.docker("restart", "--time=1", container, check=False)
    assert refused.returncode != 0
    assert "not installed" in refused.stderr
    _install(gpu, "v2")
    docker.docker("start", container)
    assert _report(docker, container) == _decorated("v2")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("crash", [False, True])
def test_containers_come_back_with_their_devices_after_a_restart_of_the_engine(
    docker: Engine, start: Callable[..., str], *, crash: bool
) -> None:
    decorated, plain = start("--restart=always", "--env=OCI_GPU="), start("--restart=always")
    before = _started(docker, decorated)
    docker.restart(crash=crash)
    _wait_for(docker, decorated, plain)
    assert _started(docker, decorated) != before
    assert _report(docker, decorated) == _decorated("v1")
    assert _report(docker, plain) == _PLAIN


@pytest.mark.parametrize("crash", [False, True])
def test_containers_run_through_a_restart_of_the_engine_with_live_restore(
    docker: Engine, gpu: Host, start: Callable[..., str], *, crash: bool
) -> None:
    docker.restart(settings=json.loads(snippet(_PAGE, "As the default")))
    decorated, plain = start("--env=OCI_GPU="), start()
    before = _started(docker, decorated)
    _install(gpu, "v2")
    docker.restart(crash=crash)
    _wait_for(docker, decorated, plain)
    assert _started(docker, decorated) == before
    assert _report(docker, decorated) == _decorated("v1")
    assert _report(docker, plain) == _PLAIN
    docker.docker("restart", "--time=1", decorated)
    assert _report(docker, decorated) == _decorated("v2")


def _started(docker: Engine, container: str) -> str:
    """When the container was started last, as the engine writes it."""
    return docker.docker("inspect", "--format={{.State.StartedAt}}", container).stdout.strip()


def _wait_for(docker: Engine, *containers: str) -> None:
    """Until an engine that was just started has these running."""
    wanted = {container[:12] for container in containers}

    def are_back() -> bool:
        return wanted <= set(docker.docker("ps", "--quiet").stdout.split())

    log = docker.folder / "dockerd.log"
    wait_for("the containers to come back", are_back, within_s=60, said=log.read_text)
