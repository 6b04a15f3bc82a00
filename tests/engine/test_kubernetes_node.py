"""A node of Kubernetes, with kubelet and containerd 2: who gets which devices, and what stays."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from kit.cri import Cri
from kit.device_plugin import DevicePlugin
from kit.gpus import FACTS
from kit.hosts import Host
from kit.kubernetes_node import PAUSE, KubernetesNode
from kit.nvidia_host import add_driver
from kit.probe import need
from kit.product import DECORATOR
from kit.released import bare
from kit.standins import ALLOWED
from kit.tree_image import write_images

if TYPE_CHECKING:
    from collections.abc import Iterator

# The first time: kubelet and containerd are compiled.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(15)]

_IMAGE = "docker.io/library/debian:bookworm"
# Nodes of GPUs that a container has, and what becomes of an attempt to open each.
_NODES = """
for node in $(find /dev -type c -name '*nvidia*' | sort); do
    echo "$node $( (: < "$node") 2>&1 | sed 's/.*: //')"
done
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesNode]:
    """A node with an image, and with NVIDIA's driver and our runtime as packages install them."""
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    with KubernetesNode() as node:
        archive = tmp_path_factory.mktemp("images") / "images.tar"
        write_images(bare("bookworm"), archive, {_IMAGE: (), PAUSE: ("sleep", "infinity")})
        node.load(archive)
        archive.unlink()
        add_driver(Host(node.root, node.root / "etc/oci-decorator/config.toml"))
        programs = node.root / "usr/bin"
        shutil.copy2(DECORATOR, programs / "oci-decorator")
        (programs / "oci-decorator-runtime").symlink_to("oci-decorator")
        node.run("oci-decorator", "cdi", "generate", "--output-dir", "/run/cdi")
        yield node


def _pod(script: str, **container: Any) -> dict[str, Any]:  # noqa: ANN401
    main = {"name": "main", "image": _IMAGE, "imagePullPolicy": "Never", **container}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{**main, "command": ["sh", "-c", script]}],
    }


def _plugin(node: KubernetesNode, resource: str, strategy: str = "cdi-cri") -> DevicePlugin:
    units = {gpu["uuid"]: f"nvidia.com/gpu={gpu['uuid']}" for gpu in FACTS["devices"][:1]}
    return DevicePlugin(node.sockets, resource, units, strategy)


def _asking(resource: str) -> dict[str, Any]:
    return {"limits": {resource: "1"}}


# The first GPU and the control nodes, and neither the other GPU nor its parts.
_ONE = "".join(
    f"/dev/{name} {ALLOWED}\n"
    for name in ("nvidia-uvm", f"nvidia{FACTS['devices'][0]['minor']}", "nvidiactl")
)


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations"])
def test_a_pod_gets_the_unit_that_a_device_plugin_hands_out(
    node: KubernetesNode, strategy: str
) -> None:
    resource = f"kit.test/{strategy}"
    with _plugin(node, resource, strategy):
        assert node.run_pod(strategy, _pod(_NODES, resources=_asking(resource))) == _ONE


def test_a_pod_that_asks_for_nothing_gets_nothing(node: KubernetesNode) -> None:
    assert node.run_pod("none", _pod(f"{_NODES}\necho end")) == "end\n"


def test_a_pod_goes_on_when_kubelet_and_containerd_are_restarted(node: KubernetesNode) -> None:
    with _plugin(node, "kit.test/gpu"):
        pod = _pod("sleep infinity", resources=_asking("kit.test/gpu"))
        node.start_pod("long", pod)
    before = node.container("long")
    node.restart_containerd()
    node.restart_kubelet()
    assert node.exec("long", "sh", "-c", _NODES) == _ONE
    assert node.container("long") == before
    node.remove_pod("long")


def test_containerd_2_is_configured_for_the_runtime(node: KubernetesNode) -> None:
    """In the newest version of its configuration, by a file in the folder that it imports."""
    node.run("oci-decorator", "configure", "containerd")
    node.restart_containerd()
    with Cri(node.socket, "oci-decorator") as pod:
        sleep = ("sleep", "infinity")
        asking = pod.start("asking", _IMAGE, *sleep, env=("OCI_NVIDIA=all",))
        plain = pod.start("plain", _IMAGE, *sleep)
        said = pod.exec(asking, "sh", "-c", _NODES)
        assert f"/dev/nvidia0 {ALLOWED}\n" in said
        assert pod.exec(plain, "sh", "-c", _NODES) == ""
