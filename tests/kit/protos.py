"""Messages and services of gRPC, compiled from the .proto files of Go modules."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import grpc

from kit.go_modules import go_module

__all__ = ["messages_and_services"]


@cache
def messages_and_services(module: str, version: str, digest: str, proto: str) -> tuple[Any, Any]:
    """What the file `proto` of a module defines; `digest` as `go_module` wants it."""
    folder = str(go_module(module, version, digest))
    # grpc looks for it where modules are.
    sys.path.append(folder)
    try:
        messages, services = grpc.protos_and_services(proto)
    finally:
        sys.path.remove(folder)
    return messages, services
