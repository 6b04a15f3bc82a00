"""The connection to an engine with Docker's API (Docker, or podman's service), and its images.

It turns every exception of the SDK into a ``ProvisionError``.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from docker import APIClient
from docker.errors import (
    APIError,
    DockerException,
    ImageNotFound,
    NotFound,
    StreamParseError,
    create_api_error_from_http_exception,
)
from docker.utils import kwargs_from_env
from requests import HTTPError as HTTPStatusError
from requests import Response
from requests.exceptions import ReadTimeout, RequestException
from urllib3.exceptions import HTTPError, ReadTimeoutError

from provision.engine.tar_streams import BAD_TAR, TarReader, Unpacker, pack, readable
from provision.errors import NotFoundError, ProvisionError
from provision.files import lock, write_atomic
from provision.host.facts import BUILD_SOCKETS

# Seconds for which a build may be silent: more than any step takes.
_SILENT_SECONDS = 3600
_CHUNK = 1 << 20
Message = Mapping[str, Any]


def split_reference(reference: str) -> tuple[str, str | None]:
    """Split ``name:tag`` or ``name@digest``; a registry's port is not a tag."""
    if "@" in reference:
        name, digest = reference.split("@", 1)
        return _without_tag(name), digest
    name = _without_tag(reference)
    return name, reference[len(name) + 1 :] or None


def names_registry(reference: str) -> bool:
    """Return whether an image's name contains a registry, and so is not a local one.

    podman calls its local images ``localhost/NAME``.
    Source: https://docs.docker.com/reference/cli/docker/image/tag/#description
    """
    host, slash, _ = reference.partition("/")
    return bool(slash) and ("." in host or ":" in host)


def _without_tag(reference: str) -> str:
    folder, slash, last = reference.rpartition("/")
    return folder + slash + last.split(":", 1)[0]


class EngineLostError(ProvisionError):
    """The connection to the engine broke; what failed can be done again when the engine is back."""

    is_outside = True


class Image(NamedTuple):
    """An image that the engine has."""

    id: str
    tags: tuple[str, ...] = ()
    # ``name@sha256:…`` references; only images from a registry have any.
    digests: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    size: int = 0
    architecture: str = ""

    @property
    def name(self) -> str:
        """A name of it; its id if it has none."""
        return next(iter(self.tags), self.id)


class Engine:
    """A container engine; the methods are the few that provision needs.

    Attributes:
        cpu_shares: Weight of its containers, of builds too, for processors; None: the engine's own.
            Disks have none: a build's requests take no weight for them
            (https://docs.docker.com/reference/api/engine/version/v1.47/#tag/Image/operation/ImageBuild).
    """

    def __init__(self, client: APIClient, host: str) -> None:
        self._client = client
        self.host = host
        self.cpu_shares: int | None = None

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
        """Return the images that carry ``key`` or ``key=value`` as a label."""
        with self._translated("list images"):
            found = self._client.images(filters={"label": label})
        images = [self.image(str(entry["Id"])) for entry in found]
        return [image for image in images if image is not None]

    def architecture(self) -> str:
        """Return the engine's own, as Go names it: ``amd64``."""
        with self._translated("ask for its architecture"):
            return str(self._client.version().get("Arch", ""))

    def build(
        self,
        context: IO[bytes],
        *,
        build_args: Mapping[str, str],
        platform: str | None = None,
        cache: bool = True,
    ) -> Iterator[Message]:
        """Build the Dockerfile in a tar file with the classic builder; yield the engine's messages.

        It has no network. The image gets no name; its id is in the messages (``aux``).

        Args:
            platform: Of the image, such as ``linux/arm64``; None: the engine's own.
            cache: Whether the engine may take layers from its cache.
        """
        with self._translated("build an image"):
            yield from self._client.build(
                fileobj=context,
                custom_context=True,
                rm=True,
                forcerm=True,
                decode=True,
                buildargs=dict(build_args),
                network_mode="none",
                platform=platform,
                nocache=not cache,
                # A unit's Nice= reaches no container: they are the engine's processes.
                container_limits={"cpushares": self.cpu_shares} if self.cpu_shares else None,
                timeout=_SILENT_SECONDS,
                # The SDK would add what ~/.docker/config.json has, with a password.
                use_config_proxy=False,
            )

    def tag(self, image_id: str, reference: str) -> None:
        """Give an image a name; an image that had it loses it."""
        name, tag = split_reference(reference)
        with self._translated(f"tag '{reference}'"):
            self._client.tag(image_id, name, tag, force=True)

    def remove(self, image_id: str, *, with_parents: bool) -> None:
        """Remove an image, and on request the parent images that no other image has.

        Given its name, an image with others upon it only loses that name.
        """
        with self._translated(f"remove the image {image_id}"):
            self._client.remove_image(image_id, noprune=not with_parents)

    def pull(self, reference: str, *, platform: str | None = None) -> Iterator[Message]:
        """Pull an image from its registry; yield the engine's messages."""
        name, tag = split_reference(reference)
        with self._translated(f"pull '{reference}'"):
            yield from self._client.pull(name, tag, stream=True, decode=True, platform=platform)

    def save(self, image_id: str) -> Iterator[bytes]:
        """Yield an image as the archive that `docker save` writes."""
        with self._translated(f"save the image {image_id[:19]}"):
            yield from self._client.get_image(image_id, chunk_size=_CHUNK)

    def load(self, archive: IO[bytes]) -> None:
        """Load the images of an archive that `docker save` wrote."""
        chunks = iter(lambda: archive.read(_CHUNK), b"")
        with self._translated("load an archive"):
            # The stubs lack this method's types.
            load: Callable[[Iterator[bytes]], Iterable[Message]] = self._client.load_image
            for message in load(chunks):
                if "error" in message:
                    raise ProvisionError(
                        f"The engine at {self.host} could not load an archive of an image.",
                        details=str(message["error"]),
                        resolution="Check whether the engine has space left (docker system df),"
                        " then run the command again.",
                    )

    @contextmanager
    def archive(self, image_id: str, path: str, *, owner: str) -> Iterator[Iterator[bytes]]:
        """Open a folder or file of an image as a tar stream."""
        label = f"provision.extract={owner}"
        with self._translated(f"read '{path}' of the image {image_id[:19]}"):
            self._remove_containers(label)
            # The engine requires a command, and the image has none; the container never starts.
            container = self._client.create_container(
                image_id,
                command=["/none"],
                labels={"provision.extract": owner},
                use_config_proxy=False,
            )
            try:
                with _sent(self._client, container["Id"], path) as stream:
                    yield stream
            finally:
                self._remove_containers(label)

    @contextmanager
    def container(self, request: ContainerRequest) -> Iterator[Container]:
        """Start a container that waits for scripts; it is removed afterwards, after errors too."""
        client = self._client
        label = f"provision.solve={request.owner}"
        with self._translated("start a container"):
            self._remove_containers(label)
            made = client.create_container(
                request.image_id,
                # If this process is killed, it ends with it, and the engine removes it.
                command=["sh", "-c", _WAITING, f"{request.limit:.0f}"],
                entrypoint=[],
                stdin_open=True,
                labels={"provision.solve": request.owner},
                environment=dict(request.environment),
                use_config_proxy=request.network != "none",
                host_config=client.create_host_config(
                    auto_remove=True,
                    network_mode=request.network,
                    cpu_shares=self.cpu_shares,
                    binds=[f"{host}:{inside}:ro" for inside, host in request.binds.items()],
                    cap_drop=["ALL"] if request.is_powerless else None,
                    security_opt=_security_options(request),
                ),
            )
        try:
            with ExitStack() as attached:
                with self._translated("start a container"):
                    kept = client.attach_socket(made["Id"], {"stdin": 1, "stream": 1})
                    # Closed with the SDK's answer around it: that would complain of a closed file.
                    attached.callback(getattr(kept, "_response", kept).close)
                    client.start(made["Id"])
                yield Container(client, str(made["Id"]), request, self._translated)
        except BaseException:
            with self._translated("remove a container"):
                _end(client, str(made["Id"]), "KILL")
            raise
        # An engine answers SIGKILL only when the container has ended, and other signals at once.
        with self._translated("remove a container"):
            _end(client, str(made["Id"]), "TERM")

    def _remove_containers(self, label: str) -> None:
        for one in self._client.containers(all=True, filters={"label": label}):
            _remove(self._client, one["Id"])

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except APIError as error:
            raise ProvisionError(
                f"The engine at {self.host} could not {what}.",
                resolution="Look into the engine's log, such as: journalctl -u docker",
                details=str(error.explanation or error),
                is_outside=True,
            ) from error
        except (
            DockerException,
            StreamParseError,
            RequestException,
            HTTPError,
            ConnectionError,
        ) as error:
            raise EngineLostError(
                f"The connection to the engine at {self.host} broke when it had to {what}.",
                resolution="Check whether the engine runs (systemctl status docker), and run the "
                "command again: it continues where it can.",
                details=str(error),
            ) from error


DEFAULT_HOSTS = tuple(f"unix://{path}" for path in BUILD_SOCKETS)
_CONNECT_SECONDS = 5.0


def connect(host: str | None = None) -> Engine:
    """Connect to the engine.

    Args:
        host: Its address; None for ``DOCKER_HOST``, or else the first default socket that answers.
    """
    named = host or os.environ.get("DOCKER_HOST")
    tried: list[str] = []
    is_refused = False
    for candidate in (named,) if named else DEFAULT_HOSTS:
        try:
            _reach(candidate)
        except OSError as error:
            is_refused = is_refused or isinstance(error, PermissionError)
            tried.append(f"{candidate}: {error.strerror or error}")
        except ValueError as error:
            # A port that is no number, a name that is not valid, a NUL.
            tried.append(f"{candidate}: no address of an engine: {error}")
        else:
            return Engine(_client(candidate), candidate)
    if is_refused:
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


def _reach(host: str) -> None:
    """Connect to a host and hang up; do nothing if only the SDK can.

    Raises:
        OSError: Nothing answers there, or this user may not ask.
        ValueError: It is no address.
    """
    parts = urlsplit(host)
    address: str | tuple[str, int]
    if parts.scheme == "unix":
        family, address = socket.AF_UNIX, parts.path
    elif parts.scheme == "tcp":
        family, address = socket.AF_INET, (parts.hostname or "", parts.port or 2375)
    else:
        return
    with socket.socket(family) as channel:
        channel.settimeout(_CONNECT_SECONDS)
        channel.connect(address)


def _client(host: str) -> APIClient:
    try:
        # As in Docker's client, the variable of the folder alone turns nothing on. The SDK would
        # speak TLS then, without looking at the server's certificate.
        secured = os.environ.get("DOCKER_TLS_VERIFY")
        tls = kwargs_from_env().get("tls", False) if secured else False
        return APIClient(base_url=host, version="auto", tls=tls)
    except (DockerException, RequestException, HTTPError, OSError, ValueError) as error:
        # OSError and ValueError: files of the configuration, or the version that the engine states.
        raise ProvisionError(
            f"The service at {host} is not a container engine.",
            details=str(error),
            resolution=f"See what listens there: docker --host {host} version",
        ) from error


_LINES_KEPT = 400
_LINES_SHOWN = 10
_SEE = "Run the command again with --verbose: it shows all that ran in the container."
# A container's first process gets only signals that it handles. All other processes end with it.
# Its standard input is a connection to the process that started it, which sends nothing.
_WAITING = "trap 'exit 0' TERM; exec 3<&0; timeout \"$0\" cat <&3 >/dev/null & wait"
# Bytes of a file that is read into memory, and of a line; a longer line comes in pieces.
_MAX_FILE = 64 << 20
_MAX_LINE = 64 << 10
_FRAME_HEADER = 8


class ContainerRequest(NamedTuple):
    """The settings of a container to start."""

    image_id: str
    # Name of a lock that the caller holds. Containers with this label are leftovers of killed runs,
    # and are removed.
    owner: str
    network: str | None = None
    # Paths of the host that are mounted read-only, by path in the container.
    binds: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    # Seconds after which it ends, whatever runs in it.
    limit: float = 3600.0
    # Whether it has no capabilities, and can't get any.
    is_powerless: bool = False


class Ran(NamedTuple):
    """A finished script: its exit status, and the last lines that it printed."""

    status: int
    said: str

    def require(self, message: str) -> None:
        """Raise an error if the script failed."""
        if self.status != 0:
            details = "\n".join(self.said.splitlines()[-_LINES_SHOWN:]) or None
            raise ProvisionError(message, resolution=_SEE, details=details)


class Container:
    """A running container; made by ``Engine.container``."""

    def __init__(
        self,
        client: APIClient,
        container_id: str,
        request: ContainerRequest,
        translated: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._client = client
        self._id = container_id
        self._request = request
        self._translated = translated
        self._end = time.monotonic() + request.limit

    def put(self, files: Mapping[str, bytes | Path], folder: str) -> None:
        """Write files below a folder, which is created."""
        below = folder.strip("/")
        with (
            self._translated(f"write to '{folder}' of a container"),
            pack({f"{below}/{name}": content for name, content in files.items()}) as tar,
        ):
            # The stubs want the bytes; requests reads a file piece by piece.
            put: Callable[[str, str, IO[bytes]], object] = self._client.put_archive
            put(self._id, "/", tar)

    def run(self, script: str, *, on_line: Callable[[str], None]) -> Ran:
        """Run a script with ``sh``, and pass on each line that it prints as it comes."""
        last: deque[str] = deque(maxlen=_LINES_KEPT)
        with self._translated("run a script in a container"):
            made = self._client.exec_create(
                self._id, ["sh", "-c", script], environment=dict(self._request.environment)
            )
            with closing(self._start(str(made["Id"]))) as response:
                try:
                    for line in _lines(_frames(response)):
                        last.append(line)
                        on_line(line)
                        if time.monotonic() > self._end:
                            raise self._too_slow(last)
                except (ReadTimeout, ReadTimeoutError) as error:
                    raise self._too_slow(last) from error
            status = self._client.exec_inspect(made["Id"]).get("ExitCode")
        if not isinstance(status, int) or time.monotonic() > self._end:
            raise self._too_slow(last)
        return Ran(status, "\n".join(last))

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        for _name, content in self.files(path):
            data = content.read(_MAX_FILE + 1)
            if len(data) > _MAX_FILE:
                raise ProvisionError(
                    f"'{path}' of a container has more than {_MAX_FILE >> 20} MiB.",
                    resolution="What runs in it writes more than makes sense: look at the source.",
                )
            return data
        raise ProvisionError(f"The container has no file '{path}'.", resolution=_SEE)

    def files(self, path: str) -> Iterator[tuple[str, IO[bytes]]]:
        """Yield the name and content of one file, or of each regular file of a folder."""
        with self._translated(f"read '{path}' of a container"):
            try:
                with _sent(self._client, self._id, path) as stream:
                    archive = TarReader(readable(stream))
                    for member in archive:
                        if member.isreg():
                            yield member.name.rpartition("/")[2], archive.content(member)
            except BAD_TAR as error:
                raise ProvisionError(
                    f"'{path}' of a container could not be read.",
                    details=str(error),
                    resolution=_SEE,
                ) from error

    def _start(self, exec_id: str) -> Response:
        """Start a prepared command; the response's body is what it prints.

        The SDK's own call leaves its connection open, and takes a broken one for the end.
        """
        client = self._client
        response = client.post(
            f"{client.base_url}/v{client.api_version}/exec/{exec_id}/start",
            json={"Tty": False, "Detach": False},
            # The engine may be silent for as long as the container may run.
            timeout=max(1, round(self._end - time.monotonic())),
            stream=True,
        )
        try:
            response.raise_for_status()
        except HTTPStatusError as error:
            create_api_error_from_http_exception(error)
        return response

    def _too_slow(self, last: deque[str]) -> ProvisionError:
        return ProvisionError(
            f"A script in a container did not finish within {self._request.limit:g} s.",
            resolution="Check whether the network is slow or a mirror hangs, and run the command"
            " again: what was downloaded is kept.",
            details="\n".join(list(last)[-20:]) or None,
        )


@contextmanager
def _sent(client: APIClient, container: str, path: str) -> Iterator[Iterator[bytes]]:
    stream, _status = client.get_archive(container, path, _CHUNK)
    try:
        yield stream
    finally:
        # The engine keeps the container busy until all bytes are sent, and the SDK can't close the
        # connection.
        deque(stream, maxlen=0)


def _frames(response: Response) -> Iterator[bytes]:
    """Yield the pieces of a command's output; a header of 8 bytes ends with the length of each.

    Source: https://docs.docker.com/reference/api/engine/version/v1.43/#tag/Container/operation/ContainerAttach
    """
    while header := response.raw.read(_FRAME_HEADER):
        size = int.from_bytes(header[4:], "big")
        piece = response.raw.read(size)
        if len(header) < _FRAME_HEADER or len(piece) < size:
            raise ConnectionError("The engine's output ended within a piece.")
        yield piece


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        while len(rest) > _MAX_LINE:
            lines.append(rest[:_MAX_LINE])
            rest = rest[_MAX_LINE:]
        yield from (line.decode(errors="replace").rstrip("\r") for line in lines)
    if rest:
        yield rest.decode(errors="replace")


def _security_options(request: ContainerRequest) -> list[str] | None:
    # With SELinux, a container may not read the host's files. With another label, the host's own
    # programs could not read them.
    labels = ["label=disable"] if request.binds else []
    return [*labels, *(["no-new-privileges"] if request.is_powerless else [])] or None


def _end(client: APIClient, container: str, signal: str) -> None:
    """End a container, which the engine then removes; this does not wait for the removal."""
    try:
        client.kill(container, signal)
    except APIError:
        # The container did not start, or has ended.
        _remove(client, container)


def _remove(client: APIClient, container: str) -> None:
    # The engine may be removing the container, or have removed it.
    with suppress(APIError):
        client.remove_container(container, force=True)


# The file with the name of a state folder.
_NAME = "engine-name"
# The folder of an artifact in its image: Kubernetes' KMM expects it there in driver images.
ARTIFACT = "/opt"
_FILE_MAX = 64 << 20
_BUILD = "Build or pull the image again: this copy is not one that provision made."


def extract(engine: Engine, image: Image, destination: Path, *, state: Path) -> None:
    """Unpack an artifact image's content into a new folder."""
    destination.mkdir(parents=True)
    try:
        with (
            _owned(state) as owner,
            engine.archive(image.id, ARTIFACT, owner=owner) as chunks,
        ):
            unpacker = Unpacker(destination, strip=ARTIFACT.strip("/"))
            unpacker.unpack(readable(chunks))
    except BaseException as error:
        shutil.rmtree(destination, ignore_errors=True)
        if isinstance(error, OSError):
            raise disk_error(error, destination) from error
        raise


def read_file(engine: Engine, image: Image, path: str, *, state: Path) -> bytes:
    """Return one file of an artifact image."""
    with (
        _owned(state) as owner,
        engine.archive(image.id, f"{ARTIFACT}/{path}", owner=owner) as chunks,
    ):
        try:
            return _content(TarReader(readable(chunks)), path)
        except BAD_TAR as error:
            raise ProvisionError(
                f"'{path}' of the image could not be read as a tar stream.",
                details=str(error),
                resolution=_BUILD,
            ) from error


def _content(archive: TarReader, path: str) -> bytes:
    member = next(iter(archive), None)
    if member is None or not member.isreg():
        raise ProvisionError(f"'{path}' in the image is no regular file.", resolution=_BUILD)
    content = archive.content(member).read(_FILE_MAX + 1)
    if len(content) > _FILE_MAX:
        raise ProvisionError(
            f"'{path}' in the image is larger than {_FILE_MAX} bytes.", resolution=_BUILD
        )
    return content


def container_owner(state: Path, work: str) -> str:
    """Return the label of containers for some work, whose leftovers are removed before the next.

    The work has a lock in the state folder. Hosts that share an engine may have theirs at the same
    path: a random name, made once, tells them apart.
    """
    path = state / _NAME
    with lock(state / "locks" / _NAME):
        if not path.exists():
            write_atomic(path, token_hex(16))
        name = path.read_text()
    return sha256(f"{name} {work}".encode()).hexdigest()[:32]


def find_image(engine: Engine, reference: str) -> Image:
    """Return an image of the engine by name or id; nothing is pulled."""
    image = engine.image(reference)
    if image is None:
        raise NotFoundError(
            f"The engine at {engine.host} has no image '{reference}'.",
            resolution="'provision build' says what its image is called; 'docker images' lists "
            "those that the engine has.",
        )
    return image


@contextmanager
def _owned(state: Path) -> Iterator[str]:
    """Hold the lock under which containers for extraction exist; yields their owner."""
    path = state / "locks" / "extract"
    waiting = "Another provision is reading an image; waiting for it"
    with lock(path, waiting=waiting):
        yield container_owner(state, "extract")


def disk_error(error: OSError, destination: Path) -> ProvisionError:
    """Return the error for a disk that is full or can't be written."""
    if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
        return ProvisionError(
            f"Could not write to '{destination}': {error.strerror or error}.",
            resolution=f"See whether it may be written: ls -ld {destination.parent}",
        )
    free = shutil.disk_usage(destination.parent).free
    return ProvisionError(
        f"The disk that holds '{destination.parent}' is full.",
        resolution="Make room there and run the command again; what was unpacked is removed.",
        details=f"{free // 1_000_000} MB are free now.",
    )
