"""Finds the container engine: the named one, or one that listens on a default socket."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from docker import APIClient
from docker.errors import DockerException
from docker.tls import TLSConfig
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from provision.engine.docker_api import Engine
from provision.errors import NotFoundError, ProvisionError
from provision.host.facts import BUILD_SOCKETS

DEFAULT_HOSTS = tuple(f"unix://{path}" for path in BUILD_SOCKETS)
_CONNECT_SECONDS = 5.0


def connect(host: str | None = None) -> Engine:
    """Connect to the engine.

    Args:
        host: Its address; None for ``DOCKER_HOST``, or else the first default socket that answers.

    Raises:
        NotFoundError: No engine answers; says what was tried and how to install one.
    """
    named = host or os.environ.get("DOCKER_HOST")
    tried: list[str] = []
    for candidate in (named,) if named else DEFAULT_HOSTS:
        problem = _problem_of(candidate)
        if problem is None:
            return Engine(_client(candidate), candidate)
        tried.append(f"{candidate}: {problem}")
    if any(os.strerror(errno.EACCES) in line for line in tried):
        raise ProvisionError(
            "This user may not use the container engine.",
            resolution="Run the command as root, or add the user to the engine's group "
            "(usermod -aG docker USER, then log in again).",
            details="\n".join(tried),
        )
    raise NotFoundError(
        "No container engine answers.",
        resolution="Start one, now and at each boot (systemctl enable --now docker, or, for "
        "podman: systemctl enable --now podman.socket), install one (Debian: apt "
        "install docker.io; RHEL: dnf install podman; SUSE: zypper install docker), or name it in "
        "DOCKER_HOST or in provision.toml ([engine] host).",
        details="Tried:\n" + "\n".join(tried),
    )


def _problem_of(host: str) -> str | None:
    """Return why a host can't be reached; None if it can be, or if only the SDK can tell."""
    try:
        parts = urlsplit(host)
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
                channel.settimeout(_CONNECT_SECONDS)
                return _connect_problem(channel, parts.path)
        if parts.scheme == "tcp":
            with socket.socket() as channel:
                channel.settimeout(_CONNECT_SECONDS)
                return _connect_problem(channel, (parts.hostname or "", parts.port or 2375))
    except ValueError as error:
        # A port that is no number, a name that is not valid, a NUL.
        return f"no address of an engine: {error}"
    return None


def _connect_problem(channel: socket.socket, address: str | tuple[str, int]) -> str | None:
    try:
        channel.connect(address)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _client(host: str) -> APIClient:
    try:
        return APIClient(base_url=host, version="auto", tls=_tls())
    except (DockerException, RequestException, HTTPError, OSError, ValueError) as error:
        # OSError and ValueError: files of the configuration, or the version that the engine states.
        raise ProvisionError(
            f"The service at {host} is not a container engine.",
            details=str(error),
            resolution=f"See what listens there: docker --host {host} version",
        ) from error


def _tls() -> TLSConfig | bool:
    """Return the client's certificates that the environment names, as for Docker's own client.

    Source: https://docs.docker.com/reference/cli/docker/#environment-variables
    """
    if not os.environ.get("DOCKER_TLS_VERIFY"):
        return False
    folder = Path(os.environ.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
    certificate = (str(folder / "cert.pem"), str(folder / "key.pem"))
    return TLSConfig(client_cert=certificate, ca_cert=str(folder / "ca.pem"), verify=True)
