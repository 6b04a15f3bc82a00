"""Root filesystems of base images, made by debootstrap, dnf or zypper.

A mirror's password stays out of the arguments of programs, which every user can read. debootstrap
passes the address of its mirror on to wget, and writes it into the image.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from provision.build.base_image import BaseRequest, Rootfs, make_image
from provision.build.network_access import can_hold, netrc_home
from provision.distros import Distro, Repository
from provision.distros.rpm_based import rpm
from provision.engine.docker_api import Engine
from provision.errors import ProvisionError, UsageError, redact
from provision.files import write_atomic
from provision.pin import BasePin
from provision.pin.architectures import names_of
from provision.progress import Note, Output, Progress, silent
from provision.run import run, stream

# debootstrap's own scripts, one for each release.
_SCRIPTS = Path("/usr/share/debootstrap/scripts")
# Files that the installation leaves there are not needed in a base image.
_APT_UNTIDY = ("var/cache/apt", "var/lib/apt/lists", "var/log", "tmp", "run")
# This machine's rpm keeps its database here in the tree; the distro's own is made from it.
_DATABASE = "provision-rpmdb"
# The same for dnf and zypper.
_RPM_UNTIDY = ("var/cache", "var/log", "tmp", "run")
# Paths of fewer parts belong to the distro.
_MIN_DEPTH = 2
_HOMES = {"dnf": "etc/yum.repos.d", "zypper": "etc/zypp/repos.d"}
# Exported by this machine's rpm and imported by the distro's: they may keep it in other folders and
# formats, and neither reads every format of the other.
_EXPORT = 'rpmdb --dbpath "$1" --exportdb > "$2" && rm -r "$1"'
_IMPORT = """\
set -eu
unset TMPDIR
# zypper's, to the database that is gone.
for link in "$1/var/lib/rpm" "$1/usr/lib/sysimage/rpm"; do
    [ ! -L "$link" ] || [ -e "$link" ] || rm "$link"
done
chroot "$1" sh -euc '
    folder=$(rpm --eval %_dbpath)
    mkdir -p "$folder"
    rm -rf "$folder"/*
    rpmdb --initdb
    rpmdb --importdb' < "$2"
chroot "$1" rpm --query rpm"""


@dataclass(frozen=True, slots=True)
class Mirror:
    """Where debootstrap gets packages.

    Attributes:
        keyring: The keys that sign it; None: those that debootstrap knows.
    """

    url: str
    keyring: Path | None = None


def make_apt_base(
    engine: Engine,
    request: BaseRequest,
    mirror: Mirror,
    *,
    state: Path,
    progress: Progress = silent,
) -> BasePin:
    """Make a base image with debootstrap and give it the name of the request."""

    def fill(tree: Path) -> None:
        _debootstrap(tree, request, mirror, progress)

    rootfs = Rootfs(f"debootstrap --variant=minbase from {mirror.url}", fill, _APT_UNTIDY)
    return make_image(engine, request, rootfs, state=state, progress=progress)


@contextmanager
def _logged_in(mirror: str, folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Let wget log in to a mirror, with no password in the arguments of a program.

    Args:
        mirror: Its address; user and password in it are percent-encoded where they have to be.

    Yields:
        The address without user and password, and variables for debootstrap's environment.
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
                f"--arch={names_of(request.architecture).debian}",
                *([f"--keyring={mirror.keyring}"] if mirror.keyring else []),
                # apt in the image can't read an https mirror without these.
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


@dataclass(frozen=True, slots=True)
class RpmOrigin:
    """The repositories that a base image is made from.

    Attributes:
        version: The release's name in its repositories (``$releasever``).
        configured: The folder with this machine's own repositories, where it is such a host and
            provision.toml names none.
    """

    distro: Distro
    version: str
    repositories: tuple[Repository, ...] = ()
    configured: Path | None = None


def make_rpm_base(
    engine: Engine,
    request: BaseRequest,
    origin: RpmOrigin,
    *,
    state: Path,
    progress: Progress = silent,
) -> BasePin:
    """Make a base image with this machine's dnf or zypper and give it the name of the request."""

    def fill(tree: Path) -> None:
        _install(tree, origin, progress)
        _own_database(tree, tree.parent / "database", request, progress)
        _forget(tree, tree.parent)

    rootfs = Rootfs(f"{origin.distro.family} from {_named(origin)}", fill, _RPM_UNTIDY)
    return make_image(engine, request, rootfs, state=state, progress=progress)


def _install(tree: Path, origin: RpmOrigin, progress: Progress) -> None:
    """Install the packages of a base image into a new folder, beside files for the installation."""
    program = origin.distro.family
    folder = tree.parent
    home = folder / "home"
    write_atomic(home / ".rpmmacros", f"%_dbpath /{_DATABASE}\n")
    repositories = origin.configured or folder / "repos"
    for name, content in rpm.repository_files(origin.repositories, str(folder)).items():
        write_atomic(folder / name, content)
    (tree / _HOMES[program]).mkdir(parents=True)
    commands = _zypper if program == "zypper" else _dnf
    for words in commands(tree, origin, repositories):
        stream(
            words,
            why="make a base image",
            on_line=lambda line: progress(Output(line)),
            # Scriptlets run in the tree, where the user's TMPDIR may not exist; "" is the default.
            env={"HOME": str(home), "TMPDIR": ""},
        )


def _forget(tree: Path, folder: Path) -> None:
    """Remove the folders that package managers made in the tree at the paths of their settings."""
    inside = folder.resolve().relative_to("/")
    shutil.rmtree(tree / inside, ignore_errors=True)
    for path in inside.parents:
        if len(path.parts) < _MIN_DEPTH or str(path) in _RPM_UNTIDY:
            return
        # A folder that is not empty belongs to the distro.
        with suppress(OSError):
            (tree / path).rmdir()


def _named(origin: RpmOrigin) -> str:
    urls = [url for repository in origin.repositories for url in repository.urls]
    return ", ".join(urls) or f"this machine's repositories ({origin.configured})"


def _dnf(tree: Path, origin: RpmOrigin, repositories: Path) -> list[Sequence[str | Path]]:
    cache = tree.parent / "cache"
    return [
        [
            "dnf",
            f"--installroot={tree}",
            f"--releasever={origin.version}",
            f"--setopt=reposdir={repositories}",
            f"--setopt=cachedir={cache}",
            f"--setopt=system_cachedir={cache}",
            "--setopt=install_weak_deps=False",
            "--setopt=tsflags=nodocs",
            "--assumeyes",
            "install",
            *origin.distro.base_packages,
        ]
    ]


def _zypper(tree: Path, origin: RpmOrigin, repositories: Path) -> list[Sequence[str | Path]]:
    folder = tree.parent
    keys = sorted((folder / "keys").glob("*")) if origin.repositories else []
    zypper: list[str | Path] = ["zypper", "--root", tree, "--non-interactive"]
    zypper += ["--reposd-dir", repositories, "--cache-dir", folder / "cache"]
    zypper += ["--pkg-cache-dir", folder / "packages"]
    install = ["install", "--no-recommends", "--auto-agree-with-licenses", "--capability"]
    # zypper trusts the keys in the tree's database and refuses all others.
    commands: list[Sequence[str | Path]] = [
        ["rpm", "--root", tree, "--import", key] for key in keys
    ]
    commands.append([*zypper, "refresh"])
    commands.append([*zypper, "--no-refresh", *install, *origin.distro.base_packages])
    return commands


def _own_database(tree: Path, database: Path, request: BaseRequest, progress: Progress) -> None:
    """Convert the package database to that of the distro's own rpm."""
    progress(Note(f"Writing the package database of {request.name}"))
    run(["sh", "-c", _EXPORT, "sh", tree / _DATABASE, database], why="read a package database")
    done = run(
        ["sh", "-c", _IMPORT, "sh", tree, database], why="write a package database", check=False
    )
    if done.returncode != 0:
        raise ProvisionError(
            f"The rpm of {request.distro} {request.version} could not take over the database of the"
            " packages that were installed.",
            resolution="See whether the repositories are of that release. An image that the distro"
            " publishes does without: docker load it, and name it with [distros."
            f"{request.distro}] base_images in /etc/provision/provision.toml.",
            details=done.stderr.strip() or None,
        )
