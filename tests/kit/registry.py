"""A real registry of container images on the loopback interface, empty at first."""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kit.fileserver import Guarded
from kit.probe import need_programs
from kit.process import Daemon

_CONFIG = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "{address}"{tls}}}
{auth}"""
# Of the password of LOGIN, by bcrypt, as htpasswd(1) writes it.
LOGIN = "fleet:of a test"
_HASH = "fleet:$2b$04$fleetfleetfleetfleetfewIIugcN2ezd.KnlMVoFNr3W5fX35VTW"
# Below Linux' own, which begin with 32768: ip_local_port_range in ip(7).
_PORTS = (20_000, 32_000)
# A line of its access log, in the combined format.
_ACCESS = re.compile(
    r'"(?P<method>[A-Z]+) \S+ HTTP/1\.1" (?P<status>[0-9]{3}) (?P<size>[0-9]+) '
    r'"[^"]*" "(?P<agent>[^"]*)"'
)


@dataclass(frozen=True, slots=True)
class Sent:
    """What a registry sent: answers to GET, those of them that said 404, and bytes of bodies."""

    requests: int
    missing: int
    size: int


@contextmanager
def serving_registry(folder: Path) -> Iterator[str]:
    """Serve what is in a folder, as `docker-registry` does; the registry's address."""
    with closing(RegistryServer(folder)) as server:
        yield server.address


class RegistryServer:
    """A `docker-registry` that can be killed and started again, and counts what it sends."""

    def __init__(
        self, folder: Path, guarded: Guarded | None = None, *, host: str = "127.0.0.1"
    ) -> None:
        need_programs("docker-registry")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.address = f"{host}:{free_port()}"
        tls = auth = ""
        if guarded:
            file = guarded.certificate
            tls = f', tls: {{certificate: "{file}", key: "{file}"}}'
            auth = f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}\n"
            (folder / "htpasswd").write_text(f"{_HASH}\n")
        config = folder / "config.yml"
        data = folder / "data"
        config.write_text(_CONFIG.format(folder=data, address=self.address, tls=tls, auth=auth))
        self._daemon = Daemon(
            ("docker-registry", "serve", config),
            log=folder / "log",
            ready=lambda: _answers(self.address),
        )

    def restart(self, *, after_s: float) -> None:
        """End it, whatever it is doing, and start it again after some seconds."""
        self.close()
        time.sleep(after_s)
        self._daemon.start()

    def close(self) -> None:
        self._daemon.stop()

    def sent(self, agent: str) -> Sent:
        """What it sent to programs whose User-Agent begins so, by its own access log."""
        requests = missing = size = 0
        for found in _ACCESS.finditer(self._daemon.log.read_text(errors="replace")):
            if found["agent"].startswith(agent) and found["method"] == "GET":
                requests += 1
                missing += found["status"] == "404"
                size += int(found["size"])
        return Sent(requests, missing, size)


def free_port() -> int:
    """A port of the loopback interface at which nothing listens, for a server to be started.

    Not one of those that the kernel gives to connections: one of another test might have it by the
    time that the server listens.
    """
    while True:
        port = _PORTS[0] + secrets.randbelow(_PORTS[1] - _PORTS[0])
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
        return True
    return False
