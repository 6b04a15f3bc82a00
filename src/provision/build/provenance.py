"""Which images of an engine were built here: their ids, kept by the user who built them.

An image's name and labels are its author's words. An engine takes any of them by ``docker pull``
or ``docker load``, and everybody can compute the digest of a Pin. An id is a checksum of the
image's content, so an image with a recorded id is the one that was built, whatever it is called.

Without a record, an image is built again; nothing else is lost.
"""

from __future__ import annotations

import secrets
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from provision.engine.docker_api import Engine, Image
from provision.errors import ProvisionError, UntrustedError
from provision.files import lock, mark_used, write_atomic
from provision.trust import is_own

_FOLDER = "built"
_DAY_S = 24 * 3600.0
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def with_own_cache(files: Mapping[str, bytes | Path], state: Path) -> dict[str, bytes | Path]:
    """Return a build context for which an engine takes no step from others.

    Engines find the steps that were done before by their text and by the image below, among all
    that they have, which anyone can make up in an archive or an image. So each stage begins with a
    label that only this user knows, and the artifact's with one of this build, because others get
    to see that image.
    """
    lines = []
    for line in bytes(files["Dockerfile"]).decode().splitlines():
        lines.append(line)
        words = line.split()
        if words[:2] == ["FROM", "scratch"]:
            lines.append(f"LABEL provision.build={secrets.token_hex(16)}")
        elif words[:2] == ["FROM", "${BASE_IMAGE}"]:
            lines.append(f"LABEL provision.cache={_cache_secret(state)}")
    return {**files, "Dockerfile": "\n".join([*lines, ""]).encode()}


def _cache_secret(state: Path) -> str:
    """Return what only this user knows; without it, steps that were done before are done again."""
    path = _own_folder(state) / "cache-secret"
    with lock(state / "locks" / "cache-secret"):
        if not path.is_file():
            write_atomic(path, secrets.token_hex(16), mode=0o600)
        return path.read_text()


def record_built(state: Path, image_id: str, name: str) -> None:
    """Record that an image was built here.

    Args:
        state: Folder for the state of builds.
        name: The image's name, for people who read the record.
    """
    _own_folder(state)
    write_atomic(_record(state, image_id), f"{name}\n", mode=0o600)


def _own_folder(state: Path) -> Path:
    """Return the folder of records, which only this user may write to."""
    folder = state / _FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not _is_own(folder):
        raise ProvisionError(
            f"'{folder}' belongs to another user, or others may write to it, so what it says of"
            " images is not used.",
            resolution="Build with a cache of your own: unset XDG_CACHE_HOME, or remove that"
            f" folder: rm -r {folder}",
        )
    return folder


def is_built_here(state: Path, image: Image) -> bool:
    """Return whether this user has built an image on this machine."""
    return _is_own(state / _FOLDER) and _record(state, image.id).is_file()


def has_built(state: Path) -> bool:
    """Return whether this user has built any image on this machine."""
    return (state / _FOLDER).is_dir()


def built_here(engine: Engine, label: str, state: Path) -> list[Image]:
    """Return the named images with a label, ``key`` or ``key=value``, that this user has built."""
    return [
        image
        for image in engine.images_with_label(label)
        if image.tags and is_built_here(state, image)
    ]


def mark_image_used(state: Path, image: Image) -> None:
    """Set the time of use of an image that was built here to now."""
    mark_used(_record(state, image.id))


def days_unused(state: Path, image: Image) -> float:
    """Return the days since an image that was built here was used."""
    return (time.time() - _record(state, image.id).stat().st_mtime) / _DAY_S


def require_built_here(state: Path, image: Image, name: str, *, resolution: str) -> None:
    """Refuse an image that was not built here."""
    if is_built_here(state, image):
        return
    raise UntrustedError(
        f"The image '{name}' is refused: this user did not build it on this machine. What its name"
        " and its labels say is the word of whoever made it.",
        resolution=resolution,
    )


def remove_records(state: Path, engine: Engine, *, days: float) -> None:
    """Remove the records of images that the engine no longer has.

    A young record stays, because the image may be in another engine.
    """
    oldest = time.time() - days * _DAY_S
    for path in sorted((state / _FOLDER).glob("sha256:*")):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest and engine.image(path.name) is None:
                path.unlink()


def _record(state: Path, image_id: str) -> Path:
    # podman leaves the algorithm out, depending on the call.
    return state / _FOLDER / f"sha256:{quote(image_id.removeprefix('sha256:'), safe='')}"


def _is_own(folder: Path) -> bool:
    """Return whether only this user and root can have written to a folder."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_closed = stat.S_ISDIR(status.st_mode) and not status.st_mode & _OTHERS_MAY_WRITE
    return is_closed and is_own(status)
