"""A machine set up by NVIDIA's documentation keeps working when its programs become links to ours.

Its files are in tests/data/nvidia-toolkit: Docker's and containerd's settings and config.toml as
`nvidia-ctk` 1.17 writes them, a specification of CDI by the same, and lists of the mode csv. The
engines run on through the change. CRI-O is not among them: Debian 12 has no package of it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.bundles import Bundle
from kit.cache import REPOSITORY
from kit.containerd import Containerd
from kit.cri import Cri
from kit.docker_in_tree import DockerInTree
from kit.hosts import DISTRO, IMAGE
from kit.nvidia_host import LIBRARIES, LIBRARY_FOLDER, NvidiaHost, nodes, nvidia_host
from kit.podman import Podman
from kit.probe import can_mount, need, need_programs
from kit.product import base_archive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from kit.engine import Engine

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
)
# What a package of NVIDIA's has under these names, as far as an engine sees that it is there.
_THEIRS = '#!/bin/sh\ncase $0 in *-runtime) exec runc "$@";; esac\n'
_CONTROL = ("nvidiactl", "nvidia-uvm")
_ALL = [*nodes("nvidia0", "nvidia1", *_CONTROL), *LIBRARIES]
_ONE = [*nodes("nvidia1", *_CONTROL), *LIBRARIES]
# NVIDIA's specification has a link that the vendor file has not, and the loader lists it too.
_ONE_BY_CDI = [*nodes("nvidia1", *_CONTROL), "libcuda.so", *LIBRARIES]
_ALL_BY_CDI = [*nodes("nvidia0", "nvidia1", *_CONTROL), "libcuda.so", *LIBRARIES]
_FULL_IMAGE = f"docker.io/library/{IMAGE}"
_PAUSE = "pause:latest"
_STARTS = 45


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> NvidiaHost:
    """A machine with NVIDIA's packages, its driver, and everything set up by hand."""
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    machine = nvidia_host(tmp_path_factory.mktemp("machine"))
    for name in _NAMES:
        program = machine.layer / "usr/bin" / name
        program.write_text(_THEIRS)
        program.chmod(0o755)
    etc = machine.layer / "etc"
    (etc / "docker").mkdir()
    shutil.copy(_DATA / "daemon.json", etc / "docker")
    settings = machine.layer / _SETTINGS[1:]
    settings.mkdir()
    shutil.copy(_DATA / "config.toml", settings)
    # Lists and our own look at CDI are below the host's root, which is a folder here.
    lists = machine.host.root / _SETTINGS[1:] / "host-files-for-container.d"
    shutil.copytree(_DATA / lists.name, lists)
    library = machine.host.root / LIBRARY_FOLDER[1:] / "libcuda.so"
    library.symlink_to("libcuda.so.1")
    firmware = machine.host.root / "lib/firmware/tegra"
    firmware.mkdir(parents=True)
    (firmware / "blob").write_text("a blob\n")
    specification = (_DATA / "nvidia.yaml").read_text().replace("@ROOT@", str(machine.host.root))
    (etc / "cdi").mkdir()
    for file in (etc / "cdi/nvidia.yaml", machine.cdi_file):
        file.write_text(specification)
    return machine


@pytest.fixture(scope="module")
def podman(engine: Engine, machine: NvidiaHost) -> Iterator[Podman]:
    """A podman of the machine's."""
    need_programs("podman")
    with Podman() as podman:
        podman.load(base_archive(engine, DISTRO))
        machine.add_podman(podman)
        yield podman


@pytest.fixture(scope="module", params=["20.10", "26"])
def docker(
    request: pytest.FixtureRequest,
    engine: Engine,
    machine: NvidiaHost,
    podman: Podman,
    base_root: Path,
) -> Iterator[DockerInTree]:
    """A Docker that was started with NVIDIA's programs, and then saw them replaced."""
    archive = base_archive(engine, DISTRO)
    shown = (archive.parent, machine.folder, podman.folder, base_root)
    tree = Path("/") if request.param == "20.10" else None
    with DockerInTree({}, shown, tree=tree, layer=machine.layer) as docker:
        docker("load", "--quiet", "--input", archive)
        before = docker("run", "--rm", "--runtime=nvidia", "--gpus=all", IMAGE, "ls", "/dev").stdout
        assert "nvidia" not in before
        _switch(docker)
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
    assert (
        f"{old} was a link to {hook}"
        in docker.run("oci-decorator", "install-links", "/usr/bin").stdout
    )


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


def test_docker(docker: DockerInTree) -> None:
    def smi(*flags: str) -> list[str]:
        return docker("run", "--rm", *flags, IMAGE, "nvidia-smi").stdout.splitlines()

    assert smi("--gpus=all") == _ALL
    assert smi("--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=1") == _ONE
    assert smi("--runtime=nvidia", "--gpus=device=1") == _ONE
    by_cdi = "--env=NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1"
    assert smi("--runtime=nvidia", by_cdi) == _ONE_BY_CDI


@pytest.mark.parametrize("docker", ["26"], indirect=True)  # 20.10 has no CDI
def test_dockers_own_cdi(docker: DockerInTree) -> None:
    shell = f"nvidia-smi; readlink {LIBRARY_FOLDER}/libcuda.so; echo $NVIDIA_VISIBLE_DEVICES"
    argv = ("run", "--rm", "--device=nvidia.com/gpu=1", IMAGE, "sh", "-c", shell)
    assert docker(*argv).stdout.splitlines() == [*_ONE_BY_CDI, "libcuda.so.1", "void"]


@pytest.mark.parametrize("docker", ["20.10"], indirect=True)  # that tree has podman
def test_podman(docker: DockerInTree) -> None:
    shell = f"nvidia-smi; readlink {LIBRARY_FOLDER}/libcuda.so"
    argv = ("podman", "run", "--rm", "--device=nvidia.com/gpu=all", IMAGE, "sh", "-c", shell)
    assert docker.run(*argv).stdout.splitlines() == [*_ALL_BY_CDI, "libcuda.so.1"]


def test_containerds_own_client(containerd: Containerd) -> None:
    runtime = ("--runc-binary", "/usr/bin/nvidia-container-runtime")
    asks = ("--env", "NVIDIA_VISIBLE_DEVICES=1")
    argv = ("--runtime", "io.containerd.runc.v2", *runtime, *asks, _FULL_IMAGE, "smi", "nvidia-smi")
    assert containerd.output(*argv).splitlines() == _ONE


def test_kubernetes_runtime_class(containerd: Containerd) -> None:
    with Cri(containerd.socket, "nvidia") as pod:
        sleep = ("sleep", "infinity")
        asks = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
        decorated = pod.start("decorated", _FULL_IMAGE, *sleep, env=asks)
        plain = pod.start("plain", _FULL_IMAGE, *sleep)
        assert pod.exec(decorated, "nvidia-smi").splitlines() == _ALL
        assert "nvidia" not in pod.exec(plain, "ls", "/dev")


@pytest.mark.parametrize(
    ("more", "libraries"),
    [((), LIBRARIES[:1]), (("--env=NVIDIA_REQUIRE_JETPACK=csv-mounts=all",), LIBRARIES)],
)
def test_lists_of_a_board(
    docker: DockerInTree, more: tuple[str, ...], libraries: list[str]
) -> None:
    docker.run("nvidia-ctk", "config", "--in-place", "--set", "nvidia-container-runtime.mode=csv")
    try:
        report = (
            "ls /dev | grep nvidia; ldconfig -p | grep -o -e 'libcuda[^ ]*$' -e 'libnvidia[^ ]*$';"
            f"readlink {LIBRARY_FOLDER}/libcuda.so; cat /lib/firmware/tegra/blob;"
            "echo $NVIDIA_VISIBLE_DEVICES"
        )
        asks = ("--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=all", *more)
        said = docker("run", "--rm", *asks, IMAGE, "sh", "-c", report).stdout.splitlines()
    finally:
        docker.run(
            "nvidia-ctk", "config", "--in-place", "--set", "nvidia-container-runtime.mode=auto"
        )
    found = sorted({line for line in said if line.startswith("lib") and line != "libcuda.so"})
    assert said[:2] == ["nvidia0", "nvidiactl"]
    assert found == libraries
    assert said[-3:] == ["libcuda.so.1", "a blob", "void"]


def test_the_settings_count_and_stay(docker: DockerInTree) -> None:
    said = docker.run("nvidia-ctk", "info").stdout
    assert "links to this program: 7" in said
    assert "mode: auto" in said
    assert "nvidia-container-cli.ldconfig: " in said
    assert (
        docker.run("cat", f"{_SETTINGS}/config.toml").stdout == (_DATA / "config.toml").read_text()
    )


@pytest.mark.parametrize("way", ["hook", "runtime"])
def test_many_starts_leave_one_drop_in(
    docker: DockerInTree, base_root: Path, tmp_path: Path, way: str
) -> None:
    """Of CDI's hook, as an engine starts it, and of the runtime."""
    folder = docker.folder / tmp_path.name
    root = docker.folder / tmp_path.name / "root"
    for part in ("upper", "work", "root"):
        (folder / part).mkdir(parents=True)
    options = f"lowerdir={base_root},upperdir={folder}/upper,workdir={folder}/work"
    docker.run("mount", "-t", "overlay", "-o", options, "overlay", root)
    try:
        bundle = Bundle(folder)
        hook = {
            "path": "/usr/bin/nvidia-cdi-hook",
            "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/opt/lib"],
            "env": ["NVIDIA_CTK_DEBUG=false"],
        }

        def change(spec: dict[str, Any]) -> None:
            if way == "hook":
                spec["hooks"] = {"createContainer": [hook]}
                source = f"{base_root}{LIBRARY_FOLDER}"
                spec["mounts"].append(
                    {"destination": "/opt/lib", "source": source, "options": ["bind", "ro"]}
                )

        asks = ("NVIDIA_VISIBLE_DEVICES=all",) if way == "runtime" else ()
        bundle.write("true", env=asks, root=root, change=change)
        program = {"hook": "runc", "runtime": "nvidia-container-runtime"}[way]
        start = f"{program} --root {bundle.state} run --bundle {folder} many"
        ours = f"ls -A {root}/etc/ld.so.conf.d | grep -c oci-decorator"
        files = f"ls -AR {root}/etc {root}/run | sha256sum"
        once = docker.run(
            "sh", "-c", f"({start} || {start}) && {ours} && {files}"
        ).stdout.splitlines()
        # A second try: the kernel may refuse runc the seal of its own copy with EBUSY, now and then
        # (memfd_wait_for_pins() gives up on a page that something else still holds).
        again = f"{start} || {start} || exit 1"
        loop = f"for n in $(seq {_STARTS - 1}); do {again}; done; {ours} && {files}"
        assert docker.run("sh", "-c", loop).stdout.splitlines() == once
        assert once[0] == "1"
    finally:
        docker.run("umount", root)
