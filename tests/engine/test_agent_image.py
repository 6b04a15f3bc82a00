"""The agent's image: what its DaemonSet starts, in podman and containerd, on a node's root."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from kit.agent_host import AgentHost
from kit.arm64 import MACHINE
from kit.containerd import Containerd
from kit.engine import Engine
from kit.files import remove_tree
from kit.hosts import OLD_KERNEL, SMALL_DRIVER
from kit.podman import Podman
from kit.process import run
from kit.product import DECORATOR, Provision
from kit.released import agent_image, bare
from kit.signed_registry import Fleet

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(4)]


@pytest.fixture(scope="module")
def agent(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive with the agent's image."""
    return agent_image(engine, tmp_path_factory.mktemp("agent"))


def test_the_image_of_the_agent_runs(agent: Path, engine: Engine) -> None:
    _assert_runs(agent, engine, "amd64", "x86_64")


def _assert_runs(archive: Path, engine: Engine, architecture: str, machine: str) -> None:
    tag = engine.docker("load", "--quiet", "--input", archive).stdout.split()[-1]
    assert tag.startswith("provision/agent:")
    words = ("run", "--rm", "--network=none", f"--platform=linux/{architecture}", tag)
    facts = json.loads(engine.docker(*words, "facts", "--json").stdout)
    assert (facts["distro"]["id"], facts["arch"]) == ("debian", machine)


@pytest.fixture
def node(fleet: Fleet, tmp_path: Path) -> Iterator[AgentHost]:
    """A bare Debian 12 as a node, and beside it the folder that its pod gets as settings."""
    root = tmp_path / "node"
    run(["cp", "-a", "--reflink=auto", bare("bookworm"), root])
    try:
        host = AgentHost(root)
        host.add_kernel(OLD_KERNEL)
        _mount_proc(host, tmp_path / "osrelease")
        host.write("dev/video0", "").unlink()
        os.mknod(root / "dev/video0", 0o600 | stat.S_IFCHR, os.makedev(81, 0))
        (tmp_path / "config").mkdir()
        (tmp_path / "config/provision.toml").write_text(fleet.settings())
        shutil.copy(fleet.folder / "fleet.pub", tmp_path / "config")
        yield host
    finally:
        remove_tree(root)


def _mount_proc(node: AgentHost, release: Path) -> None:
    """Give a node what comes with the root that a pod mounts: a /proc, in which its kernel runs."""
    release.write_text(f"{OLD_KERNEL}\n")
    run(["mount", "-t", "proc", "proc", node.root / "proc"])
    run(["mount", "--bind", release, node.root / "proc/sys/kernel/osrelease"])


def _rights(config: Path) -> list[str]:
    """The capabilities of the pod that `provision export daemonset` writes for these settings."""
    words: list[str | Path] = ["--image", "agent", "--config", config / "provision.toml"]
    words += ["--key", config / "fleet.pub", "--output", config.with_name("manifests")]
    Provision("unix:///nowhere.sock")("export", "daemonset", *words)
    texts = [path.read_text() for path in config.with_name("manifests").iterdir()]
    objects = [one for text in texts for one in yaml.safe_load_all(text)]
    (daemonset,) = (one for one in objects if one["kind"] == "DaemonSet")
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    rights = container["securityContext"]["capabilities"]
    assert rights["drop"] == ["ALL"]
    added: list[str] = rights["add"]
    return added


def _podman(archive: Path, names: list[str], mounts: dict[Path, str]) -> str:
    rights = [f"--cap-add={name}" for name in names]
    bound = [f"--volume={folder}:{place}" for folder, place in mounts.items()]
    with Podman() as podman:
        podman.load(archive)
        tag = podman("images", "--format={{.Repository}}:{{.Tag}}").stdout.split()[0]
        words = ["--cap-drop=all", *rights, *bound, "--network=host", "--env=ONCE=1", tag]
        return podman("run", "--rm", *words).output


def _containerd(archive: Path, names: list[str], mounts: dict[Path, str]) -> str:
    rights = [word for name in names for word in ("--cap-add", f"CAP_{name}")]
    bound = [
        word
        for folder, place in mounts.items()
        for word in ("--mount", f"type=bind,src={folder},dst={place},options=rbind:rw")
    ]
    with Containerd() as containerd:
        containerd.load(archive, "default")
        (tag,) = containerd("images", "list", "--quiet").stdout.split()
        words = [*rights, *bound, tag, "agent"]
        return containerd("run", "--rm", "--net-host", "--env", "ONCE=1", *words).output


@pytest.mark.parametrize("start", [_podman, _containerd], ids=["podman", "containerd"])
def test_the_agent_keeps_a_node(
    start: Callable[[Path, list[str], dict[Path, str]], str],
    agent: Path,
    fleet: Fleet,
    node: AgentHost,
) -> None:
    """As its DaemonSet starts it: with the node's root, its settings, and no further rights."""
    config = node.root.with_name("config")
    said = start(agent, _rights(config), {node.root: "/host", config: "/config"})
    assert node.current(SMALL_DRIVER) == fleet.built["digest"].removeprefix("sha256:")[:12]
    (key,) = (node.root / "etc/provision/trust.d").glob("*.pub")
    assert key.read_bytes() == (fleet.folder / "fleet.pub").read_bytes()
    program = node.root / "opt/provision/bin/oci-decorator"
    assert program.read_bytes() == DECORATOR.read_bytes()
    written = {path.name: path.read_text() for path in (node.root / "run/cdi").glob("*.json")}
    assert list(written) == [f"oci-decorator-{SMALL_DRIVER}.json"], said
    assert "/dev/video0" in written[f"oci-decorator-{SMALL_DRIVER}.json"]
    # It is no machine's root, so no kernel gets its modules.
    assert "modules are not loaded" in said


@pytest.mark.minutes(6)
def test_the_image_for_arm64_runs(engine: Engine, tmp_path: Path) -> None:
    _assert_runs(agent_image(engine, tmp_path, machine=MACHINE), engine, "arm64", MACHINE)
