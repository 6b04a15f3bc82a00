"""What is exported for a driver pod: names of images, objects, and what the pod may do."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
import yaml

from kit.cache import REPOSITORY
from kit.driver_pod import NODES, documents
from provision.catalogue import Recipe
from provision.documents import load_toml
from provision.errors import NotFoundError
from provision.export.kubernetes import (
    PodOptions,
    daemonset_documents,
    operator_documents,
    pod_of,
    to_yaml,
)
from provision.manifest import ForeignRoot
from provision.registry import Reference

_KERNEL = "6.12.48+deb13-amd64"
_REPOSITORY = Reference("registry.example:5000", "drivers/nvidia")
_OPTIONS = PodOptions("drivers", {"gpu": "yes"}, "pull")


@pytest.fixture
def root() -> ForeignRoot:
    """Of NVIDIA's recipe."""
    recipe = load_toml(REPOSITORY / "driver_images/nvidia/driver.toml", Recipe)
    return pod_of("nvidia", recipe.host.root)[0]


def daemonset(root: ForeignRoot, tag: str = "590") -> dict[str, Any]:
    images = {_KERNEL: _REPOSITORY.with_tag(tag)}
    made = daemonset_documents("nvidia", root, images, _OPTIONS)
    found: list[dict[str, Any]] = list(yaml.safe_load_all(to_yaml(*made)))
    assert found == made
    return found[-1]


@pytest.mark.parametrize("version", ["1.30", "1.34"])
def test_a_daemonset_is_one_that_kubernetes_takes(root: ForeignRoot, version: str) -> None:
    kubernetes_validate.validate(daemonset(root), version, strict=True)


def test_a_daemonset_runs_the_image_as_the_operator_does(root: ForeignRoot) -> None:
    image = "registry.example:5000/drivers/nvidia:590"
    theirs = documents(image, "6.12.48_deb13-amd64", "digest")[1]["spec"]
    spec = daemonset(root)["spec"]
    assert spec["updateStrategy"] == theirs["updateStrategy"]
    pod, their_pod = spec["template"]["spec"], theirs["template"]["spec"]
    for key in ("hostPID", "priorityClassName"):
        assert pod[key] == their_pod[key]
    (container,), (their_container,) = pod["containers"], their_pod["containers"]
    for key in ("image", "command", "args", "securityContext"):
        assert container[key] == their_container[key]
    (mount,) = ({**mount, "name": "run-nvidia"} for mount in container["volumeMounts"])
    assert mount in their_container["volumeMounts"]
    label = "feature.node.kubernetes.io/kernel-version.full"
    assert pod["nodeSelector"][label] == their_pod["nodeSelector"][label]
    assert pod["nodeSelector"]["gpu"] == "yes"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]


def test_nvidias_recipe_has_the_nodes_that_operands_need() -> None:
    recipe = load_toml(REPOSITORY / "driver_images/nvidia/driver.toml", Recipe)
    nodes = {(node.name, str(node.major), str(node.minor)) for node in recipe.host.nodes}
    assert {*NODES} <= nodes


def test_another_image_is_another_configuration(root: ForeignRoot) -> None:
    def digest(tag: str) -> str:
        (container,) = daemonset(root, tag)["spec"]["template"]["spec"]["containers"]
        (variable,) = container["env"]
        assert variable["name"] == "DRIVER_CONFIG_DIGEST"
        return str(variable["value"])

    assert digest("590") == digest("590") != digest("595")


def test_the_operator_takes_the_image_from_our_registry() -> None:
    files = operator_documents("nvidia", _REPOSITORY, "590.48.01", _OPTIONS)
    assert files["driver.yaml"][0]["spec"] == {
        "driverType": "gpu",
        "usePrecompiled": True,
        "repository": "registry.example:5000/drivers",
        "image": "nvidia",
        "version": "590.48.01",
        "imagePullPolicy": "IfNotPresent",
        "imagePullSecrets": ["pull"],
        "nodeSelector": {"gpu": "yes"},
    }
    values: Any = files["values.yaml"][0]
    assert values["driver"]["nvidiaDriverCRD"]["enabled"] is True


def test_what_cannot_be_a_pod_is_refused(root: ForeignRoot) -> None:
    for without in (None, root.model_copy(update={"pod": None})):
        with pytest.raises(NotFoundError):
            pod_of("demo", without)
