"""Publishes the state of a node's drivers as its labels, for schedulers, and as events.

The official client, the optional extra ``kubernetes``, is imported here only, at the first use.
Source: https://kubernetes.io/docs/reference/kubernetes-api/
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from provision.errors import NotFoundError, ProvisionError

PREFIX = "provision/"
_READY = f"{PREFIX}ready"
_LONGEST = 63
# Seconds for a connection, and for an answer.
_TIMEOUT = (5.0, 20.0)
_NORMAL = frozenset({"ready", "pending"})


@dataclass(frozen=True, slots=True)
class Published:
    """The changes to a node.

    Attributes:
        labels: Changed labels with their new values; None for removed ones.
        events: New states by driver.
    """

    labels: Mapping[str, str | None]
    events: Mapping[str, str]


def labels_of(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a node from its status.json."""
    labels = {_READY: "true" if status["is_ready"] else "false"}
    for driver in status["drivers"]:
        name = driver["name"]
        labels[_label(name, "state")] = driver["state"]
        if driver["version"]:
            labels[_label(name, "version")] = _value(driver["version"])
    return labels


def publish(status: Mapping[str, Any], node: str, api: Any = None) -> Published:  # noqa: ANN401 - the client has no types
    """Set a node's labels to its status, and write an event for each change of state.

    Args:
        status: The content of status.json.
        node: The node's name.
        api: A ``CoreV1Api``; None: that of the pod's cluster, or of the kubeconfig.

    Raises:
        NotFoundError: The client is not installed, or there is no such cluster or node.
        ProvisionError: The API server refused or did not answer.
    """
    api = api or _connected()
    desired = labels_of(status)
    try:
        found = api.read_node(node, _request_timeout=_TIMEOUT)
        labels = {k: v for k, v in (found.metadata.labels or {}).items() if k.startswith(PREFIX)}
        changes: dict[str, str | None] = dict.fromkeys(labels.keys() - desired.keys())
        changes |= {k: v for k, v in desired.items() if labels.get(k) != v}
        events = _events(status, labels)
        # Labels record which events were sent: after a failure, the next run sends the event.
        for driver, state in events.items():
            body = _event(status, found, driver, state)
            api.create_namespaced_event("default", body, _request_timeout=_TIMEOUT)
        if changes:
            body = {"metadata": {"labels": changes}}
            api.patch_node(node, body, _request_timeout=_TIMEOUT)
    except Exception as error:
        raise _explained(error, node) from error
    return Published(changes, events)


def _events(status: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, str]:
    states = {driver["name"]: driver["state"] for driver in status["drivers"]}
    return {n: s for n, s in states.items() if labels.get(_label(n, "state")) != s}


def _event(status: Mapping[str, Any], node: Any, driver: str, state: str) -> dict[str, Any]:  # noqa: ANN401 - the client has no types
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    name = node.metadata.name
    # Kubernetes allows the characters of DNS in names.
    what = re.sub(r"[^a-z0-9]+", "-", driver).strip("-")
    return {
        "metadata": {"name": f"{name}.{what}.{time.time_ns():x}", "namespace": "default"},
        "involvedObject": {
            "kind": "Node",
            "apiVersion": "v1",
            "name": name,
            "uid": node.metadata.uid,
        },
        "reason": "Driver" + "".join(part.title() for part in state.split("-")),
        "message": _message(status, driver, state),
        "type": "Normal" if state in _NORMAL else "Warning",
        "source": {"component": "provision", "host": name},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def _message(status: Mapping[str, Any], driver: str, state: str) -> str:
    (found,) = (one for one in status["drivers"] if one["name"] == driver)
    parts = [f"{driver} {found['version'] or found['wanted']} is {state}."]
    parts += [
        f"{kernel['release']}: {kernel['reason']} {kernel['resolution'] or ''}".strip()
        for kernel in found["kernels"]
        if kernel["reason"]
    ]
    # https://github.com/kubernetes/api/blob/v0.35.0/core/v1/types.go: 1024 at most.
    return " ".join(parts)[:1024]


def _label(driver: str, what: str) -> str:
    """Return a label's name, whose part after the slash may have 63 characters too."""
    return f"{PREFIX}{driver[: _LONGEST - len(what) - 1]}.{what}"


def _value(text: str) -> str:
    """Return text as a label's value: letters, digits and ``-_.``, none of these at its ends."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:_LONGEST].strip("._-")


def _connected() -> Any:  # noqa: ANN401 - the client has no types
    try:
        client = importlib.import_module("kubernetes.client")
        config = importlib.import_module("kubernetes.config")
    except ModuleNotFoundError as error:
        raise NotFoundError(
            "Labels and events need the client of Kubernetes, which is not installed.",
            resolution="apt-get install python3-kubernetes, where provision is a package of Debian;"
            " otherwise: pip install 'provision[kubernetes]'",
        ) from error
    try:
        try:
            config.load_incluster_config()
        except config.ConfigException:
            config.load_kube_config()
    except (config.ConfigException, OSError) as error:
        raise NotFoundError(
            "No cluster is configured: there is neither a pod's service account nor a kubeconfig.",
            resolution="Run it in a pod with a service account, or set KUBECONFIG.",
            details=str(error),
        ) from error
    return client.CoreV1Api()


def _explained(error: Exception, node: str) -> ProvisionError:
    status = getattr(error, "status", None)
    reason = str(getattr(error, "reason", None) or error)
    if status == 404:  # noqa: PLR2004 - HTTP
        return NotFoundError(
            f"The cluster has no node '{node}'.", resolution="Name one of: kubectl get nodes"
        )
    if status in {401, 403}:
        return ProvisionError(
            f"The cluster does not let this account change the node '{node}'.",
            resolution="Give it the ClusterRole that 'provision export daemonset' writes.",
            details=reason,
        )
    return ProvisionError(
        f"The labels of the node '{node}' could not be brought up to date.",
        resolution="Run the command again once the API server answers.",
        details=reason,
    )
