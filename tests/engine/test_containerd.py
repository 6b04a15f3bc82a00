"""containerd without Docker: its own client, and the CRI runtime that config.toml sets up."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.containerd import Containerd
from kit.cri import Cri, CriError
from kit.engine import Engine
from kit.hosts import IMAGE, Host
from kit.pages import snippet
from kit.process import Completed
from kit.standins import ALLOWED, GPU, OPEN_NODES, stand_in

_PAGE = "how-to/configure-an-engine.md"
_IMAGE = f"docker.io/library/{IMAGE}"
_PAUSE = "pause:latest"
# Where a Kubernetes node has its images and containers.
_KUBERNETES = "k8s.io"
_REPORT = f"""
if [ -e /dev/gpu0 ]; then set -- /dev/gpu0; {OPEN_NODES}; fi
ldconfig -p | grep -o '/opt/.*' || echo nothing
"""
_DECORATED = f"/dev/gpu0: {ALLOWED}\n/opt/gpu/lib/libgpu.so.1\n"
_PLAIN = "nothing\n"


@pytest.fixture(scope="module")
def containerd(
    engine: Engine, shim_config: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    """A containerd as the manual sets it up, with the base image and one to hold pods open."""
    with engine.created(IMAGE) as name:
        engine.docker("commit", "--change", 'CMD ["sleep", "infinity"]', name, _PAUSE)
    archive = tmp_path_factory.mktemp("images") / "images.tar"
    engine.docker("save", "--output", archive, IMAGE, _PAUSE)
    engine.docker("image", "rm", _PAUSE)
    settings = snippet(_PAGE, "`/etc/containerd/config.toml`, then").removeprefix("version = 2\n")
    environment = {"OCI_DECORATOR_CONFIG": str(shim_config)}
    with Containerd(settings, environment, pause=f"docker.io/library/{_PAUSE}") as containerd:
        for namespace in ("default", _KUBERNETES):
            containerd.load(archive, namespace)
        archive.unlink()
        yield containerd


@pytest.fixture(autouse=True)
def gpu(host: Host) -> None:
    """A host with one vendor that has a node and a library."""
    host.write_vendor("gpu", GPU)
    stand_in(host, GPU)


def _ctr(containerd: Containerd, *variables: str, check: bool = True) -> Completed:
    """The manual's `ctr run`, with these variables and our report as its program."""
    env = " ".join(f"--env {shlex.quote(variable)}" for variable in variables)
    words = {"--env OCI_NVIDIA=all": env, "IMAGE": _IMAGE, "NAME": "report"}
    command = snippet(_PAGE, "With containerd's own", {**words, "nvidia-smi": "sh -c REPORT"})
    ctr, *argv = [_REPORT if word == "REPORT" else word for word in shlex.split(command)]
    assert ctr == "ctr"
    return containerd(*argv, check=check)


def test_its_own_client(containerd: Containerd) -> None:
    assert _ctr(containerd).stdout == _PLAIN
    assert _ctr(containerd, "OCI_GPU=none").stdout == _PLAIN
    assert _ctr(containerd, "OCI_GPU=all").stdout == _DECORATED


def test_its_own_client_shows_why_a_start_is_refused(containerd: Containerd) -> None:
    refused = _ctr(containerd, "OCI_GPU=fly", check=False)
    assert refused.returncode != 0
    assert 'OCI_GPU asks for the unknown feature "fly"' in refused.stderr
    # The name is free again: nothing is left of the one that did not start.
    assert containerd.tasks("default") == []
    containerd("containers", "delete", "report", check=False)
    assert _ctr(containerd).stdout == _PLAIN


def test_containers_of_a_pod(containerd: Containerd) -> None:
    sleep = ("sleep", "infinity")
    with Cri(containerd.socket, "oci-decorator") as pod:
        plain = pod.start("plain", _IMAGE, *sleep)
        decorated = pod.start("decorated", _IMAGE, *sleep, env=("OCI_GPU=all",))
        assert pod.exec(plain, "sh", "-c", _REPORT) == _PLAIN
        assert pod.exec(decorated, "sh", "-c", _REPORT) == _DECORATED
        with pytest.raises(CriError, match=r'OCI_GPU asks for the unknown feature \\*"fly'):
            pod.start("refused", _IMAGE, *sleep, env=("OCI_GPU=fly",))
    assert containerd.tasks(_KUBERNETES) == []
