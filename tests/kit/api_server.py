"""A real Kubernetes API server with an etcd, on the loopback interface; no kubelet, no controllers.

The server is compiled from the Go modules that tests/data/kubernetes/api-server pins by hash, once
a cache: some five minutes on two cores. Debian packages etcd.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import requests

from kit.cache import REPOSITORY, cached
from kit.engine import remove_tree
from kit.probe import need_programs
from kit.process import Daemon, run
from kit.registry import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ApiServer"]

_VERSION = "1.30.14"
_MODULES = REPOSITORY / "tests/data/kubernetes/api-server"
_PROGRAM = "k8s.io/kubernetes/cmd/kube-apiserver"
_GO_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
_TOKEN = "of-the-admin"  # noqa: S105 - of a server that ends with the test
_TIMEOUT_S = 60


def _built() -> Path:
    """The server's program."""

    def make(draft: Path) -> None:
        folder = Path(tempfile.mkdtemp(prefix="provision-api-server-"))
        try:
            for name in ("go.mod", "go.sum"):
                shutil.copy(_MODULES / name, folder)
            version = f"-X k8s.io/component-base/version.gitVersion=v{_VERSION}"
            words = ("go", "build", "-ldflags", f"-s -w {version}", "-o", draft, _PROGRAM)
            run(words, cwd=folder, env=_GO_ENVIRONMENT)
        finally:
            remove_tree(folder)

    return cached(f"kube-apiserver-{_VERSION}", make)


class ApiServer:
    """`with ApiServer() as server:` starts both, waits until all is ready, and ends them."""

    def __enter__(self) -> Self:
        """Start it."""
        need_programs("go", "etcd", "openssl")
        program = _built()
        self._folder = Path(tempfile.mkdtemp(prefix="provision-api-server-"))
        self.address = f"https://127.0.0.1:{free_port()}"
        with ExitStack() as stack:
            stack.callback(remove_tree, self._folder)
            etcd = self._start_etcd(stack)
            key = self._folder / "accounts.key"
            run(("openssl", "genrsa", "-out", key, "2048"))
            tokens = self._folder / "tokens"
            tokens.write_text(f"{_TOKEN},admin,1,system:masters\n")
            flags = {
                "etcd-servers": etcd,
                "bind-address": "127.0.0.1",
                "secure-port": self.address.rpartition(":")[2],
                "cert-dir": self._folder / "certificates",
                "service-account-issuer": "https://provision.test",
                "service-account-key-file": key,
                "service-account-signing-key-file": key,
                "token-auth-file": tokens,
                "authorization-mode": "RBAC",
            }
            words = [str(program), *(f"--{name}={value}" for name, value in flags.items())]
            log = self._folder / "log"
            daemon = Daemon(words, log=log, ready=self._is_ready, ready_within_s=300)
            stack.callback(daemon.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End both."""
        self._stack.close()

    def request(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        token: str = _TOKEN,
    ) -> requests.Response:
        """Ask it, as its administrator or with a token; unknown fields of a document are errors."""
        return requests.request(
            method,
            f"{self.address}{path}",
            params={"fieldValidation": "Strict"} if document is not None else None,
            json=document,
            headers={"Authorization": f"Bearer {token}"},
            verify=str(self._authority),
            timeout=_TIMEOUT_S,
        )

    def create(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object in the collection at a path; as the server has it then.

        Raises:
            AssertionError: it was refused; with the server's message.
        """
        answer = self.request("POST", path, document)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def wait_for(self, path: str) -> None:
        """Wait until it serves a path: that of a kind of object which was just defined.

        Raises:
            TimeoutError: it does not.
        """
        deadline = time.monotonic() + _TIMEOUT_S
        while not self.request("GET", path).ok:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the API server does not serve {path}")
            time.sleep(0.1)

    def kubeconfig(self, path: Path, token: str) -> Path:
        """Write a file by which clients reach it with a token; `path`."""
        cluster = {"server": self.address, "certificate-authority": str(self._authority)}
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
    def _authority(self) -> Path:
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
            return self._authority.exists() and self.request("GET", "/readyz").ok
        except (requests.ConnectionError, requests.Timeout):
            return False


def _is_healthy(address: str) -> bool:
    try:
        return requests.get(f"{address}/health", timeout=5).ok
    except (requests.ConnectionError, requests.Timeout):
        return False
