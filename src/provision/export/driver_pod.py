"""The driver pod: what NVIDIA's GPU Operator needs to run our image as its own, and without it.

Sources: api/nvidia/v1alpha1/nvidiadriver_types.go, deployments/gpu-operator/values.yaml and
manifests/state-driver of https://github.com/NVIDIA/gpu-operator, at commit a22dbf671. The image's
side is templates/loader/pod.sh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.errors import NotFoundError
from provision.export.artifact_source import ArtifactSource, Choice, images_of, note_dra
from provision.export.kubernetes import (
    Document,
    check_name,
    daemonset,
    node_pod,
    privileged_namespace,
)
from provision.manifest import DriverPod, ForeignRoot
from provision.registry.names import Reference, operator_tags

# https://kubernetes-sigs.github.io/node-feature-discovery/stable/usage/features.html
_KERNEL_LABEL = "feature.node.kubernetes.io/kernel-version.full"


@dataclass(frozen=True, slots=True)
class PodOptions:
    """The options of a driver pod in a cluster."""

    namespace: str = "provision"
    selector: Mapping[str, str] = field(default_factory=dict)
    pull_secret: str | None = None


def pod_of(driver: str, root: ForeignRoot | None) -> tuple[ForeignRoot, DriverPod]:
    """Return what a recipe says of a driver pod."""
    if root is None or root.pod is None:
        raise NotFoundError(
            f"There is no driver pod of {driver}: its recipe has no [host.root.pod].",
            resolution=f"Take another way: provision export kmm {driver}; or 'provision export"
            " daemonset'.",
        )
    return root, root.pod


def pod_files(
    source: ArtifactSource,
    driver: str,
    choice: Choice,
    options: PodOptions,
    *,
    address: str | None = None,
    plain: bool = False,
) -> dict[str, list[Document]]:
    """Return what runs the images of a driver as driver pods: documents by name of their file.

    Args:
        address: The cluster's registry; None: that of provision.toml.
        plain: Whether the cluster has no operator, so that each kernel needs a DaemonSet.
    """
    recipe = source.settings.catalogue.entry(driver).recipe
    root, _ = pod_of(driver, recipe.host.root)
    repository = source.repository(driver, address)
    found = images_of(source, driver, repository, choice, is_one_distro=plain)
    for tag in found:
        image = str(repository.with_tag(tag.text))
        source.manifest(image).require("driver-pod", image)
    note_dra(source.settings.catalogue, driver, found[-1].version)
    if plain:
        images = {tag.kernel: repository.with_tag(tag.text) for tag in found}
        return {"daemonsets.yaml": daemonset_documents(driver, root, images, options)}
    version = found[-1].version
    if found[-1].flavour != recipe.default_flavour:
        version = f"{version}-{found[-1].flavour}"
    return operator_documents(driver, repository, version, options)


def operator_documents(
    driver: str, repository: Reference, version: str, options: PodOptions
) -> dict[str, list[Document]]:
    """Return the operator's Helm values, and the object that names the driver, by file name.

    The operator runs a pod for each kernel and distro of the nodes, and finds the images by their
    tags.

    Args:
        version: As which version the operator finds it.
    """
    check_name("name of the driver", driver)
    folder, _, image = repository.name.rpartition("/")
    spec: Document = {
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
    values: Document = {
        "driver": {
            "enabled": True,
            "nvidiaDriverCRD": {"enabled": True, "deployDefaultCR": False},
        }
    }
    named: Document = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "NVIDIADriver",
        "metadata": {"name": f"provision-{driver}"},
        "spec": spec,
    }
    return {"values.yaml": [values], "driver.yaml": [named]}


def daemonset_documents(
    driver: str,
    root: ForeignRoot,
    images: Mapping[str, Reference],
    options: PodOptions,
) -> list[Document]:
    """Return a DaemonSet for each kernel, for clusters without an operator."""
    check_name("name of the driver", driver)
    return [
        privileged_namespace(options.namespace),
        *(
            _daemonset(driver, root, kernel, str(image), options)
            for kernel, image in images.items()
        ),
    ]


def _daemonset(
    driver: str, root: ForeignRoot, kernel: str, image: str, options: PodOptions
) -> Document:
    _, driver_pod = pod_of(driver, root)
    # The folder of the host that pod and operands share.
    folder = root.path.rpartition("/")[0]
    ready = f'[ "$(cat {folder}/validations/.driver-daemons-status)" = Ready ]'
    digest = hashlib.sha256(image.encode()).hexdigest()
    container: Document = {
        "name": "driver",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [driver_pod.command],
        "args": ["init"],
        "env": [{"name": "DRIVER_CONFIG_DIGEST", "value": digest}],
        "readinessProbe": {"exec": {"command": ["sh", "-c", ready]}, "periodSeconds": 10},
        # The root that it mounts has to reach the node.
        "securityContext": {"privileged": True, "seLinuxOptions": {"level": "s0"}},
        "volumeMounts": [{"name": "run", "mountPath": folder, "mountPropagation": "Bidirectional"}],
    }
    # The kernel's release as Node Feature Discovery writes it in a label.
    label = operator_tags("0", kernel, "x")[0].removeprefix("0-").removesuffix("-x")
    pod = node_pod(
        container,
        [{"name": "run", "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}],
        selector={_KERNEL_LABEL: label, **options.selector},
        # Unloading waits for hardware.
        grace_s=120,
        pull_secret=options.pull_secret,
    )
    # The loader reads the host's /proc, and loads modules of the kernel's own from its root.
    pod["hostPID"] = True
    # A name of a label's value, for each kernel another.
    name = f"{driver}-driver-{hashlib.sha256(kernel.encode()).hexdigest()[:8]}"
    # A driver is replaced when its node is free, and only the admin knows when that is.
    strategy: Document = {"type": "OnDelete"}
    return daemonset(name, options.namespace, pod, strategy, component=f"{driver}-driver")
