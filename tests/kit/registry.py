"""A real registry of container images on the loopback interface, empty at first."""

from __future__ import annotations

import base64
import json
import re
import secrets
import socket
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.process import Daemon, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Guarded", "RegistryServer", "free_port", "serving_registry"]

_CONFIG = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "{address}"{tls}}}
{auth}"""
_USER = "fleet"
PASSWORD = "of a test"  # noqa: S105 - of no one
# By bcrypt, as htpasswd(1) writes it.
_HASH = "$2b$04$fleetfleetfleetfleetfewIIugcN2ezd.KnlMVoFNr3W5fX35VTW"
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


@dataclass(frozen=True, slots=True)
class Guarded:
    """A registry with TLS, for those who have a password."""

    # For its files; `ca.crt` is what its certificate is issued by.
    folder: Path

    @property
    def ca(self) -> Path:
        """The authority."""
        return self.folder / "ca.crt"

    def log_in(self, address: str, password: str = PASSWORD) -> str:
        """The file of credentials that `docker login` would leave."""
        pair = f"{_USER}:{password}"
        auth = base64.b64encode(pair.encode()).decode()
        return json.dumps({"auths": {address: {"auth": auth}}})

    def make(self) -> dict[str, str]:
        """Make its certificate and passwords; what its configuration says of them."""
        key, request = self.folder / "server.key", self.folder / "server.csr"
        names = self.folder / "names"
        names.write_text("subjectAltName=IP:127.0.0.1\n")
        ca = self.folder / "ca.key"
        new = ("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj")
        run([*new, "/CN=authority", "-x509", "-days", "2", "-keyout", ca, "-out", self.ca])
        run([*new, "/CN=127.0.0.1", "-keyout", key, "-out", request])
        by = ("-CA", self.ca, "-CAkey", ca, "-CAcreateserial", "-days", "2", "-extfile", names)
        server = self.folder / "server.crt"
        run(["openssl", "x509", "-req", "-in", request, *by, "-out", server])
        (self.folder / "htpasswd").write_text(f"{_USER}:{_HASH}\n")
        return {
            "tls": f', tls: {{certificate: "{server}", key: "{key}"}}',
            "auth": f"auth: {{htpasswd: {{realm: test, path: {self.folder / 'htpasswd'}}}}}\n",
        }


@contextmanager
def serving_registry(folder: Path, guarded: Guarded | None = None) -> Iterator[str]:
    """Serve what is in a folder, as `docker-registry` does; the registry's address."""
    server = RegistryServer(folder, guarded)
    try:
        yield server.address
    finally:
        server.close()


class RegistryServer:
    """A `docker-registry` that can be killed and started again, and counts what it sends."""

    def __init__(
        self, folder: Path, guarded: Guarded | None = None, *, host: str = "127.0.0.1"
    ) -> None:
        """Start it at an address of this machine, with what the folder has."""
        self.folder = folder
        self.address = f"{host}:{free_port()}"
        self._config = folder / "config.yml"
        more = guarded.make() if guarded else {"tls": "", "auth": ""}
        text = _CONFIG.format(folder=folder / "data", address=self.address, **more)
        self._config.write_text(text)
        self.starts = 0
        self._daemon = self._started()

    def _started(self) -> Daemon:
        self.starts += 1
        return Daemon(
            ("docker-registry", "serve", str(self._config)),
            log=self._log(self.starts),
            ready=lambda: _answers(self.address),
        )

    def _log(self, number: int) -> Path:
        return self.folder / f"log-{number}"

    def restart(self, *, after_s: float) -> None:
        """End it, whatever it is doing, and start it again after some seconds."""
        self.close()
        time.sleep(after_s)
        self._daemon = self._started()

    def close(self) -> None:
        """End it."""
        self._daemon.stop()

    def sent(self, agent: str) -> Sent:
        """What it sent to programs whose User-Agent begins so, by its own access log."""
        requests = missing = size = 0
        for number in range(1, self.starts + 1):
            for found in _ACCESS.finditer(self._log(number).read_text(errors="replace")):
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
