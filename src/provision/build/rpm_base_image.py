"""A base image of a distro of dnf or zypper, installed into a folder by its package manager."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from provision.build.base_image import BaseRequest, Rootfs, make_image
from provision.distros import Distro, Repository
from provision.distros.rpm_based import rpm
from provision.engine.docker_api import Engine
from provision.errors import ProvisionError
from provision.files import write_atomic
from provision.pin import BasePin
from provision.progress import Note, Output, Progress, silent
from provision.run import run, stream

# Where this machine's rpm keeps its database in the tree; the distro's own is made of it.
_DATABASE = "provision-rpmdb"
# What the installation left behind, of no use in a base image.
_UNTIDY = ("var/cache", "var/log", "tmp", "run")
# Folders above it are the distro's own.
_MIN_DEPTH = 2
_HOMES = {"dnf": "etc/yum.repos.d", "zypper": "etc/zypp/repos.d"}
# Exported by this machine's rpm and imported by the distro's: they may keep it in other folders and
# formats, and neither reads every format of the other.
_EXPORT = 'rpmdb --dbpath "$1" --exportdb > "$2" && rm -r "$1"'
_IMPORT = """\
set -eu
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
class RpmOrigin:
    """What a base image is made from.

    Attributes:
        distro: The distro.
        version: What its repositories call the release (``$releasever``).
        repositories: Those that provision.toml names; each has its keys.
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
    """Make a base image with this machine's dnf or zypper and give it the wanted name.

    Args:
        engine: Where it goes.
        request: Which one.
        origin: What it is made from.
        state: Folder for work in progress.
        progress: Receives each line of the package manager.

    Raises:
        NotFoundError: The package manager is not installed.
        UsageError: The machine is of another architecture.
        ProvisionError: It failed.
    """
    program = origin.distro.family

    def fill(tree: Path) -> None:
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
                env={"HOME": str(home)},
            )
        _own_database(tree, folder / "database", request, progress)
        _forget(tree, folder)

    rootfs = Rootfs(f"{program} from {_named(origin)}", fill, _UNTIDY)
    return make_image(engine, request, rootfs, state=state, progress=progress)


def _forget(tree: Path, folder: Path) -> None:
    """Remove the folders that package managers make in the tree after those of their settings."""
    inside = folder.resolve().relative_to("/")
    shutil.rmtree(tree / inside, ignore_errors=True)
    for path in inside.parents:
        if len(path.parts) < _MIN_DEPTH or str(path) in _UNTIDY:
            return
        # What is not empty is the distro's.
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
    # It believes whom the tree's database of keys believes, and asks about no other key.
    commands: list[Sequence[str | Path]] = [
        ["rpm", "--root", tree, "--import", key] for key in keys
    ]
    commands.append([*zypper, "refresh"])
    commands.append([*zypper, "--no-refresh", *install, *origin.distro.base_packages])
    return commands


def _own_database(tree: Path, database: Path, request: BaseRequest, progress: Progress) -> None:
    """Have the distro's own rpm keep the database of what is installed.

    Raises:
        ProvisionError: It can't read it, so the tree is no system of its own.
    """
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
