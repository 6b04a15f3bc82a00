"""Objects of Kubernetes: what the exports have in common, and their text.

Sources: https://kubernetes.io/docs/reference/kubernetes-api/ for the fields of each kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from provision.errors import UsageError
from provision.files import write_atomic

Value: TypeAlias = "str | int | bool | Sequence[Value] | Mapping[str, Value] | None"
Document: TypeAlias = dict[str, Value]

_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# Characters that YAML escapes and JSON does not: https://yaml.org/spec/1.2.2/ section 5.1.
_UNPRINTED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def check_name(what: str, name: str) -> None:
    """Do nothing, unless Kubernetes would refuse a name of an object."""
    if not _DNS_LABEL.fullmatch(name):
        raise UsageError(
            f"The {what}, '{name}', can't be a name in Kubernetes.",
            resolution="It takes lower case letters, digits and '-', and 63 of them at most.",
        )


def privileged_namespace(name: str) -> Document:
    """Return a namespace whose pods may load modules; other levels of pod security forbid it."""
    labels: Document = {"pod-security.kubernetes.io/enforce": "privileged"}
    metadata: Document = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def node_pod(
    container: Document,
    volumes: Sequence[Document],
    *,
    selector: Mapping[str, str],
    grace_s: int,
    pull_secret: str | None,
) -> Document:
    """Return the specification of a pod that serves its node.

    Args:
        selector: Labels of its nodes, besides the system.
    """
    spec: Document = {
        # It never talks to the API server.
        "automountServiceAccountToken": False,
        "priorityClassName": "system-node-critical",
        "nodeSelector": {"kubernetes.io/os": "linux", **selector},
        # A node without its driver often is tainted for that very reason.
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": grace_s,
        "containers": [container],
        "volumes": volumes,
    }
    if pull_secret:
        spec["imagePullSecrets"] = [{"name": pull_secret}]
    return spec


def daemonset(
    name: str, namespace: str, pod: Document, strategy: Document, **labels: str
) -> Document:
    """Return a DaemonSet; ``labels`` are further ones of ``app.kubernetes.io``."""
    own: Document = {"app.kubernetes.io/name": name}
    every = own | {f"app.kubernetes.io/{key}": value for key, value in labels.items()}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace, "labels": every},
        "spec": {
            "selector": {"matchLabels": own},
            "updateStrategy": strategy,
            "template": {"metadata": {"labels": every}, "spec": pod},
        },
    }


def to_yaml(*documents: Document) -> str:
    """Return documents as one stream of YAML, each of them as JSON."""
    # kubectl reads a file that begins with a brace as JSON alone.
    return "".join(f"---\n{_json(one)}\n" for one in documents)


def _json(document: Document) -> str:
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return _UNPRINTED.sub(lambda one: f"\\u{ord(one[0]):04x}", text)


def check_output(folder: Path) -> None:
    """Refuse a folder that is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"'{folder}' is not empty, so nothing is written into it.",
            resolution=f"Name a new folder, or empty this one: rm -r '{folder}'",
        )


def write_files(folder: Path, files: Mapping[str, Sequence[Document]]) -> None:
    """Write the documents of each file into a folder; only its owner reads a ``Secret``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, documents in files.items():
        is_secret = any(one["kind"] == "Secret" for one in documents if "kind" in one)
        write_atomic(folder / name, to_yaml(*documents), mode=0o600 if is_secret else 0o644)
