"""Which GPUs the real nvidia-smi lists in a container: by engine, and by the way of asking.

Two machines. One was set up by NVIDIA's documentation, and its programs became links to ours below
running engines: its files are in tests/data/nvidia-toolkit, as `nvidia-ctk` 1.17 writes them. The
other has had our links from the beginning. nvidia-smi is real, NVML the stand-in of `kit.gpus`.
CRI-O is not among the engines: Debian 12 has no package of it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cache import REPOSITORY
from kit.containerd import Containerd
from kit.cri import Cri
from kit.docker_in_tree import DockerInTree
from kit.engine import Engine
from kit.files import write
from kit.gpus import FACTS
from kit.hosts import DISTRO, IMAGE
from kit.nvidia_host import LIBRARIES, LIBRARY_FOLDER, REPORT, NvidiaHost, nvidia_host, uuids
from kit.podman import Podman
from kit.probe import can_mount, need, need_programs
from kit.product import base_archive

pytestmark = pytest.mark.minutes(2)

_DATA = REPOSITORY / "tests/data/nvidia-toolkit"
_SETTINGS = "/etc/nvidia-container-runtime"
_NAMES = (
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-ctk",
    "nvidia-cdi-hook",
    "nvidia-container-cli",
)
# What a package of NVIDIA's has under these names, as far as an engine sees that it is there.
_THEIRS = '#!/bin/sh\ncase $0 in *-runtime) exec runc "$@";; esac\n'
_WHOLE, _DIVIDED = (gpu["uuid"] for gpu in FACTS["devices"])
_PARTS = [part["uuid"] for part in FACTS["devices"][1]["mig"]]
# The parts of a GPU that is divided come by their own names, and with all.
_SECOND = [_DIVIDED]
_ALL = [_WHOLE, _DIVIDED, *_PARTS]
_MINORS = {str(gpu["index"]): gpu["minor"] for gpu in FACTS["devices"]}
_RUNTIME = "--runtime=nvidia"
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_FULL_IMAGE = f"docker.io/library/{IMAGE}"
_PAUSE = "pause:latest"
# The machine that NVIDIA's documentation set up has Docker 20.10, the other one 26.
_MIGRATED, _OURS = "20.10", "26"


def _machine(folder: Path) -> NvidiaHost:
    machine = nvidia_host(folder)
    machine.link()
    return machine


def _machine_by_nvidia(folder: Path) -> NvidiaHost:
    """A machine with NVIDIA's packages, and everything set up by hand."""
    machine = nvidia_host(folder)
    for name in _NAMES:
        write(machine.layer / "usr/bin" / name, _THEIRS, 0o755)
    etc = machine.layer / "etc"
    (etc / "docker").mkdir()
    shutil.copy(_DATA / "daemon.json", etc / "docker")
    settings = machine.layer / _SETTINGS[1:]
    settings.mkdir()
    shutil.copy(_DATA / "config.toml", settings)
    # Our own look at CDI is below the host's root, which is a folder here.
    text = (_DATA / "nvidia.yaml").read_text().replace("@ROOT@", str(machine.host.root))
    # It was written on a machine whose GPUs have the same index and minor.
    specification = re.sub(r"dev/nvidia(\d)", lambda it: f"dev/nvidia{_MINORS[it[1]]}", text)
    (etc / "cdi").mkdir()
    for file in (etc / "cdi/nvidia.yaml", machine.cdi_file):
        file.write_text(specification)
    return machine


@pytest.fixture(scope="module", params=[_MIGRATED, _OURS])
def version(request: pytest.FixtureRequest) -> str:
    """Which machine."""
    version: str = request.param
    return version


@pytest.fixture(scope="module")
def machine(version: str, tmp_path_factory: pytest.TempPathFactory) -> NvidiaHost:
    """A machine with two GPUs."""
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    make = _machine_by_nvidia if version == _MIGRATED else _machine
    return make(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def podman(engine: Engine, machine: NvidiaHost) -> Iterator[Podman]:
    """A podman of the machine's."""
    need_programs("podman")
    with Podman() as podman:
        podman.load(base_archive(engine, DISTRO))
        machine.add_podman(podman)
        yield podman


@pytest.fixture(scope="module")
def docker(
    version: str, engine: Engine, machine: NvidiaHost, podman: Podman
) -> Iterator[DockerInTree]:
    """The machine's Docker; where NVIDIA's programs were, it has started with them."""
    archive = base_archive(engine, DISTRO)
    shown = (archive.parent, machine.folder, podman.folder)
    migrated = version == _MIGRATED
    settings = {} if migrated else {"features": {"cdi": True}}
    tree = Path("/") if migrated else None
    with DockerInTree(settings, shown, tree=tree, layer=machine.layer) as docker:
        docker("load", "--quiet", "--input", archive)
        if migrated:
            before = docker("run", "--rm", _RUNTIME, "--gpus=all", IMAGE, "ls", "/dev").stdout
            assert "nvidia" not in before
            _switch(docker)
        else:
            docker.run("nvidia-ctk", "runtime", "configure", "--runtime=docker")
            docker.reload()
            docker.run("mkdir", "-p", _SETTINGS)
            docker.run("nvidia-ctk", "config", "default", "--output", f"{_SETTINGS}/config.toml")
            docker.run("nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml")
            docker.run("nvidia-ctk", "cdi", "generate", f"--output={machine.cdi_file}")
        yield docker


def _switch(docker: DockerInTree) -> None:
    """What the manual has an admin do: never over a package, and once it is gone, at once."""
    refused = docker.run("oci-decorator", "install-links", "/usr/bin", check=False)
    assert refused.returncode != 0
    assert all(f"/usr/bin/{name}" in refused.stderr for name in _NAMES)
    docker.run("rm", *(f"/usr/bin/{name}" for name in _NAMES))
    # Debian's package makes it, and forgets it until it is purged.
    hook, old = (f"/usr/bin/nvidia-container-{name}" for name in ("runtime-hook", "toolkit"))
    docker.run("ln", "-s", hook, old)
    made = docker.run("oci-decorator", "install-links", "/usr/bin").stdout
    assert f"{old} was made" in made


@pytest.fixture(scope="module")
def containerd(docker: DockerInTree) -> Iterator[Containerd]:
    """A containerd on the same machine, by NVIDIA's file."""
    name = docker("create", IMAGE, "none").stdout.strip()
    docker("commit", "--change", 'CMD ["sleep", "infinity"]', name, _PAUSE)
    archive = docker.folder / "images.tar"
    docker("save", "--output", archive, IMAGE, _PAUSE)
    docker("rm", name)
    settings = (_DATA / "containerd.toml").read_text()
    pause = f"docker.io/library/{_PAUSE}"
    where = docker.folder
    with Containerd(settings, pause=pause, parent=where, enter=docker.enter()) as containerd:
        for namespace in ("default", "k8s.io"):
            containerd.load(archive, namespace)
        yield containerd


def _seen(docker: DockerInTree, *flags: str) -> list[str]:
    return uuids(docker("run", "--rm", *flags, IMAGE, "nvidia-smi", "-L").stdout)


def _env(value: str) -> tuple[str, str]:
    return _RUNTIME, f"--env={_VISIBLE}={value}"


@pytest.mark.parametrize(
    ("flags", "seen"),
    [
        (("--gpus=all",), _ALL),
        (("--gpus=device=1",), _SECOND),
        ((f"--gpus=device={_WHOLE}",), [_WHOLE]),
        ((f"--gpus=device={_PARTS[0]}",), [_DIVIDED, _PARTS[0]]),
        (("--gpus=device=1:1",), [_DIVIDED, _PARTS[1]]),
        (("--gpus=1",), [_WHOLE]),
        (_env("all"), _ALL),
        (_env("0"), [_WHOLE]),
        (_env(_DIVIDED), _SECOND),
        (_env(f"0,{_PARTS[1]}"), [_WHOLE, _DIVIDED, _PARTS[1]]),
        (_env("nvidia.com/gpu=0"), [_WHOLE]),
        ((_RUNTIME, "--gpus=device=1"), _SECOND),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else None,
)
def test_docker(docker: DockerInTree, flags: tuple[str, ...], seen: list[str]) -> None:
    assert _seen(docker, *flags) == seen


@pytest.mark.parametrize("version", [_OURS], indirect=True)  # 20.10 has no CDI
@pytest.mark.parametrize(
    ("device", "seen"),
    [
        ("all", _ALL),
        ("0", [_WHOLE]),
        (_PARTS[1], [_DIVIDED, _PARTS[1]]),
    ],
)
def test_dockers_own_cdi(docker: DockerInTree, device: str, seen: list[str]) -> None:
    assert _seen(docker, f"--device=nvidia.com/gpu={device}") == seen


@pytest.mark.parametrize("version", [_MIGRATED], indirect=True)  # that tree has podman
@pytest.mark.parametrize(("device", "seen"), [("all", [_WHOLE, _DIVIDED]), ("1", [_DIVIDED])])
def test_podmans_own_cdi(docker: DockerInTree, device: str, seen: list[str]) -> None:
    """NVIDIA's specification has a link that the vendor file has not, and no parts."""
    shell = f"nvidia-smi -L; readlink {LIBRARY_FOLDER}/libcuda.so"
    asks = f"--device=nvidia.com/gpu={device}"
    said = docker.run("podman", "run", "--rm", asks, IMAGE, "sh", "-c", shell).stdout
    assert (uuids(said), said.splitlines()[-1]) == (seen, "libcuda.so.1")


def test_containerds_own_client(containerd: Containerd) -> None:
    runtime = ("--runc-binary", "/usr/bin/nvidia-container-runtime")
    asks = ("--env", f"{_VISIBLE}=1")
    argv = ("--runtime", "io.containerd.runc.v2", *runtime, *asks, _FULL_IMAGE, "smi")
    assert uuids(containerd.output(*argv, "nvidia-smi", "-L")) == _SECOND


def test_kubernetes_runtime_class(containerd: Containerd) -> None:
    with Cri(containerd.socket, "nvidia") as pod:
        sleep = ("sleep", "infinity")
        for name, given, seen in (("all", "all", _ALL), ("one", _WHOLE, [_WHOLE])):
            container = pod.start(name, _FULL_IMAGE, *sleep, env=(f"{_VISIBLE}={given}",))
            assert uuids(pod.exec(container, "nvidia-smi", "-L")) == seen
        plain = pod.start("plain", _FULL_IMAGE, *sleep)
        assert "nvidia" not in pod.exec(plain, "ls", "/dev")


@pytest.mark.parametrize(
    ("flags", "seen", "libraries"),
    [
        ((_RUNTIME,), [], []),
        (("--gpus=all",), _ALL, LIBRARIES),
        (('--gpus="device=1","capabilities=utility"',), _SECOND, LIBRARIES[1:]),
        (('--gpus="device=1","capabilities=compute"',), [], LIBRARIES[:1]),
    ],
)
def test_capabilities_choose_files(
    docker: DockerInTree, flags: tuple[str, ...], seen: list[str], libraries: list[str]
) -> None:
    said = docker("run", "--rm", *flags, IMAGE, "sh", "-c", REPORT).stdout
    assert (uuids(said), [line for line in said.splitlines() if line in LIBRARIES]) == (
        seen,
        libraries,
    )


@pytest.mark.parametrize("version", [_OURS], indirect=True)
@pytest.mark.parametrize("mode", ["auto", "legacy", "jit-cdi", "cdi"])
def test_the_flag_and_the_runtime_together_in_every_mode(docker: DockerInTree, mode: str) -> None:
    """What NVIDIA's own programs refuse; once each, however it got there."""
    _set(docker, f"nvidia-container-runtime.mode={mode}")
    shell = "nvidia-smi -L; grep -c libcuda /proc/self/mountinfo"
    try:
        flags = (_RUNTIME, "--gpus", "device=0")
        said = docker("run", "--rm", *flags, IMAGE, "sh", "-c", shell).stdout
    finally:
        _set(docker, "nvidia-container-runtime.mode=auto")
    assert (uuids(said), said.splitlines()[-1]) == ([_WHOLE], "1")


def _set(docker: DockerInTree, setting: str) -> None:
    docker.run("nvidia-ctk", "config", "--in-place", "--set", setting)


@pytest.mark.parametrize(
    ("way", "variables", "reason"),
    [
        (_RUNTIME, (f"{_VISIBLE}=7",), _VISIBLE),
        (_RUNTIME, (f"{_VISIBLE}=GPU-9",), "GPU-9"),
        # Docker sets the other two by itself. Only the hook reads these.
        ("--gpus=all", ("NVIDIA_REQUIRE_CUDA=cuda>=99.0",), "cuda>=99.0"),
        ("--gpus=device=7", (), _VISIBLE),
    ],
)
def test_a_refusal_says_which_variable(
    docker: DockerInTree, way: str, variables: tuple[str, ...], reason: str
) -> None:
    flags = (way, *(f"--env={variable}" for variable in variables))
    refused = docker("run", "--rm", *flags, IMAGE, "true", check=False)
    assert refused.returncode != 0
    assert reason in refused.stderr


def test_a_restarted_container_has_its_gpu(docker: DockerInTree) -> None:
    name = ("--name", "kept", "--gpus=device=0")
    first = docker("run", *name, IMAGE, "nvidia-smi", "-L").stdout
    try:
        again = docker("start", "--attach", "kept").stdout
    finally:
        docker("rm", "--force", "kept")
    assert uuids(first) == uuids(again) == [_WHOLE]


@pytest.mark.parametrize("version", [_MIGRATED], indirect=True)
def test_the_settings_count_and_stay(docker: DockerInTree) -> None:
    said = docker.run("nvidia-ctk", "info").stdout
    assert f"{_SETTINGS}/config.toml: ok" in said
    written = docker.run("cat", f"{_SETTINGS}/config.toml").stdout
    assert written == (_DATA / "config.toml").read_text()
