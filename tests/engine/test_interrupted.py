"""Builds and installs that are killed or run out of something: the next run finishes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kit.engine import Engine
from kit.hosts import DISTRO, IMAGE, OLD_KERNEL, SMALL_DRIVER, Host, load_base
from kit.probe import can_mount, need
from kit.process import run, start, wait_for
from kit.product import BUILD_NETWORK, Provision
from provision.build.image import BuildLog, run_build
from provision.build.workspace import load_settings
from provision.engine.docker_api import ContainerRequest, connect
from provision.progress import Event, Note, Output, Step, listening

pytestmark = pytest.mark.minutes(2)

_TARGET = (SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO)
_BUILD = ("build", *_TARGET, *BUILD_NETWORK)


@pytest.fixture
def unbuilt(engine: Engine, small_build: dict[str, Any]) -> Iterator[str]:
    """The small driver's image, which the engine no longer has."""
    image: str = small_build["image"]
    engine.docker("image", "rm", "--force", image)
    yield image
    # Later tests of this process count on it.
    engine.docker("load", "--quiet", "--input", small_build["archive"])


def _background(provision: Provision, log: Path, *words: str | Path) -> subprocess.Popen[bytes]:
    return start([provision.program, *words], log=log, env=provision.variables())


def _wait(until: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    wait_for("a part of the build", until, within_s=300, pause_s=0.02, or_end_of=process)


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param(3, marks=pytest.mark.tier(1)),
        *(pytest.param(count, marks=pytest.mark.nightly) for count in (0, 1, 5)),
    ],
)
def test_a_build_that_is_killed_is_finished_by_the_next(
    engine: Engine, provision: Provision, unbuilt: str, tmp_path: Path, layers: int
) -> None:
    before, containers = len(engine.layers()), set(engine.containers())
    process = _background(provision, tmp_path / "log", *_BUILD)

    def has_come_so_far() -> bool:
        is_at_work = bool(set(engine.containers()) - containers)
        return is_at_work and len(engine.layers()) >= before + layers

    _wait(has_come_so_far, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert unbuilt not in engine.images()

    again = provision.build(*_TARGET)
    assert (again["image"], again["built"]) == (unbuilt, True)
    provision("verify", unbuilt)


def test_a_build_whose_layer_is_removed_makes_that_layer_again(
    engine: Engine, tmp_path: Path
) -> None:
    """As a matrix does with a finished cell's image, or an admin with `docker image prune`."""
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(300 << 20)
    recipe = f"FROM scratch\nCOPY small /small\nCOPY large /large\nLABEL of={tmp_path.name}\n"
    unnamed = ("image", "ls", "--quiet", "--no-trunc", "--filter", "dangling=true")
    removed: list[str] = []
    notes: list[str] = []

    def remove_first_layer(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)
        elif isinstance(event, Step) and event.number == 3 and not removed:
            made = set(engine.docker(*unnamed).stdout.split()) - before
            # It is refused if the large one was there before this process had its turn.
            if engine.docker("image", "rm", *made, check=False).returncode == 0:
                removed.extend(made)

    with closing(connect(engine.host)) as client, listening(remove_first_layer):
        for turn in range(5):
            before = set(engine.docker(*unnamed).stdout.split())
            files: dict[str, bytes | Path] = {
                "Dockerfile": recipe.encode(),
                "small": os.urandom(64),
                "large": large,
            }
            path = tmp_path / f"log-{turn}"
            with BuildLog(path) as log:
                done = run_build(client, "a test", files, log, state=tmp_path, build_args={})
            if removed:
                break
            engine.docker("image", "rm", str(done.image_id))
    assert len(removed) == 1
    assert any("removed meanwhile" in note for note in notes), path.read_text()
    image = str(done.image_id)
    count = ("--format", "{{len .RootFS.Layers}}")
    layers = engine.docker("image", "inspect", *count, image).stdout
    assert layers.strip() == "2"
    engine.docker("image", "rm", image)


def test_builds_of_two_architectures_share_an_engine(engine: Engine, tmp_path: Path) -> None:
    """A classic builder takes layers of a `FROM scratch` whatever architecture they are of.

    And what a label makes of one is of its own.
    """
    recipe = "FROM scratch AS files\nCOPY file /one/\nFROM scratch\nCOPY --from=files /one /two\n"
    files: dict[str, bytes | Path] = {"Dockerfile": recipe.encode(), "file": os.urandom(64)}
    made = []
    for architecture in ("arm64", "amd64", "arm64"):
        platform = f"linux/{architecture}"
        with closing(connect(engine.host)) as client, BuildLog(tmp_path / "log") as log:
            done = run_build(
                client, "a test", files, log, state=tmp_path, build_args={}, platform=platform
            )
        image = str(done.image_id)
        said = engine.docker("image", "inspect", "--format={{.Architecture}}", image).stdout
        made.append((image, said.strip()))
    assert [said for _, said in made] == ["arm64", "amd64", "arm64"]
    engine.docker("image", "rm", *{image for image, _ in made})


def test_a_build_leaves_processors_to_other_containers(engine: Engine, tmp_path: Path) -> None:
    """On a host in production, where a unit's `Nice=` reaches no container."""
    look = "cat /sys/fs/cgroup/cpu/cpu.shares /sys/fs/cgroup/cpu.weight 2>/dev/null || true"

    def of_containers() -> int:
        return int(engine.docker("run", "--rm", IMAGE, "sh", "-c", look).stdout)

    found = []

    def note(event: Event) -> None:
        if isinstance(event, Output) and event.text.strip().isdigit():
            found.append(int(event.text))

    recipe = f"FROM {IMAGE}\n# {tmp_path.name}\nRUN {look}; : {tmp_path.name}\n"
    files: dict[str, bytes | Path] = {"Dockerfile": recipe.encode()}
    settings = tmp_path / "etc/provision/provision.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'[engine]\nhost = "{engine.host}"\n')
    load_base(engine)
    with (
        closing(load_settings(tmp_path).engine()) as client,
        BuildLog(tmp_path / "log") as log,
        listening(note),
    ):
        run_build(client, "a test", files, log, state=tmp_path, build_args={})
        request = ContainerRequest(IMAGE, tmp_path.name, "none")
        with client.container(request) as container:
            container.run(look, on_line=lambda line: found.append(int(line)))
    assert len(found) == 2
    assert max(found) * 4 <= of_containers()


_AT_WORK = """\
import sys
from provision.engine.docker_api import ContainerRequest, connect
with connect(sys.argv[1]).container(ContainerRequest(sys.argv[2], "a test", "none")) as container:
    container.run("sleep 600", on_line=print)
"""


def test_a_container_ends_with_the_process_that_started_it(engine: Engine, tmp_path: Path) -> None:
    words = [sys.executable, "-c", _AT_WORK, engine.host, IMAGE]
    process = start(words, log=tmp_path / "log")
    label = ("--quiet", "--filter", "label=provision.solve=a test")

    def at_work() -> bool:
        (found, *_) = [*engine.docker("ps", *label).stdout.split(), ""]
        return found != "" and "sleep 600" in engine.docker("top", found, check=False).stdout

    _wait(at_work, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for("its end", lambda: not engine.docker("ps", "-a", *label).stdout, within_s=30)


@pytest.mark.nightly
def test_an_engine_that_dies_in_mid_build_is_reported_and_the_next_build_finishes(
    engine: Engine, tmp_path: Path
) -> None:
    del engine  # a session's engine first: it fills the cache that the ones below load from
    data = tmp_path / "data"
    log = tmp_path / "log"
    with Engine(data) as dying:
        load_base(dying)
        process = _background(Provision(dying.host), log, *_BUILD)
        _wait(dying.containers, process)
        dying.kill()
        assert process.wait(120) == 1
    text = log.read_text()
    assert "engine" in text
    assert "Traceback" not in text
    with Engine(data) as alive:
        provision = Provision(alive.host)
        provision("verify", provision.build(*_TARGET)["image"])


@pytest.fixture
def small_disk(host: Host) -> Iterator[Path]:
    """The host's store on a file system without room; `mount -o remount,size=…` makes some."""
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    store = host.root / "var/lib/provision"
    store.mkdir(parents=True)
    run(["mount", "-t", "tmpfs", "-o", "size=32k", "none", store])
    yield store
    run(["umount", store])


def test_a_full_disk_leaves_nothing_half_done(
    provision: Provision, small_build: dict[str, Any], host: Host, small_disk: Path
) -> None:
    install = ("install", small_build["image"], "--root", host.root)
    status, error = provision.failure(*install)
    assert status == 1
    assert "is full" in error["message"]
    assert str(small_disk) in error["message"]
    assert not list(small_disk.rglob("*.ko*"))
    assert not (host.store(SMALL_DRIVER) / "current").exists()
    assert not (host.config_dir / f"{SMALL_DRIVER}.json").exists()

    run(["mount", "-o", "remount,size=64m", small_disk])
    provision(*install)
    provision("verify", host.entry(SMALL_DRIVER))
