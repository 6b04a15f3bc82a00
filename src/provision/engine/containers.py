"""A container that runs scripts: files are copied into it and out of it, and output is followed."""

from __future__ import annotations

import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO

from docker import APIClient
from docker.errors import APIError
from requests.exceptions import ReadTimeout

from provision.engine.tar_streams import BAD_TAR, pack, readable
from provision.errors import ProvisionError

_CHUNK = 1 << 20
_LINES_KEPT = 400
_SEE = "Run the command again with --verbose: it shows all that ran in the container."
# A container's first process gets only signals that it handles. All other processes end with it.
_WAITING = "trap 'exit 0' TERM; sleep \"$0\" & wait"
# Bytes of a file that is read into memory, and of a line; a longer line comes in pieces.
_MAX_FILE = 64 << 20
_MAX_LINE = 64 << 10


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """The settings of a container to start.

    Attributes:
        owner: Name of a lock that the caller holds. Containers with this label are leftovers of
            killed runs, and are removed.
        binds: Paths of the host that are mounted read-only, by path in the container.
        limit: Seconds after which it ends, whatever runs in it.
    """

    image_id: str
    owner: str
    network: str | None = None
    binds: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    limit: float = 3600.0


@dataclass(frozen=True, slots=True)
class Ran:
    """A finished script: its exit status, and the last lines that it printed."""

    status: int
    said: str


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

    def put(self, files: Mapping[str, bytes], folder: str) -> None:
        """Write files below a folder, which is created."""
        below = folder.strip("/")
        with self._translated(f"write to '{folder}' of a container"):
            tar = pack({f"{below}/{name}": content for name, content in files.items()})
            self._client.put_archive(self._id, "/", tar.read())

    def run(self, script: str, *, on_line: Callable[[str], None]) -> Ran:
        """Run a script with ``sh``, and pass on each line that it prints as it comes."""
        last: deque[str] = deque(maxlen=_LINES_KEPT)
        with self._translated("run a script in a container"), self._patient():
            made = self._client.exec_create(
                self._id, ["sh", "-c", script], environment=dict(self._request.environment)
            )
            try:
                for line in _lines(self._client.exec_start(made["Id"], stream=True)):
                    last.append(line)
                    on_line(line)
                    if time.monotonic() > self._end:
                        raise self._too_slow(last)
            except ReadTimeout as error:
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
            stream, _status = self._client.get_archive(self._id, path, _CHUNK)
            try:
                with tarfile.open(fileobj=readable(stream), mode="r|") as archive:
                    for member in archive:
                        content = archive.extractfile(member) if member.isreg() else None
                        if content is not None:
                            yield member.name.rpartition("/")[2], content
            except BAD_TAR as error:
                raise ProvisionError(
                    f"'{path}' of a container could not be read.",
                    details=str(error),
                    resolution=_SEE,
                ) from error
            finally:
                # The engine keeps the container busy until all bytes are sent.
                deque(stream, maxlen=0)

    @contextmanager
    def _patient(self) -> Iterator[None]:
        """Allow the engine to be silent for as long as the container may run."""
        before = self._client.timeout
        self._client.timeout = max(1, round(self._end - time.monotonic()))
        try:
            yield
        finally:
            self._client.timeout = before

    def _too_slow(self, last: deque[str]) -> ProvisionError:
        return ProvisionError(
            f"A script in a container did not finish within {self._request.limit:g} s.",
            resolution="Check whether the network is slow or a mirror hangs, and run the command"
            " again: what was downloaded is kept.",
            details="\n".join(list(last)[-20:]) or None,
        )


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


@contextmanager
def running(
    client: APIClient,
    request: ContainerRequest,
    translated: Callable[[str], AbstractContextManager[None]],
) -> Iterator[Container]:
    """Start a container that waits for scripts; it is removed afterwards, also after an error."""
    label = f"provision.solve={request.owner}"
    with translated("start a container"):
        _remove(client, _left_over(client, label))
        made = client.create_container(
            request.image_id,
            # If this process is killed, the container ends by itself, and the engine removes it.
            command=["sh", "-c", _WAITING, f"{request.limit:.0f}"],
            entrypoint=[],
            labels={"provision.solve": request.owner},
            environment=dict(request.environment),
            host_config=client.create_host_config(
                auto_remove=True,
                network_mode=request.network,
                binds=[f"{host}:{inside}:ro" for inside, host in request.binds.items()],
                # With SELinux, a container may not read the host's files. With another label, the
                # host's own programs could not read them.
                security_opt=["label=disable"] if request.binds else None,
            ),
        )
    try:
        with translated("start a container"):
            client.start(made["Id"])
        yield Container(client, str(made["Id"]), request, translated)
    except BaseException:
        with translated("remove a container"):
            _end(client, str(made["Id"]), "KILL")
        raise
    # An engine answers SIGKILL only when the container has ended, and other signals at once.
    with translated("remove a container"):
        _end(client, str(made["Id"]), "TERM")


def _end(client: APIClient, container: str, signal: str) -> None:
    """End a container, which the engine then removes; this does not wait for the removal."""
    try:
        client.kill(container, signal)
    except APIError:
        # The container did not start, or has ended.
        _remove(client, [container])


def _left_over(client: APIClient, label: str) -> list[str]:
    return [str(e["Id"]) for e in client.containers(all=True, filters={"label": label})]


def _remove(client: APIClient, containers: Iterable[str]) -> None:
    for container in containers:
        # The engine may be removing the container, or have removed it.
        with suppress(APIError):
            client.remove_container(container, force=True)
