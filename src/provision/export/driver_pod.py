"""The driver pod: what NVIDIA's GPU Operator needs to run our image as its own, and without it.

Sources: api/nvidia/v1alpha1/nvidiadriver_types.go, deployments/gpu-operator/values.yaml and
manifests/state-driver of https://github.com/NVIDIA/gpu-operator, at commit a22dbf671. The image's
side is templates/loader/pod.sh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from provision.errors import NotFoundError
from provision.export.kmm_module import check_name
from provision.export.yaml_files import Value
from provision.manifest import DriverPod, ForeignRoot
from provision.registry.names import Reference, operator_tags

# https://kubernetes-sigs.github.io/node-feature-discovery/stable/usage/features.html
_KERNEL_LABEL = "feature.node.kubernetes.io/kernel-version.full"


@dataclass(frozen=True, slots=True)
class PodOptions:
    """The options of a driver pod in a cluster."""

    namespace: str
    selector: Mapping[str, str] = field(default_factory=dict)
    pull_secret: str | None = None


def pod_of(driver: str, root: ForeignRoot | None) -> tuple[ForeignRoot, DriverPod]:
    """Return what a recipe says of a driver pod."""
    if root is None or root.pod is None:
        raise NotFoundError(
            f"There is no driver pod of {driver}: its recipe has no [host.root.pod].",
            resolution=f"Take another way: provision export kmm {driver}, or provision export"
            " daemonset.",
        )
    return root, root.pod


def operator_documents(
    driver: str, repository: Reference, version: str, options: PodOptions
) -> dict[str, dict[str, Value]]:
    """Return the operator's Helm values, and the object that names the driver, by file name.

    The operator runs a pod for each kernel and distro of the nodes, and finds the images by their
    tags.

    Args:
        version: As which version the operator finds it.
    """
    _check(driver, options)
    folder, _, image = repository.name.rpartition("/")
    spec: dict[str, Value] = {
        "driverType": "gpu",
        "usePrecompiled": True,
        "repository": folder,
        "image": image,
        "version": version,
        "imagePullPolicy": "IfNotPresent",
    }
    if options.pull_secret:
        spec["imagePullSecrets"] = [options.pull_secret]
    if options.selector:
        spec["nodeSelector"] = dict(options.selector)
    return {
        "values.yaml": {
            "driver": {
                "enabled": True,
                "nvidiaDriverCRD": {"enabled": True, "deployDefaultCR": False},
            }
        },
        "driver.yaml": {
            "apiVersion": "nvidia.com/v1alpha1",
            "kind": "NVIDIADriver",
            "metadata": {"name": f"provision-{driver}"},
            "spec": spec,
        },
    }


def daemonset_documents(
    driver: str,
    root: ForeignRoot,
    images: Mapping[str, Reference],
    options: PodOptions,
) -> list[dict[str, Value]]:
    """Return a DaemonSet for each kernel, for clusters without an operator."""
    _check(driver, options)
    # The other levels of pod security forbid loading modules.
    labels: dict[str, Value] = {"pod-security.kubernetes.io/enforce": "privileged"}
    metadata: dict[str, Value] = {"name": options.namespace, "labels": labels}
    namespace: dict[str, Value] = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    return [
        namespace,
        *(
            _daemonset(driver, root, kernel, str(image), options)
            for kernel, image in images.items()
        ),
    ]


def kernel_label(kernel: str) -> str:
    """Return a kernel's release as Node Feature Discovery writes it in a label."""
    (tag, _) = operator_tags("0", kernel, "x")
    return tag.removeprefix("0-").removesuffix("-x")


def _check(driver: str, options: PodOptions) -> None:
    check_name("name of the driver", driver)
    check_name("namespace", options.namespace)


def _daemonset(
    driver: str, root: ForeignRoot, kernel: str, image: str, options: PodOptions
) -> dict[str, Value]:
    # A name of a label's value, for each kernel another.
    short = hashlib.sha256(kernel.encode()).hexdigest()[:8]
    name = f"{driver}-driver-{short}"
    labels: dict[str, Value] = {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/component": f"{driver}-driver",
    }
    spec: dict[str, Value] = {
        "automountServiceAccountToken": False,
        # The loader reads the host's /proc, and loads modules of the kernel's own from its root.
        "hostPID": True,
        "priorityClassName": "system-node-critical",
        "nodeSelector": {
            "kubernetes.io/os": "linux",
            _KERNEL_LABEL: kernel_label(kernel),
            **options.selector,
        },
        "tolerations": [{"operator": "Exists"}],
        # Unloading waits for hardware.
        "terminationGracePeriodSeconds": 120,
        "containers": [_container(driver, root, image)],
        "volumes": [
            {
                "name": "run",
                "hostPath": {"path": _folder(root), "type": "DirectoryOrCreate"},
            }
        ],
    }
    if options.pull_secret:
        spec["imagePullSecrets"] = [{"name": options.pull_secret}]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": options.namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            # A driver is replaced when its node is free, and only the admin knows when that is.
            "updateStrategy": {"type": "OnDelete"},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def _container(driver: str, root: ForeignRoot, image: str) -> dict[str, Value]:
    _, pod = pod_of(driver, root)
    folder = _folder(root)
    ready = f'[ "$(cat {folder}/validations/.driver-daemons-status)" = Ready ]'
    probe: dict[str, Value] = {"exec": {"command": ["sh", "-c", ready]}, "periodSeconds": 10}
    digest = hashlib.sha256(image.encode()).hexdigest()
    environment: Sequence[Value] = [{"name": "DRIVER_CONFIG_DIGEST", "value": digest}]
    return {
        "name": "driver",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [pod.command],
        "args": ["init"],
        "env": environment,
        "readinessProbe": probe,
        # The root that it mounts has to reach the node.
        "securityContext": {"privileged": True, "seLinuxOptions": {"level": "s0"}},
        "volumeMounts": [{"name": "run", "mountPath": folder, "mountPropagation": "Bidirectional"}],
    }


def _folder(root: ForeignRoot) -> str:
    """Return the folder of the host that pod and operands share."""
    return root.path.rpartition("/")[0]
