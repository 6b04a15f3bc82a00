"""What `provision export` writes for a cluster at a real API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kit.api_server import ApiServer
from kit.hosts import OLD_KERNEL, SMALL_DRIVER
from kit.process import wait_for
from kit.product import Provision
from kit.signed_fleet import Fleet, signed_fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.engine import Engine

# Besides, the first time: the server is compiled.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(8)]

_RECORDED = Path(__file__).parents[1] / "data/kubernetes/kmm-module.json"
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
    """An empty cluster that knows KMM's kind of object."""
    with ApiServer() as server:
        server.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _definition())
        wait_for("that kind", lambda: server.request("GET", _MODULES).ok, within_s=60)
        yield server


@pytest.fixture(scope="module")
def fleet(
    engine: Engine, first_small_build: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """A registry with one signed image."""
    assert first_small_build["image"]
    with signed_fleet(engine, tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


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
