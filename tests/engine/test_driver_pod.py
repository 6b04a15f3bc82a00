"""NVIDIA's image as a GPU operator's driver pod: what its operator starts, mounts and looks for.

The contract is that of docs/reference/gpu-operator.md. The node is a folder: programs in place of
modprobe and rmmod change its /proc and /sys, which the container sees. The user space is NVIDIA's
own, and the modules are small ones of the same names.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.driver_pod import FILES, UNLOADED, documents, lay_out, loaded, startup_probe
from kit.engine import Engine
from kit.hosts import DISTRO, NEW_KERNEL
from kit.process import Completed, wait_for
from kit.product import Provision

pytestmark = [pytest.mark.xdist_group("nvidia"), pytest.mark.minutes(3)]

(_STARTED,) = documents("IMAGE", "KERNEL", "DIGEST")[1]["spec"]["template"]["spec"]["containers"]
_MODULES = {"nvidia", "nvidia_modeset", "nvidia_uvm"}


@dataclass
class Node:
    """A node, and the operator's container on it."""

    engine: Engine
    image: str
    root: Path
    run: Path
    name: str = "nvidia-driver-ctr"

    def boot(self) -> None:
        """Nothing is loaded, and /run is empty."""
        for folder in (self.root, self.run):
            shutil.rmtree(folder, ignore_errors=True)
        lay_out(self.root, NEW_KERNEL)
        self.run.mkdir()

    def start(self, *words: str, digest: str = "one", name: str = "") -> None:
        """Start a container as the operator's DaemonSet does, but for propagation of mounts."""
        self.engine.docker(
            *("run", "--detach", "--name", name or self.name, "--network=none"),
            *("--cap-add=SYS_ADMIN", "--security-opt=apparmor=unconfined"),
            *("--security-opt=seccomp=unconfined",),
            *("--volume", f"{self.root}:/host", "--volume", f"{self.run}:/run/nvidia"),
            *("--volume", f"{self.root}/drivers:/drivers:ro"),
            *("--volume", f"{self.root}/sys/module:/sys/module"),
            *("--volume", f"{self.root}/programs/modprobe:/usr/sbin/modprobe:ro"),
            *("--volume", f"{self.root}/programs/rmmod:/usr/sbin/rmmod:ro"),
            *("--volume", f"{self.root}/programs/nvidia-smi:/usr/bin/nvidia-smi:ro"),
            *("--env", f"DRIVER_CONFIG_DIGEST={digest}", self.image),
            *(words or (*_STARTED["command"], *_STARTED["args"])),
        )

    def sh(self, text: str) -> Completed:
        return self.engine.docker("exec", self.name, "sh", "-c", text, check=False)

    def said(self) -> str:
        return self.engine.docker("logs", self.name).output

    def wait(self, for_what: str = "ready") -> None:
        wait_for(for_what, lambda: for_what in self.said(), within_s=120, said=self.said)

    def end(self, *words: str) -> int:
        """Send SIGTERM, or kill it; return its exit status."""
        self.engine.docker(*(words or ("kill", "--signal=TERM")), self.name)
        code = int(self.engine.docker("wait", self.name, timeout_s=60).stdout)
        self.engine.docker("rm", self.name)
        return code

    def loaded(self) -> set[str]:
        return loaded(self.root)

    def calls(self) -> list[str]:
        path = self.root / "calls"
        lines = path.read_text().splitlines()
        path.write_text("")
        return lines


@pytest.fixture(scope="module")
def image(provision: Provision, small_nvidia: Path) -> str:
    target = ("nvidia", "--version", "latest", "--kernel", NEW_KERNEL, "--distro", DISTRO)
    built: dict[str, Any] = provision.build(*target, "--catalogue", small_nvidia)
    return str(built["image"])


@pytest.fixture
def node(engine: Engine, image: str, tmp_path: Path) -> Iterator[Node]:
    node = Node(engine, image, tmp_path / "node", tmp_path / "run")
    node.boot()
    yield node
    engine.docker("rm", "--force", node.name, check=False)


def test_the_operators_probe_finds_a_driver(node: Node) -> None:
    node.start()
    node.wait()
    assert node.loaded() == _MODULES
    # What its driver-manager does not unload would be in the way of the next driver.
    assert node.loaded() <= UNLOADED
    assert [name for name in FILES if not (node.run / name).exists()] == []
    probe = node.sh(startup_probe())
    assert probe.returncode == 0, probe.output
    assert node.sh("echo $NVIDIA_VISIBLE_DEVICES").stdout == "void\n"
    assert node.sh(shlex.join(_STARTED["lifecycle"]["preStop"]["exec"]["command"])).returncode == 0
    assert list((node.run / "validations").iterdir()) == []


def test_parameters_are_the_admins_after_ours(node: Node) -> None:
    node.start()
    node.wait()
    lines = [line for line in node.calls() if line.startswith("options")]
    assert lines[:4] == [
        "options nvidia NVreg_CoherentGPUMemoryMode=driver",
        "options nvidia NVreg_One=1",
        "options nvidia NVreg_Two=a=b;c",
        "options nvidia_uvm uvm_disable_hmm=1",
    ]


def test_operands_find_user_space_nodes_and_firmware(node: Node) -> None:
    node.start()
    node.wait()
    found = node.sh(
        "cd /run/nvidia/driver && cat usr/lib64/libnvidia-ml.so.1 usr/bin/nvidia-smi >/dev/null"
    )
    assert found.returncode == 0
    assert node.sh("cp /bin/sh /run/nvidia/driver/").returncode != 0
    assert (node.root / "dev/nvidiactl").is_char_device()
    assert (node.root / "dev/char/195:0").readlink().name == "nvidia0"
    search = (node.root / "sys/module/firmware_class/parameters/path").read_text()
    assert search == "/run/nvidia/driver/lib/firmware"
    assert node.sh(f"cat {search}/nvidia/*/gsp*.bin >/dev/null").returncode == 0


def test_a_restart_with_the_same_configuration_reloads_nothing(node: Node) -> None:
    node.start()
    node.wait()
    node.calls()
    node.end("kill")
    node.start()
    node.wait()
    assert node.calls() == []
    assert node.sh("cat /run/nvidia/driver/usr/bin/nvidia-smi >/dev/null").returncode == 0
    node.end("kill")
    node.start(digest="two")
    node.wait()
    assert [call for call in node.calls() if call.startswith("rmmod")][-1] == "rmmod nvidia"
    assert (node.run / "nvidia-driver.state").read_text() == "two\n"


def test_a_driver_in_use_stays_with_its_root_until_it_is_not(node: Node) -> None:
    node.start()
    node.wait()
    modules = node.root / "proc/modules"
    idle = modules.read_text()
    modules.write_text(idle.replace("nvidia_uvm 1 0 -", "nvidia_uvm 1 1 -"))
    node.engine.docker("kill", "--signal=TERM", node.name)
    node.wait("pods use the driver")
    assert node.loaded() == _MODULES
    assert node.sh("cat /run/nvidia/driver/usr/bin/nvidia-smi >/dev/null").returncode == 0
    modules.write_text(idle)
    assert node.end() == 0
    assert node.loaded() == set()
    left = [path.name for path in node.run.rglob("*") if path.is_file()]
    assert left == []


def test_only_one_pod_drives_a_node(node: Node) -> None:
    node.start()
    node.wait()
    name = f"{node.name}-2"
    node.start(name=name)
    try:
        assert node.engine.docker("wait", name, timeout_s=60).stdout.strip() == "1"
        assert "another driver pod" in node.engine.docker("logs", name).output
    finally:
        node.engine.docker("rm", "--force", name)
    assert node.loaded() == _MODULES


def test_a_refused_module_ends_the_pod_and_leaves_nothing(node: Node) -> None:
    (node.root / "refused").mkdir()
    (node.root / "refused/nvidia_uvm").touch()
    node.start()
    assert node.engine.docker("wait", node.name, timeout_s=60).stdout.strip() == "1"
    assert "nvidia_uvm could not be loaded" in node.said()
    assert node.loaded() == set()
    assert not (node.run / "nvidia-driver.state").exists()


def test_the_sidecar_loads_its_module_when_the_network_is_ready(node: Node) -> None:
    node.start()
    node.wait()
    assert node.sh("nvidia-driver probe_nvidia_peermem").returncode == 1
    (node.run / "validations/.driver-ctr-ready").touch()
    (node.root / "sys/module/mlx5_core").mkdir()
    (node.root / "sys/module/mlx5_core/initstate").touch()
    node.engine.docker(
        *("exec", "--detach", "--env=USE_HOST_MOFED=true", node.name),
        *("nvidia-driver", "reload_nvidia_peermem"),
    )
    probe = "nvidia-driver probe_nvidia_peermem"
    wait_for("the sidecar", lambda: node.sh(probe).returncode == 0, within_s=60)
    assert node.loaded() == _MODULES | {"nvidia_peermem"}
    assert node.end() == 0
    assert node.loaded() == set()


def test_options_of_other_images_are_ignored_and_other_words_refused(node: Node) -> None:
    node.start("nvidia-driver", "init", "-a", "-m", "open")
    node.wait()
    assert node.sh("nvidia-driver update").returncode == 2
