"""Attacks on trust that need a real engine: an image that calls itself one that was built here.

The image is pulled by a short name from what the engine takes for Docker Hub, or loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.engine import Engine
from kit.hosts import DISTRO, IMAGE, OLD_KERNEL, SMALL_DRIVER, Host
from kit.product import Provision
from kit.registry import serving_registry
from provision.build.image import BuildLog, run_build
from provision.engine.docker_api import connect

_TARGET = (SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO)


@dataclass(frozen=True, slots=True)
class _Victim:
    """A machine whose engine has a stranger's image, and that has built nothing."""

    engine: Engine
    provision: Provision
    # What `provision build` said where the genuine image was built.
    built: dict[str, Any]
    # File of its Pin.
    pin: Path
    # A registry that the victim may push to.
    registry: str


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry in place of Docker Hub, to which anyone may push."""
    with serving_registry(tmp_path_factory.mktemp("hub")) as address:
        yield address


@pytest.fixture(params=["pulled", "loaded"])
def victim(
    request: pytest.FixtureRequest,
    engine: Engine,
    provision: Provision,
    small_build: dict[str, Any],
    hub: str,
    tmp_path: Path,
) -> Iterator[_Victim]:
    """The stranger has the genuine image's Pin and labels, and puts another content beside them."""
    name = small_build["image"]
    (tmp_path / "Dockerfile").write_text(f"FROM {name}\nCOPY more /more\n")
    (tmp_path / "more").write_text("of a stranger\n")
    theirs = f"{hub}/{name}"
    engine.docker("build", "--quiet", "--tag", theirs, tmp_path)
    engine.docker("push", "--quiet", theirs)
    pin = tmp_path / "pin.json"
    provision("resolve", *_TARGET, "--output", pin)
    settings = {"registry-mirrors": [f"http://{hub}"]}
    with Engine(settings=settings) as other:
        if request.param == "pulled":
            other.docker("pull", "--quiet", name)
        else:
            archive = tmp_path / "image.tar"
            engine.docker("save", "--output", archive, theirs)
            other.docker("load", "--input", archive)
            other.docker("tag", theirs, name)
        engine.docker("image", "rm", theirs)
        cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        yield _Victim(other, Provision(other.host, cache), small_build, pin, f"{hub}/drivers")


def test_an_image_that_calls_itself_built_here_is_of_no_use(
    victim: _Victim, host: Host, tmp_path: Path
) -> None:
    name, provision = victim.built["image"], victim.provision
    assert name in victim.engine.images()
    planned = provision.json("build", "--pin", victim.pin, "--dry-run")
    assert (planned["image"], planned["would_build"]) == (name, True)
    status, error = provision.failure("install", name, "--root", host.root)
    assert status == 1
    assert "this user did not build it on this machine" in error["message"]
    assert not host.store(SMALL_DRIVER).exists()
    provision("registry", "key", "--no-password", "--output", tmp_path / "fleet")
    signing = ("--sign", "--key", tmp_path / "fleet.key", "--root", host.root)
    for target in (f"{victim.registry}/{SMALL_DRIVER}:1", f"oci:{tmp_path}/signed"):
        status, _error = provision.failure("registry", "push", name, target, *signing)
        assert status == 1
    assert not (tmp_path / "signed").exists()
    # A person may still say that they want it, and then the host says what it is.
    provision("install", name, "--insecure", "--root", host.root)
    assert '"once": true' in (host.entry(SMALL_DRIVER) / "admission.json").read_text()


_DOCKERFILE = b"""ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS tools
COPY source /source
RUN cp /source /built
FROM scratch
COPY --from=tools /built /opt/built
"""


def _cached_steps(engine: Engine, state: Path) -> list[str]:
    """The first words of the steps that a build takes from what the engine has."""
    files: dict[str, bytes | Path] = {"Dockerfile": _DOCKERFILE, "source": b"of ours"}
    base = {"BASE_IMAGE": IMAGE}
    with closing(connect(engine.host)) as client, BuildLog(state / "log") as log:
        stream = run_build(client, "a test", files, log, state=state, build_args=base)
    return [step.instruction.split()[0] for step in stream.steps if step.cached]


def test_a_build_goes_on_from_no_step_of_another(engine: Engine, tmp_path: Path) -> None:
    """An engine takes steps from what was loaded, if text and image below are the same."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for state in (ours, theirs):
        state.mkdir()
    _cached_steps(engine, theirs)
    assert _cached_steps(engine, ours) == []
    # Our own steps are taken, except for what becomes the artifact.
    assert _cached_steps(engine, ours) == ["LABEL", "COPY", "RUN"]
