"""Takes the content of an artifact image out of the engine."""

from __future__ import annotations

import errno
import io
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from provision.engine.docker_api import Engine, Image
from provision.engine.unpack import BAD_TAR, Unpacker
from provision.errors import NotFoundError, ProvisionError
from provision.files import lock
from provision.progress import Note, Progress, silent

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Where an artifact lies in its image: what Kubernetes' KMM expects of driver images.
ARTIFACT = "/opt"
_FILE_MAX = 64 << 20
_BUFFER = 1 << 20


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
        progress: Told the bytes written so far.

    Raises:
        ProvisionError: The content is none of an artifact, the disk is full, or the engine failed.
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
