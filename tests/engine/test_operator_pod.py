"""The DaemonSet of NVIDIA's GPU Operator with our image, by a kubelet, in a cluster of one node.

The DaemonSet is that of docs/reference/gpu-operator.md. Its node is a folder, as in
test_driver_pod.py: programs in place of modprobe and rmmod change its /proc and /sys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from kit.cluster import IMAGE, Cluster
from kit.driver_pod import documents, lay_out, loaded, stood_in
from kit.hosts import DISTRO, NEW_KERNEL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.engine import Engine
    from kit.product import Provision

# Besides, the first time: Kubernetes and containerd are compiled.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(6)]

_DRIVER_PODS = "/api/v1/namespaces/gpu-operator/pods"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver_image(
    cluster: Cluster,
    engine: Engine,
    provision: Provision,
    small_nvidia: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """NVIDIA's driver with small modules, as an image that the node has."""
    target = ("nvidia", "--version", "latest", "--kernel", NEW_KERNEL, "--distro", DISTRO)
    image = str(provision.build(*target, "--catalogue", small_nvidia)["image"])
    archive = tmp_path_factory.mktemp("driver") / "image.tar"
    engine.docker("save", "--output", archive, image)
    cluster.load(archive)
    return image


def test_the_operators_probe_finds_a_driver(cluster: Cluster, driver_image: str) -> None:
    """The operator's DaemonSet with our image, and the startup probe as kubelet runs it."""
    kernel = cluster.root / "srv/kernel"
    lay_out(kernel, NEW_KERNEL)
    names = {"metadata": {"name": "gpu-operator"}}
    cluster.server.apply({"apiVersion": "v1", "kind": "Namespace", **names})
    config, daemonset = documents(driver_image, NEW_KERNEL, "one")
    cluster.server.apply(config)
    cluster.server.apply(stood_in(daemonset, "/srv/kernel", IMAGE))
    cluster.label(
        {
            "nvidia.com/gpu.deploy.driver": "true",
            "feature.node.kubernetes.io/kernel-version.full": NEW_KERNEL,
        }
    )

    def is_started() -> bool:
        pods = cluster.get(_DRIVER_PODS)["items"]
        return any(
            one["started"] for pod in pods for one in pod["status"].get("containerStatuses", [])
        )

    cluster.wait_for("the driver pod", is_started)
    assert loaded(kernel) == {"nvidia", "nvidia_modeset", "nvidia_uvm"}
    ready = (cluster.root / "run/nvidia/validations/.driver-ctr-ready").read_text()
    assert yaml.safe_load(ready) == dict.fromkeys(
        ("GDRCOPY_ENABLED", "GDS_ENABLED", "GPU_DIRECT_RDMA_ENABLED"), False
    )
