"""Extracts the content of artifact images from the engine."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.engine.docker_api import Engine, Image
from provision.engine.scratch import container_owner
from provision.engine.tar_streams import BAD_TAR, TarReader, Unpacker, readable
from provision.errors import NotFoundError, ProvisionError
from provision.files import lock

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
