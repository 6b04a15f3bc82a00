"""The DaemonSet of NVIDIA's GPU Operator with our image, by a kubelet, in a cluster of one node.

The DaemonSet is that of docs/reference/gpu-operator.md. Its node is a folder, as in
test_driver_pod.py: programs in place of modprobe and rmmod change its /proc and /sys.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit.cluster import IMAGE, Cluster, pod_of
from kit.driver_pod import documents, lay_out, loaded, stood_in
from kit.engine import Engine
from kit.hosts import DISTRO, NEW_KERNEL
from kit.product import Provision

# The first time, half of it to compile Kubernetes and containerd.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(13)]

_DRIVER_PODS = "/api/v1/namespaces/gpu-operator/pods"
# As the DRA driver starts it: by the root's own library. The GPU alone may be missing, not a file,
# which nvidia-smi(1) says with 12, and a shell with 126 and 127.
_OPERAND = """
cd /driver-root
env -i LD_PRELOAD=$PWD/usr/lib64/libnvidia-ml.so.1 usr/bin/nvidia-smi >/smi || code=$?
case ${code:-0} in 12 | 126 | 127) cat /smi; exit 1 ;; esac
cat manifest.json
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def builds(
    cluster: Cluster,
    engine: Engine,
    provision: Provision,
    small_nvidia: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[dict[str, Any]]:
    """Two builds of NVIDIA's driver, with small modules: their images, which the node has."""
    folder = tmp_path_factory.mktemp("builds")
    other = shutil.copytree(small_nvidia, folder / "catalogue")
    recipe = other / "nvidia/driver.toml"
    recipe.write_text(recipe.read_text().replace("return 0;", "return 1 - 1;"))
    target = ("nvidia", "--version", "latest", "--kernel", NEW_KERNEL, "--distro", DISTRO)
    found = [
        provision.build(*target, "--catalogue", catalogue) for catalogue in (small_nvidia, other)
    ]
    assert found[0]["digest"] != found[1]["digest"]
    images = [build["image"] for build in found]
    engine.docker("save", "--output", folder / "images.tar", *images)
    cluster.load(folder / "images.tar")
    return found


class Operator:
    """The DaemonSet of NVIDIA's GPU Operator on the node, and what stands in for its kernel."""

    def __init__(self, cluster: Cluster, root: Path) -> None:
        """Lay the latter out, below the node's /srv."""
        self.cluster = cluster
        self.run = cluster.root / "run/nvidia"
        self.kernel = root
        lay_out(root, NEW_KERNEL)
        names = {"metadata": {"name": "gpu-operator"}}
        cluster.server.apply({"apiVersion": "v1", "kind": "Namespace", **names})

    def apply(self, image: str, digest: str) -> None:
        config, daemonset = documents(image, NEW_KERNEL, digest)
        self.cluster.server.apply(config)
        self.cluster.server.apply(stood_in(daemonset, f"/srv/{self.kernel.name}", IMAGE))
        self.cluster.label(
            {
                "nvidia.com/gpu.deploy.driver": "true",
                "feature.node.kubernetes.io/kernel-version.full": NEW_KERNEL,
            }
        )

    def pod(self) -> str:
        """The path of the one pod; empty if there is none."""
        found = self.cluster.get(_DRIVER_PODS)["items"]
        names = [one["metadata"]["name"] for one in found]
        return f"{_DRIVER_PODS}/{names[0]}" if len(names) == 1 else ""

    def wait(self, other_than: tuple[str, int] | None = None) -> tuple[str, int]:
        """Until the probe has passed, in a container other than this one; the container."""

        def is_started() -> bool:
            pod = self.cluster.get(self.pod()) if self.pod() else {}
            statuses = pod.get("status", {}).get("containerStatuses", [])
            return (
                any(one["started"] for one in statuses)
                and self.cluster.container(self.pod()) != other_than
            )

        self.cluster.wait_for("the driver pod", is_started)
        return self.cluster.container(self.pod())

    def calls(self) -> list[str]:
        """What modprobe and rmmod were asked for since the last call."""
        path = self.kernel / "calls"
        lines = [line for line in path.read_text().splitlines() if line.startswith(("mod", "rm"))]
        path.write_text("")
        return lines

    def seen(self) -> dict[str, Any]:
        """What an operand finds below the root: the manifest, after nvidia-smi has run."""
        pod = pod_of("operand", _OPERAND)
        mount = {"mountPath": "/driver-root", "mountPropagation": "HostToContainer"}
        pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "root", **mount}]
        folder = {"path": "/run/nvidia/driver"}
        pod["spec"]["volumes"] = [{"name": "root", "hostPath": folder}]
        found: dict[str, Any] = json.loads(self.cluster.run_pod(pod))
        return found


def test_the_operators_driver_pod_lives_and_is_replaced(
    cluster: Cluster, builds: list[dict[str, Any]]
) -> None:
    """Start, restart, upgrade and end, by the operator's DaemonSet with our image."""
    operator = Operator(cluster, cluster.root / "srv/kernel")
    first, second = builds
    operator.apply(first["image"], "one")
    began = operator.wait()
    assert loaded(operator.kernel) == {"nvidia", "nvidia_modeset", "nvidia_uvm"}
    assert operator.calls() != []
    ready = (operator.run / "validations/.driver-ctr-ready").read_text()
    assert yaml.safe_load(ready) == dict.fromkeys(
        ("GDRCOPY_ENABLED", "GDS_ENABLED", "GPU_DIRECT_RDMA_ENABLED"), False
    )
    assert operator.seen()["pin_digest"] == first["digest"]

    # The container dies: the same configuration.
    cluster.kill(operator.pod())
    again = operator.wait(other_than=began)
    assert again[1] == 1
    assert operator.calls() == []
    assert operator.seen()["pin_digest"] == first["digest"]

    # Another version: the pod stays until it is deleted.
    operator.apply(second["image"], "two")
    assert operator.wait() == again
    assert operator.calls() == []
    cluster.remove(operator.pod())
    operator.wait(other_than=again)
    calls = operator.calls()
    assert [call.split()[0] for call in calls if "nvidia" in call.split()[-1]] == [
        *["rmmod"] * 3,
        *["modprobe"] * 3,
    ]
    assert operator.seen()["pin_digest"] == second["digest"]
    assert (operator.run / "nvidia-driver.state").read_text() == "two\n"

    # It ends where the operator no longer wants a driver.
    cluster.label({})
    cluster.wait_for("the end of the driver pod", lambda: not cluster.get(_DRIVER_PODS)["items"])
    assert loaded(operator.kernel) == set()
    assert [path for path in operator.run.rglob("*") if path.is_file()] == []
