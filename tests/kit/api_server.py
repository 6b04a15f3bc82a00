"""A real Kubernetes API server with an etcd; no kubelet, no controllers: `kit.cluster` has them."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import requests

from kit.files import remove_tree
from kit.go_modules import go_programs
from kit.probe import need_programs
from kit.process import Daemon, run
from kit.registry import free_port

# That of tests/data/go/kubernetes.
_VERSION = "1.37.2"
_ADMIN = "admin"
# Those that the tokens are of, with their groups; a token is the user's name.
_USERS = {
    _ADMIN: "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "system:node:node": "system:nodes",
}
_TIMEOUT_S = 60
# Where objects of a kind are, after their group and namespace.
_KINDS = {
    "ConfigMap": "configmaps",
    "DaemonSet": "daemonsets",
    "Namespace": "namespaces",
    "Node": "nodes",
    "Pod": "pods",
    "RuntimeClass": "runtimeclasses",
}


def kubernetes(*names: str) -> Path:
    """A folder with these programs of Kubernetes; minutes, the first time."""
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in names]
    stamps = {"k8s.io/component-base/version.gitVersion": f"v{_VERSION}"}
    return go_programs("kubernetes", *packages, stamps=stamps)


@dataclass
class ApiServer:
    """`with ApiServer() as server:` starts both, waits until all is ready, and ends them."""

    # The address of this machine at which it listens.
    host: str = "127.0.0.1"

    def __enter__(self) -> Self:
        need_programs("go", "etcd", "openssl")
        program = kubernetes("kube-apiserver") / "kube-apiserver"
        self._folder = Path(tempfile.mkdtemp(prefix="provision-api-server-"))
        self.address = f"https://{self.host}:{free_port()}"
        with ExitStack() as stack:
            stack.callback(remove_tree, self._folder)
            etcd = self._start_etcd(stack)
            run(("openssl", "genrsa", "-out", self.accounts_key, "2048"))
            tokens = self._folder / "tokens"
            rows = (f'{user},{user},{user},"{group}"\n' for user, group in _USERS.items())
            tokens.write_text("".join(rows))
            flags = {
                "etcd-servers": etcd,
                "bind-address": self.host,
                "secure-port": self.address.rpartition(":")[2],
                "cert-dir": self._folder / "certificates",
                "service-account-issuer": "https://provision.test",
                "service-account-key-file": self.accounts_key,
                "service-account-signing-key-file": self.accounts_key,
                "token-auth-file": tokens,
                "authorization-mode": "Node,RBAC",
                "enable-admission-plugins": "NodeRestriction",
                "allow-privileged": "true",
                # No name server knows the node.
                "kubelet-preferred-address-types": "InternalIP",
            }
            words = [str(program), *(f"--{name}={value}" for name, value in flags.items())]
            log = self._folder / "log"
            daemon = Daemon(words, log=log, ready=self._is_ready, ready_within_s=300)
            stack.callback(daemon.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def request(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        **params: str,
    ) -> requests.Response:
        """Ask it, as its administrator; unknown fields of a document are errors."""
        kind = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
        if document is not None:
            params["fieldValidation"] = "Strict"
        return requests.request(
            method,
            f"{self.address}{path}",
            params=params,
            data=None if document is None else json.dumps(document),
            headers={"Authorization": f"Bearer {_ADMIN}", "Content-Type": kind},
            verify=str(self.authority),
            timeout=_TIMEOUT_S,
        )

    def create(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object in the collection at a path; as the server has it then."""
        answer = self.request("POST", path, document)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def apply(self, document: Mapping[str, Any]) -> str:
        """Create or change an object, as `kubectl apply --server-side` does; its path."""
        path = _path_of(document)
        answer = self.request("PATCH", path, document, fieldManager="kit", force="true")
        assert answer.ok, answer.text
        return path

    def kubeconfig(self, path: Path, token: str) -> Path:
        """Write a file by which clients reach it with a token; `path`."""
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        cluster = {"server": self.address, "certificate-authority-data": authority}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(document))
        return path

    @property
    def accounts_key(self) -> Path:
        """What signs the tokens of service accounts."""
        return self._folder / "accounts.key"

    @property
    def authority(self) -> Path:
        """The certificate by which clients know it."""
        return self._folder / "certificates/apiserver.crt"

    def _start_etcd(self, stack: ExitStack) -> str:
        address, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        words = (
            *("etcd", "--data-dir", self._folder / "etcd"),
            *("--listen-client-urls", address, "--advertise-client-urls", address),
            *("--listen-peer-urls", peers),
        )
        daemon = Daemon(words, log=self._folder / "etcd.log", ready=lambda: _is_healthy(address))
        stack.callback(daemon.stop)
        return address

    def _is_ready(self) -> bool:
        try:
            return self.authority.exists() and self.request("GET", "/readyz").ok
        except (requests.ConnectionError, requests.Timeout):
            return False


def _path_of(document: Mapping[str, Any]) -> str:
    version, metadata = document["apiVersion"], document["metadata"]
    group = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = metadata.get("namespace")
    where = f"{group}/namespaces/{namespace}" if namespace else group
    return f"{where}/{_KINDS[document['kind']]}/{metadata['name']}"


def _is_healthy(address: str) -> bool:
    try:
        return requests.get(f"{address}/health", timeout=5).ok
    except (requests.ConnectionError, requests.Timeout):
        return False
