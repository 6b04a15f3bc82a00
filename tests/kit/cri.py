"""Just enough of Kubernetes' container runtime interface to start a container in a pod.

Debian has no client of it. The messages are few, so they are written here as protocol buffers by
hand; the numbers are those of
https://github.com/kubernetes/cri-api/blob/v0.26.0/pkg/apis/runtime/v1/api.proto
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import grpc

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Cri", "CriError"]

_NODE = 2  # NamespaceMode.NODE: the host's network, so that no network plugin is wanted
_NOT_NODE = 0
_TIMEOUT_S = 180


class CriError(Exception):
    """containerd refused; the message is what Kubernetes would show of it."""


@dataclass
class Cri:
    """A pod whose containers a runtime of config.toml starts; removed with everything at the end.

    Attributes:
        socket: containerd's.
        handler: the runtime's name in config.toml, as a RuntimeClass has it.
    """

    socket: Path
    handler: str

    def __enter__(self) -> Self:
        """Make the pod.

        Raises:
            CriError: containerd could not.
        """
        self._channel = grpc.insecure_channel(f"unix://{self.socket}")
        metadata = _text(1, "pod") + _text(2, "uid") + _text(3, "default")
        namespaces = _message(1, _number(1, _NODE) + _number(2, _NOT_NODE))
        linux = _message(2, namespaces)
        self._config = _message(1, metadata) + _message(8, linux)
        made = self._call("RunPodSandbox", _message(1, self._config) + _text(2, self.handler))
        self._pod = made[1].decode()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the pod with its containers."""
        try:
            self._call("StopPodSandbox", _text(1, self._pod))
            self._call("RemovePodSandbox", _text(1, self._pod))
        finally:
            self._channel.close()

    def start(self, name: str, image: str, *words: str, env: tuple[str, ...] = ()) -> str:
        """Start a container in the pod; its id.

        Raises:
            CriError: it did not start.
        """
        config = _message(1, _text(1, name)) + _message(2, _text(1, image))
        config += b"".join(_text(3, word) for word in words)
        for variable in env:
            key, _, value = variable.partition("=")
            config += _message(6, _text(1, key) + _text(2, value))
        request = _text(1, self._pod) + _message(2, config) + _message(3, self._config)
        container = self._call("CreateContainer", request)[1].decode()
        self._call("StartContainer", _text(1, container))
        return container

    def exec(self, container: str, *words: str) -> str:
        """Run a command in a running container; its standard output."""
        request = _text(1, container) + b"".join(_text(2, word) for word in words)
        return self._call("ExecSync", request + _number(3, _TIMEOUT_S)).get(1, b"").decode()

    def _call(self, method: str, request: bytes) -> dict[int, bytes]:
        call = self._channel.unary_unary(
            f"/runtime.v1.RuntimeService/{method}",
            request_serializer=bytes,
            response_deserializer=_fields,
        )
        try:
            return call(request, timeout=_TIMEOUT_S, wait_for_ready=True)
        except grpc.RpcError as error:
            raise CriError(f"{method}: {error.details()}") from error


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode())


def _fields(data: bytes) -> dict[int, bytes]:
    """The strings and messages of an answer by number; numbers are left out."""
    found: dict[int, bytes] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        length = varint()
        if key & 7 == 2:
            found[key >> 3] = data[at : at + length]
            at += length
    return found
