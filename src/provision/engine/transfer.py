"""Takes the content of artifact images out of the engine, and sends images to a registry."""

from __future__ import annotations

import errno
import io
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from provision.engine.docker_api import Engine, Image, split_reference
from provision.engine.stream import transfer
from provision.engine.tar_streams import BAD_TAR, Unpacker
from provision.errors import NotFoundError, ProvisionError
from provision.files import lock
from provision.progress import Note, Progress, silent

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LICENCES = "org.opencontainers.image.licenses"
# Of no list of free licences, not looked at, or disputed for modules of a kernel under the GPL.
_RESTRICTED = re.compile(r"\b(?:LicenseRef-[A-Za-z0-9.-]+|NOASSERTION|CDDL-[0-9.]+)")
# Where an artifact lies in its image: what Kubernetes' KMM expects of driver images.
ARTIFACT = "/opt"
_FILE_MAX = 64 << 20
_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class Pushed:
    """An image in a registry: its name there and the registry's digest of it."""

    reference: str
    digest: str


def push(engine: Engine, image_id: str, reference: str, *, progress: Progress = silent) -> Pushed:
    """Push an image under a name.

    Args:
        engine: Has the image; its own credentials count (``docker login``).
        image_id: The image.
        reference: ``registry/name:tag``.
        progress: Receives the bytes sent, and licences that may forbid it.

    Raises:
        ProvisionError: The registry refused it or can't be reached.
    """
    image = engine.image(image_id)
    licences = _RESTRICTED.findall(image.labels.get(_LICENCES, "") if image else "")
    if licences:
        names = ", ".join(dict.fromkeys(licences))
        progress(
            Note(
                f"Warning: {names} may forbid to pass this image on. Read it before others than you"
                f" can pull '{reference}'."
            )
        )
    engine.tag(image_id, reference)
    progress(Note(f"Pushing {reference}"))
    digest = None
    for message in engine.push(reference):
        if "error" in message:
            registry = split_reference(reference)[0].split("/", 1)[0]
            raise ProvisionError(
                f"'{reference}' could not be pushed.",
                resolution=f"Log in to the registry if it wants that (docker login {registry}), "
                "and check whether the engine reaches it.",
                details=str(message["error"]),
            )
        aux = message.get("aux")
        digest = aux.get("Digest", digest) if isinstance(aux, Mapping) else digest
        for event in transfer(message):
            progress(event)
    if digest is None:
        raise ProvisionError(f"The registry named no digest for '{reference}'.")
    return Pushed(reference, str(digest))


def extract(
    engine: Engine, image: Image, destination: Path, *, state: Path, progress: Progress = silent
) -> None:
    """Unpack an artifact image's content into a new folder.

    Args:
        engine: Has the image.
        image: The image.
        destination: The folder; must not exist. It is there whole, or not at all, unless the
            process is killed.
        state: Folder for locks.
        progress: Receives the bytes written so far.

    Raises:
        ProvisionError: The content is not an artifact's, the disk is full, or the engine failed.
    """
    destination.mkdir(parents=True)
    try:
        with (
            _owned(state, progress) as owner,
            engine.archive(image.id, ARTIFACT, owner=owner) as chunks,
        ):
            unpacker = Unpacker(destination, strip=ARTIFACT.strip("/"), progress=progress)
            unpacker.unpack(_readable(chunks))
    except BaseException as error:
        shutil.rmtree(destination, ignore_errors=True)
        if isinstance(error, OSError):
            raise disk_error(error, destination) from error
        raise


def read_file(engine: Engine, image: Image, path: str, *, state: Path) -> bytes:
    """Return one file of an artifact image, given relative to its content.

    Raises:
        ProvisionError: It has no such file, or the engine failed.
    """
    with (
        _owned(state) as owner,
        engine.archive(image.id, f"{ARTIFACT}/{path}", owner=owner) as chunks,
    ):
        try:
            with tarfile.open(fileobj=_readable(chunks), mode="r|") as archive:
                return _content(archive, path)
        except BAD_TAR as error:
            raise ProvisionError(
                f"'{path}' of the image could not be read as a tar stream.", details=str(error)
            ) from error


def _content(archive: tarfile.TarFile, path: str) -> bytes:
    """Return the content of the one file in an archive."""
    member = archive.next()
    source = archive.extractfile(member) if member and member.isreg() else None
    if source is None:
        raise ProvisionError(f"'{path}' in the image is no regular file.")
    content = source.read(_FILE_MAX + 1)
    if len(content) > _FILE_MAX:
        raise ProvisionError(f"'{path}' in the image is larger than {_FILE_MAX} bytes.")
    return content


def find_image(engine: Engine, reference: str) -> Image:
    """Return an image of the engine by name or id; nothing is pulled.

    Raises:
        NotFoundError: The engine hasn't got it.
    """
    image = engine.image(reference)
    if image is None:
        raise NotFoundError(
            f"The engine at {engine.host} has no image '{reference}'.",
            resolution="'provision build' says what its image is called; 'docker images' lists "
            "those that the engine has.",
        )
    return image


@contextmanager
def _owned(state: Path, progress: Progress = silent) -> Iterator[str]:
    """Hold the lock under which containers for extraction exist; yields its name."""
    path = state / "locks" / "extract"
    waiting = "Another provision is reading an image; waiting for it"
    with lock(path, on_wait=lambda: progress(Note(waiting))):
        yield str(path)


def _readable(chunks: Iterator[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", io.BufferedReader(_Chunks(chunks), _BUFFER))


class _Chunks(io.RawIOBase):
    """Makes a stream of byte strings readable as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fill a buffer, as ``io.RawIOBase`` wants it; 0 at the end."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        target = memoryview(buffer)
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def disk_error(error: OSError, destination: Path) -> ProvisionError:
    """Return what to say of a disk that is full or can't be written."""
    if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
        return ProvisionError(f"Could not write to '{destination}': {error.strerror or error}.")
    free = shutil.disk_usage(destination.parent).free
    return ProvisionError(
        f"The disk that holds '{destination.parent}' is full.",
        resolution="Make room there and run the command again; what was unpacked is removed.",
        details=f"{free // 1_000_000} MB are free now.",
    )
