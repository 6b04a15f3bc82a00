"""What `provision export` writes for a cluster at a real API server."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit.api_server import ApiServer
from kit.go_modules import go_module, go_programs
from kit.host_tree import DRIVER, KERNEL, HostTree
from kit.hosts import OLD_KERNEL, SMALL_DRIVER
from kit.process import run, wait_for
from kit.product import Provision
from kit.signed_registry import Fleet

# The first time, half of it to compile the server.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(13)]

_RECORDED = Path(__file__).parents[1] / "data/kubernetes/kmm-module.json"
_FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/default/nodefeatures"
_LABEL = "feature.node.kubernetes.io/provision"
_NFD = (
    "sigs.k8s.io/node-feature-discovery",
    "v0.19.0",
    "h1:9CYm16vjSIbNO5Z1Y67rcrfy51YWmy3+6wjiWzJbrC4=",
)
_MODULES = "/apis/kmm.sigs.x-k8s.io/v1beta1/namespaces/default/modules"
# Where objects of a kind are created.
_COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "ConfigMap": "/api/v1/namespaces/provision/configmaps",
    "DaemonSet": "/apis/apps/v1/namespaces/provision/daemonsets",
    "RuntimeClass": "/apis/node.k8s.io/v1/runtimeclasses",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """An empty cluster that knows the kinds of KMM and of Node Feature Discovery."""
    kinds = (go_module(*_NFD) / "deployment/base/nfd-crds/nfd-api-crds.yaml").read_text()
    with ApiServer() as server:
        for definition in (_definition(), *yaml.safe_load_all(kinds)):
            server.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        wait_for(
            "those kinds",
            lambda: all(server.request("GET", kind).ok for kind in (_MODULES, _FEATURES)),
            within_s=60,
        )
        yield server


@pytest.fixture(scope="module")
def agent(server: ApiServer, fleet: Fleet) -> list[dict[str, Any]]:
    """What `provision export daemonset` writes, created in the cluster in its order."""
    config = fleet.folder / "provision.toml"
    config.write_text(fleet.settings())
    words = ("--image", "registry.example/provision/agent:0.1.0", "--config", config)
    printed = Provision("unix:///nowhere")(
        "export", "daemonset", *words, "--key", fleet.folder / "fleet.pub"
    ).stdout
    documents = list(yaml.safe_load_all(printed))
    for document in documents:
        server.create(_COLLECTIONS[document["kind"]], document)
    return documents


def _definition() -> dict[str, Any]:
    """KMM's resource definition, with the part of its schema that is recorded."""
    schema = json.loads(_RECORDED.read_text())["schema"]
    # Not recorded, and named by its rules.
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema["properties"]["spec"]["properties"]["devicePlugin"] = anything
    version = {
        "name": "v1beta1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"kind": "Module", "listKind": "ModuleList", "plural": "modules", "singular": "module"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "modules.kmm.sigs.x-k8s.io"},
        "spec": {
            "group": "kmm.sigs.x-k8s.io",
            "names": names,
            "scope": "Namespaced",
            "versions": [version],
        },
    }


@pytest.mark.parametrize("dra", [(), ("--dra", "registry.example/dra:1", "--dra-driver", "x.test")])
def test_a_module_for_kmm_is_taken_by_its_definition(
    server: ApiServer, fleet: Fleet, dra: tuple[str, ...]
) -> None:
    words = ("--registry", fleet.address, "--distro", "debian:12", "--kernel", OLD_KERNEL, *dra)
    printed = Provision("unix:///nowhere")(
        "export", "kmm", SMALL_DRIVER, *words, "--public-key", fleet.folder / "fleet.pub"
    ).stdout
    (module,) = yaml.safe_load_all(printed)
    assert ("dra" in module["spec"]) == bool(dra)
    module["metadata"]["name"] = f"taken{len(dra)}"
    created = server.create(_MODULES, module)
    # Nothing was pruned.
    assert created["spec"] == module["spec"]
    misspelt = {**module, "metadata": {"name": "other"}, "spec": {**module["spec"], "selecter": {}}}
    refused = server.request("POST", _MODULES, misspelt)
    assert (refused.status_code, "selecter" in refused.text) == (400, True)


def test_the_agents_documents_are_created_in_their_order(
    server: ApiServer, agent: list[dict[str, Any]]
) -> None:
    (daemonset,) = (one for one in agent if one["kind"] == "DaemonSet")
    # In a cluster the controller manager makes it for each namespace.
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    server.create("/api/v1/namespaces/provision/serviceaccounts", account)
    pods = "/api/v1/namespaces/provision/pods"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent", **daemonset["spec"]["template"]["metadata"]},
        "spec": daemonset["spec"]["template"]["spec"],
    }
    # The namespace's level of pod security and the priority class let its pods in.
    created = server.create(pods, pod)
    assert created["spec"]["priority"] > 1_000_000_000


@pytest.fixture(scope="module")
def worker() -> Path:
    """The worker of Node Feature Discovery: what reads a node's feature files."""
    module, version, _ = _NFD
    stamps = {f"{module}/pkg/version.version": version}
    return go_programs(Path(module).name, f"{module}/cmd/nfd-worker", stamps=stamps) / "nfd-worker"


def test_node_feature_discovery_labels_a_node_with_its_driver(
    server: ApiServer, worker: Path, tmp_path: Path
) -> None:
    host = HostTree.make(tmp_path)
    features = host.root / "etc/kubernetes/node-feature-discovery/features.d/provision"
    features.parent.mkdir(parents=True)
    shutil.copy(worker, host.root)
    kubeconfig = server.kubeconfig(host.root / "kubeconfig", "admin")

    def labels() -> dict[str, str]:
        """The worker's, of the labels that it found in files."""
        words = ("-oneshot", "-owner-refs=", "-feature-sources=local", "-label-sources=local")
        given = {"NODE_NAME": "node", "KUBERNETES_NAMESPACE": "default"}
        run(
            ["chroot", host.root, "/nfd-worker", *words, f"-kubeconfig=/{kubeconfig.name}"],
            env=given,
        )
        spec = server.request("GET", f"{_FEATURES}/node").json()["spec"]
        found: dict[str, str] = spec.get("labels", {})
        return found

    host.offer(version="1.2")
    host.want('[kubernetes]\ngates = { "nvidia.com/gpu.deploy.operands" = "other" }\n')
    Provision(environment=host.environment)("apply", "--root", host.root)
    assert labels() == {
        f"{_LABEL}.ready": "true",
        f"{_LABEL}.kernel": KERNEL,
        f"{_LABEL}-{DRIVER}.state": "ready",
        f"{_LABEL}-{DRIVER}.version": "1.2",
        "nvidia.com/gpu.deploy.operands": "false",
    }
    # As an agent leaves it that stopped long ago.
    features.write_text(re.sub("expiry-time=20..", "expiry-time=2025", features.read_text()))
    assert labels() == {}
