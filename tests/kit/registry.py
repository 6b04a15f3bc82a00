"""A real registry of container images on the loopback interface, empty at first."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import requests

from kit.process import Daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["free_port", "serving_registry"]

_CONFIG = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "{address}"}}
"""


@contextmanager
def serving_registry(folder: Path) -> Iterator[str]:
    """Serve what is in a folder, as `docker-registry` does; the registry's address."""
    address = f"127.0.0.1:{free_port()}"
    config = folder / "config.yml"
    config.write_text(_CONFIG.format(folder=folder / "data", address=address))
    argv = ("docker-registry", "serve", str(config))
    with Daemon(argv, log=folder / "log", ready=lambda: _answers(address)):
        yield address


def free_port() -> int:
    """A port of the loopback interface at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(address: str) -> bool:
    try:
        return requests.get(f"http://{address}/v2/", timeout=5).ok
    except requests.ConnectionError:
        return False
