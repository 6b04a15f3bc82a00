"""Base images of Debian and Ubuntu, made by debootstrap from a mirror.

A mirror's password stays out of the arguments of programs, which every user can read: debootstrap
hands its mirror's address on to wget, and writes it into the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from provision.build.base_image import BaseRequest, Rootfs, make_image
from provision.build.logins import can_hold, netrc_home
from provision.engine.docker_api import Engine
from provision.errors import UsageError, redact
from provision.pin import BasePin
from provision.progress import Output, Progress, silent
from provision.run import stream

# Where debootstrap has what it does for each release.
_SCRIPTS = Path("/usr/share/debootstrap/scripts")
# What apt and the installation left behind, of no use in a base image.
_UNTIDY = ("var/cache/apt", "var/lib/apt/lists", "var/log", "tmp", "run")


@dataclass(frozen=True, slots=True)
class Mirror:
    """Where debootstrap gets packages.

    Attributes:
        url: Address of the distro's archive.
        keyring: The keys that sign it; None: those that debootstrap knows.
    """

    url: str
    keyring: Path | None = None


def make_base(
    engine: Engine,
    request: BaseRequest,
    mirror: Mirror,
    *,
    state: Path,
    progress: Progress = silent,
) -> BasePin:
    """Make a base image with debootstrap and give it the wanted name.

    Args:
        engine: Where it goes.
        request: Which one.
        mirror: Where it gets packages.
        state: Folder for work in progress.
        progress: Receives each of debootstrap's lines.

    Raises:
        NotFoundError: debootstrap is not installed.
        UsageError: The machine is of another architecture.
        ProvisionError: It failed.
    """

    def fill(tree: Path) -> None:
        _debootstrap(tree, request, mirror, progress)

    rootfs = Rootfs(f"debootstrap --variant=minbase from {mirror.url}", fill, _UNTIDY)
    return make_image(engine, request, rootfs, state=state, progress=progress)


@contextmanager
def _logged_in(mirror: str, folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Have programs that wget reads for log in to a mirror by themselves.

    Args:
        mirror: Its address; user and password in it are percent-encoded where they have to be.
        folder: Where there is room for a home of these programs, which only root can read.

    Yields:
        The address without user and password, and variables of the programs' environment.

    Raises:
        UsageError: User or password has a character that the file can't hold.
        OSError: The folder can't be written.
    """
    parts = urlsplit(mirror)
    if parts.username is None or parts.hostname is None:
        yield mirror, {}
        return
    login = (unquote(parts.username), unquote(parts.password or ""))
    if not can_hold(*login):
        raise UsageError(
            f"debootstrap can't log in to the mirror '{redact(mirror)}': a blank, a quote or a"
            " backslash can't be in its user or password.",
            resolution="Give the mirror another password, or pull a base image instead: docker"
            " pull NAME, and name it with --base.",
        )
    host = parts.netloc.rpartition("@")[2]
    with netrc_home(parts.hostname, login, folder) as home:
        yield urlunsplit(parts._replace(netloc=host)), {"HOME": str(home)}


def _debootstrap(tree: Path, request: BaseRequest, mirror: Mirror, progress: Progress) -> None:
    with _logged_in(mirror.url, tree.parent) as (address, environment):
        stream(
            [
                "debootstrap",
                "--variant=minbase",
                "--force-check-gpg",
                *([f"--keyring={mirror.keyring}"] if mirror.keyring else []),
                # apt in the image can't read an https mirror without.
                *(["--include=ca-certificates"] if mirror.url.startswith("https:") else []),
                request.codename,
                tree,
                address,
                *([_SCRIPTS / request.script] if request.script else []),
            ],
            why="make a base image",
            env=environment,
            on_line=lambda line: progress(Output(line)),
        )
