"""The connection to a container engine that speaks Docker's API (Docker; podman's service).

Everything that the SDK raises becomes a ``ProvisionError`` here.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from docker import APIClient
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.tls import TLSConfig
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from provision.errors import NotFoundError, ProvisionError

# Where engines listen when nobody says otherwise: Docker first, then podman's service.
DEFAULT_HOSTS = ("unix:///var/run/docker.sock", "unix:///run/podman/podman.sock")
_CONNECT_SECONDS = 5.0
_CHUNK = 1 << 20

Message = Mapping[str, Any]


class EngineLostError(ProvisionError):
    """The engine went away in the middle of something, which can be done again when it is back."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the engine has.

    Attributes:
        id: ``sha256:`` and 64 digits.
        tags: ``name:tag`` references.
        digests: ``name@sha256:…`` references, known for images from a registry only.
        labels: Its labels.
        size: Bytes on disk.
        architecture: As Docker calls it (``amd64``).
    """

    id: str
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What an engine's build takes besides the context; none of it may change the result."""

    build_args: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None


class Engine:
    """A container engine; the methods are the few that provision needs."""

    def __init__(self, client: APIClient, host: str) -> None:
        self._client = client
        self.host = host

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def image(self, reference: str) -> Image | None:
        """Return an image by name or id, or None."""
        # The stubs lack this method's types.
        inspect: Callable[[str], Message] = self._client.inspect_image
        with self._translated(f"look up the image '{reference}'"):
            try:
                data = inspect(reference)
            except (ImageNotFound, NotFound):
                return None
        return Image(
            id=data["Id"],
            tags=tuple(data.get("RepoTags") or ()),
            digests=tuple(data.get("RepoDigests") or ()),
            labels=(data.get("Config") or {}).get("Labels") or {},
            size=data.get("Size", 0),
            architecture=data.get("Architecture", ""),
        )

    def images_with_label(self, label: str) -> list[Image]:
        """Return the named images that carry ``key`` or ``key=value`` as a label."""
        with self._translated("list images"):
            found = self._client.images(filters={"label": label, "dangling": False})
        images = [self.image(entry["Id"]) for entry in found]
        return [image for image in images if image is not None and image.tags]

    def build(self, context: IO[bytes], options: BuildOptions) -> Iterator[Message]:
        """Build a tar file's Dockerfile with the classic builder; yields what the engine says.

        The result gets no name; its id is in the messages (``aux``).
        """
        with self._translated("build an image"):
            yield from self._client.build(
                fileobj=context,
                custom_context=True,
                rm=True,
                forcerm=True,
                decode=True,
                buildargs=dict(options.build_args),
                network_mode=options.network,
                timeout=None,
            )

    def tag(self, image_id: str, reference: str) -> None:
        """Give an image a name; an image that had it loses it."""
        name, tag = split_reference(reference)
        with self._translated(f"tag '{reference}'"):
            self._client.tag(image_id, name, tag, force=True)

    def remove(self, image_id: str, *, with_parents: bool) -> None:
        """Remove an unnamed image, and if wanted those that it alone was made from."""
        with self._translated(f"remove the image {image_id}"):
            self._client.remove_image(image_id, noprune=not with_parents)

    def pull(self, reference: str, *, platform: str | None = None) -> Iterator[Message]:
        """Fetch an image from its registry; yields what the engine says."""
        name, tag = split_reference(reference)
        with self._translated(f"pull '{reference}'"):
            yield from self._client.pull(name, tag, stream=True, decode=True, platform=platform)

    def push(self, reference: str) -> Iterator[Message]:
        """Send an image to its registry; yields what the engine says."""
        name, tag = split_reference(reference)
        with self._translated(f"push '{reference}'"):
            yield from self._client.push(name, tag, stream=True, decode=True)

    def import_tree(self, tar: IO[bytes], reference: str, changes: Iterable[str]) -> None:
        """Make an image of one layer out of a tar file of a root file system."""
        name, tag = split_reference(reference)
        # An iterator, because the SDK announces a chunked body: of a file, whose length is known,
        # requests would send the bare bytes: "invalid byte in chunk length", says the engine.
        chunks = iter(lambda: tar.read(_CHUNK), b"")
        with self._translated(f"import '{reference}'"):
            self._client.import_image_from_stream(chunks, name, tag, list(changes))

    @contextmanager
    def archive(self, image_id: str, path: str, *, owner: str) -> Iterator[Iterator[bytes]]:
        """Open a folder or file of an image as a tar stream.

        Args:
            image_id: The image.
            path: Absolute path in it.
            owner: Whose container this is; the caller holds a lock of that name, so containers
                that carry it are leftovers of killed runs, and are removed.
        """
        label = f"provision.extract={owner}"
        with self._translated(f"read '{path}' of the image {image_id[:19]}"):
            self._remove_containers(label)
            # The image has no command, and the engine wants one; it is never started.
            container = self._client.create_container(
                image_id, command=["/none"], labels={"provision.extract": owner}
            )
            try:
                stream, _status = self._client.get_archive(container["Id"], path, _CHUNK)
                try:
                    yield stream
                finally:
                    # The engine keeps the container busy until all of it is sent, and the SDK has
                    # no way to hang up.
                    deque(stream, maxlen=0)
            finally:
                self._remove_containers(label)

    def _remove_containers(self, label: str) -> None:
        for entry in self._client.containers(all=True, filters={"label": label}):
            self._client.remove_container(entry["Id"], force=True)

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn what the SDK raises into our errors."""
        try:
            yield
        except APIError as error:
            raise ProvisionError(
                f"The engine at {self.host} could not {what}.",
                details=str(error.explanation or error),
            ) from error
        except (DockerException, RequestException, HTTPError, ConnectionError) as error:
            raise EngineLostError(
                f"The connection to the engine at {self.host} broke when it had to {what}.",
                resolution="Look whether the engine runs (systemctl status docker), and run the "
                "command again: it goes on where it can.",
                details=str(error),
            ) from error


def connect(host: str | None = None) -> Engine:
    """Connect to the engine.

    Args:
        host: Its address; None: ``DOCKER_HOST``, or the default socket that answers.

    Raises:
        NotFoundError: No engine answers; says what was tried and how to get one.
        ProvisionError: There is one that may not be used, or that fails.
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
        resolution="Start one (systemctl start docker), install one (apt install docker.io; or "
        "podman, with systemctl start podman.socket), or name it in DOCKER_HOST or in "
        "provision.toml ([engine] host).",
        details="Tried:\n" + "\n".join(tried),
    )


def split_reference(reference: str) -> tuple[str, str | None]:
    """Split ``name:tag`` or ``name@digest``; a registry's port is not a tag."""
    if "@" in reference:
        name, digest = reference.split("@", 1)
        return _without_tag(name), digest
    name = _without_tag(reference)
    return name, reference[len(name) + 1 :] or None


def _without_tag(reference: str) -> str:
    folder, slash, last = reference.rpartition("/")
    return folder + slash + last.split(":", 1)[0]


def _problem_of(host: str) -> str | None:
    """Say why a host can't be reached; None if it can (or if only the SDK can tell)."""
    parts = urlsplit(host)
    if parts.scheme == "unix":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            door.settimeout(_CONNECT_SECONDS)
            return _connect_problem(door, parts.path)
    if parts.scheme == "tcp":
        with socket.socket() as door:
            door.settimeout(_CONNECT_SECONDS)
            return _connect_problem(door, (parts.hostname or "", parts.port or 2375))
    return None


def _connect_problem(door: socket.socket, address: str | tuple[str, int]) -> str | None:
    try:
        door.connect(address)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _client(host: str) -> APIClient:
    try:
        return APIClient(base_url=host, version="auto", tls=_tls())
    except DockerException as error:
        raise ProvisionError(
            f"The container engine at {host} does not answer as one.", details=str(error)
        ) from error


def _tls() -> TLSConfig | bool:
    """Return the client's certificates where the environment names them, as Docker's own does.

    Source: https://docs.docker.com/reference/cli/docker/#environment-variables
    """
    if not os.environ.get("DOCKER_TLS_VERIFY"):
        return False
    folder = Path(os.environ.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
    certificate = (str(folder / "cert.pem"), str(folder / "key.pem"))
    return TLSConfig(client_cert=certificate, ca_cert=str(folder / "ca.pem"), verify=True)
