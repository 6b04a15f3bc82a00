"""Kubernetes' container runtime interface: a pod, and containers in it.

Debian has no client of it. The messages are compiled from Kubernetes' own api.proto.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import grpc

from kit.go_modules import go_module

_INTERFACE = (
    "k8s.io/cri-api",
    "v0.34.0",
    "h1:erzXelLqzDbNdryR7eVqxmR/1JfQeurE9U+HdKTgSpU=",
    "pkg/apis/runtime/v1/api.proto",
)
_TIMEOUT_S = 180


@cache
def messages_and_services(module: str, version: str, digest: str, proto: str) -> tuple[Any, Any]:
    """The gRPC that the file `proto` of a Go module defines; `digest` as `go_module` wants it."""
    folder = str(go_module(module, version, digest))
    # grpc looks for it where modules are.
    sys.path.append(folder)
    try:
        messages, services = grpc.protos_and_services(proto)
    finally:
        sys.path.remove(folder)
    return messages, services


class CriError(Exception):
    """containerd refused; the message is what Kubernetes would show of it."""


@dataclass
class Cri:
    """A pod whose containers a runtime of config.toml starts; at the end, everything is removed."""

    socket: Path
    # The runtime's name in config.toml, as a RuntimeClass has it.
    handler: str

    def __enter__(self) -> Self:
        messages, services = messages_and_services(*_INTERFACE)
        self._channel = grpc.insecure_channel(f"unix://{self.socket}")
        self._runtime = services.RuntimeServiceStub(self._channel)
        # The host's network, so that no network plugin is wanted.
        namespaces = {"network": messages.NODE, "pid": messages.POD}
        self._config = messages.PodSandboxConfig(
            metadata={"name": "pod", "uid": "uid", "namespace": "default"},
            linux={"security_context": {"namespace_options": namespaces}},
        )
        request = {"config": self._config, "runtime_handler": self.handler}
        self._pod = self._call("RunPodSandbox", **request).pod_sandbox_id
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("StopPodSandbox", pod_sandbox_id=self._pod)
            self._call("RemovePodSandbox", pod_sandbox_id=self._pod)
        finally:
            self._channel.close()

    def start(self, name: str, image: str, *words: str, env: tuple[str, ...] = ()) -> str:
        """Start a container in the pod; its id."""
        variables = (variable.partition("=") for variable in env)
        config = {
            "metadata": {"name": name},
            "image": {"image": image},
            "command": words,
            "envs": [{"key": key, "value": value} for key, _, value in variables],
        }
        pod = {"pod_sandbox_id": self._pod, "sandbox_config": self._config}
        container: str = self._call("CreateContainer", **pod, config=config).container_id
        self._call("StartContainer", container_id=container)
        return container

    def exec(self, container: str, *words: str) -> str:
        """Run a command in a running container; its standard output."""
        request = {"container_id": container, "cmd": words, "timeout": _TIMEOUT_S}
        said: bytes = self._call("ExecSync", **request).stdout
        return said.decode()

    def _call(self, method: str, **request: Any) -> Any:  # noqa: ANN401 - as generated
        messages, _ = messages_and_services(*_INTERFACE)
        message = getattr(messages, f"{method}Request")(**request)
        try:
            return getattr(self._runtime, method)(message, timeout=_TIMEOUT_S, wait_for_ready=True)
        except grpc.RpcError as error:
            raise CriError(f"{method}: {error.details()}") from error
