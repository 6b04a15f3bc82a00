"""Makes the base images that no registry has: by debootstrap, dnf, zypper, or of Flatcar's disk.

A mirror's password stays out of the arguments of programs, which every user can read. debootstrap
passes the address of its mirror on to wget, and writes it into the image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from provision.build.base_image import (
    BaseRequest,
    base_pin,
    find_base,
    image_of_tree,
    named_base,
)
from provision.build.workspace import Settings
from provision.distros import release_of, rpm, uses_archive
from provision.distros.distro import release_address
from provision.distros.repositories import binary_key, repositories_of
from provision.errors import NotFoundError, UsageError
from provision.fetch import download_signed
from provision.files import in_root, scratch, settled_path, write_atomic
from provision.pin import BasePin, names_of
from provision.progress import Note, Output, report
from provision.run import run, stream

_FLATCAR = "flatcar"
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+){0,3}")
_DISK = "flatcar_developer_container.bin.bz2"
_KEYRING = "/etc/provision/keys/flatcar.asc"
# Source: https://www.flatcar.org/security/image-signing-key/
_FINGERPRINT = "F88CFEDEFF29A5B4D9523864E25D9AED0593B34A"
# Nothing is mounted, and no loop device is needed. The root is the largest partition; the disk has
# some 6 GB, mostly holes.
_COPY_ROOT = """\
set -eu
bzip2 -dc "$1" | cp --sparse=always /dev/stdin "$2.disk"
start=$(partx --bytes --raw --noheadings --output SIZE,START "$2.disk" \\
    | sort -n | tail -n 1 | cut -d ' ' -f 2)
mkdir "$2"
debugfs -R "rdump / $2" "$2.disk?offset=$((start * 512))" >&2
rm "$2.disk"
[ -d "$2/usr" ]"""
_COPY_SECONDS = 3600.0


def copy_root(packed: Path, tree: Path) -> None:
    """Copy the files of a packed disk's root partition into a new folder."""
    argv = ["sh", "-c", _COPY_ROOT, "sh", str(packed), str(tree)]
    run(argv, why="copy the files of the developer container", timeout=_COPY_SECONDS)


# Characters that a word of .netrc can't hold: wget reads quotes, but has no escape for one.
_NO_WORD = re.compile(r"[\s\"\\\x00-\x1f]")
# debootstrap's own scripts, one for each release.
_SCRIPTS = Path("/usr/share/debootstrap/scripts")
# Copied from this machine; the engine replaces them in every container.
_FOREIGN = ("etc/hostname", "etc/resolv.conf")
_CACHES = ("var/cache/apt", "var/lib/apt/lists", "var/cache/dnf", "var/cache/zypp")
_UNTIDY = (*_CACHES, "var/log", "tmp", "run")
# This machine's rpm keeps its database here in the tree; the distro's own is made from it.
_DATABASE = "provision-rpmdb"
_REPOSITORIES = {"dnf": "etc/yum.repos.d", "zypper": "etc/zypp/repos.d"}
# Exported by this machine's rpm and imported by the distro's: they may keep it in other folders and
# formats, and neither reads every format of the other.
_OWN_DATABASE = """\
set -eu
rpmdb --dbpath "$1/$3" --exportdb > "$2"
rm -r "$1/$3"
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


def ensure_distro_base(settings: Settings, request: BaseRequest) -> BasePin:
    """Return a base image; it is made if it is neither here nor in its registry.

    An image that is named by its digest needs no engine.
    """
    if (named := named_base(request)) is not None:
        return named
    # Without an engine, nothing is said of images.
    engine = settings.engine()
    try:
        return find_base(engine, request)
    except NotFoundError:
        if not request.can_be_made:
            raise
    report(Note(f"There is no image {request.name}; making it"))
    # Not in /tmp, which may forbid programs and device nodes.
    with scratch(settings.state, "base") as folder:
        if (made := engine.image(request.name)) is not None:
            # The process that this one waited for made it.
            return base_pin(request.name, made.id)
        tree = folder / "root"
        # Each fills the tree, and says with what.
        if request.distro.id == _FLATCAR:
            maker = _flatcar(settings, request, tree)
        elif uses_archive(request.distro):
            maker = _debootstrap(settings, request, tree)
        else:
            maker = _packages(settings, request, tree)
        for foreign in _FOREIGN:
            (tree / foreign).unlink(missing_ok=True)
        report(Note(f"Importing {request.name}"))
        # Without the address, which may hold a password.
        return image_of_tree(engine, tree, request, maker)


def _began(request: BaseRequest, maker: str, origin: str) -> str:
    report(Note(f"Making {request.name} with {maker} from {origin}"))
    return maker


def _flatcar(settings: Settings, request: BaseRequest, tree: Path) -> str:
    """Unpack the developer container of a release of Flatcar."""
    version = request.distro.version
    if not _VERSION.fullmatch(version):
        raise UsageError(
            f"'{version}' is no version of Flatcar.",
            resolution="Give it as os-release has it: --distro flatcar:4081.2.0",
        )
    archive = settings.config.distro(_FLATCAR).archive
    url = release_address(_FLATCAR, version, request.architecture, mirror=archive.mirror)

    key = settled_path(settings.root, archive.keyring or _KEYRING)
    if not key.is_file():
        raise NotFoundError(
            f"The key that signs Flatcar's releases is not there: '{key}'.",
            resolution="Download it from https://www.flatcar.org/security/image-signing-key/,"
            f" compare its fingerprint, and put it there: gpg --show-keys {key} has to say"
            f" {_FINGERPRINT}. Another file can be named as 'keyring' of"
            " [distros.flatcar.archive] in /etc/provision/provision.toml.",
        )
    maker = _began(request, "Flatcar's developer container", url)
    keyring = _binary_keyring(tree.parent, {str(key): key.read_bytes()})
    packed = tree.parent / _DISK
    download_signed(f"{url}/{_DISK}", keyring=keyring, destination=packed)
    copy_root(packed, tree)
    return maker


def _binary_keyring(folder: Path, keys: Mapping[str, bytes]) -> Path:
    """Return a file with keys in OpenPGP's binary form, in which a keyring is a sequence of them.

    Source: https://www.rfc-editor.org/rfc/rfc9580#section-10.1
    """
    path = folder / "keys.gpg"
    path.write_bytes(b"".join(binary_key(key, name=name) for name, key in keys.items()))
    return path


def _debootstrap(settings: Settings, request: BaseRequest, tree: Path) -> str:
    suites = repositories_of(
        request.distro, settings.config.distro(request.distro.id), settings.root
    )
    # Rather not one that may be another's archive.
    suite = min(
        (one for one in suites if one.id == request.distro.codename),
        key=lambda one: one.origin is not None,
    )
    mirror = suite.urls[0]
    maker = _began(request, "debootstrap --variant=minbase", mirror)
    # Without any, those that debootstrap knows.
    keyring = _binary_keyring(tree.parent, suite.keys) if suite.keys else None
    address, environment = log_in(mirror, tree.parent)
    _run(
        *maker.split(),
        "--force-check-gpg",
        f"--arch={names_of(request.architecture).debian}",
        *([f"--keyring={keyring}"] if keyring else []),
        # apt in the image can't read an https mirror without these.
        *(["--include=ca-certificates"] if mirror.startswith("https:") else []),
        request.distro.codename,
        tree,
        address,
        *([_SCRIPTS / request.script] if request.script else []),
        environment=environment,
    )
    _tidy(tree)
    return maker


def log_in(mirror: str, folder: Path) -> tuple[str, Mapping[str, str]]:
    """Let wget log in to a mirror by a ``.netrc``, with no password in the arguments of a program.

    Source: https://www.gnu.org/software/inetutils/manual/html_node/The-_002enetrc-file.html

    Args:
        mirror: Its address; user and password in it are percent-encoded where they have to be.

    Returns:
        The address without user and password, and variables for debootstrap's environment.
    """
    parts = urlsplit(mirror)
    if parts.username is None or parts.hostname is None:
        return mirror, {}
    user, password = unquote(parts.username), unquote(parts.password or "")
    if not user or _NO_WORD.search(user + password):
        raise UsageError(
            f"No program can log in to '{parts.hostname}' as is asked: the user is empty, or a"
            " blank, a quote or a backslash is in the user or password.",
            resolution="Have another password or token made for it, and give that in its place.",
        )
    login = f"machine {parts.hostname} login {user} password {password}\n"
    write_atomic(folder / "home/.netrc", login, mode=0o600)
    address = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return address, {"HOME": str(folder / "home")}


def _packages(settings: Settings, request: BaseRequest, tree: Path) -> str:
    """Install a base image's packages with this machine's dnf or zypper.

    Their repositories are those of provision.toml, or of such a host.
    """
    distro, release = release_of(request.distro)
    own = repositories_of(request.distro, settings.config.distro(request.distro.id), settings.root)
    facts = settings.facts.distro
    is_such_a_host = facts.id == distro.id and distro.release(facts.version or "") == release
    # The release's name in its repositories ($releasever).
    version = facts.version if is_such_a_host and facts.version else release.version
    configured = in_root(settings.root, _REPOSITORIES[distro.family])
    is_known = all(one.keys for one in own) if own else is_such_a_host and configured.is_dir()
    if not is_known:
        raise NotFoundError(
            f"It is not known from which repositories, and with whose keys, a base image of"
            f" {distro.name} {release.version} can be made.",
            resolution="Name its repositories, with the keys that sign their packages, in"
            f" /etc/provision/provision.toml: [distros.{distro.id}] repositories ="
            ' [{ id = "…", urls = ["https://…"], keys = ["/path/of/its/key"] }]; or pull an image'
            f" where that is possible ({release.image}) and docker load it here.",
        )

    addresses = ", ".join(url for repository in own for url in repository.urls)
    maker = _began(
        request, distro.family, addresses or f"this machine's repositories ({configured})"
    )
    folder = tree.parent
    home = folder / "home"
    write_atomic(home / ".rpmmacros", f"%_dbpath /{_DATABASE}\n")
    for name, content in rpm.repository_files(own, str(folder)).items():
        write_atomic(folder / name, content)
    (tree / _REPOSITORIES[distro.family]).mkdir(parents=True)
    # Scriptlets run in the tree, where the user's TMPDIR may not exist; "" is the default.
    environment = {"HOME": str(home), "TMPDIR": ""}
    place = folder / "repos" if own else configured
    if distro.family == "dnf":
        options = [f"reposdir={place}", "install_weak_deps=False", "tsflags=nodocs"]
        words = [f"--installroot={tree}", f"--releasever={version}"]
        words += [*(f"--setopt={one}" for one in options), "--assumeyes", "install"]
        _run("dnf", *words, *distro.base_packages, environment=environment)
    else:
        # zypper trusts the keys in the tree's database and refuses all others.
        for key in sorted(folder.glob("keys/*")):
            _run("rpm", "--root", tree, "--import", key, environment=environment)
        zypper = ("zypper", "--root", tree, "--non-interactive", "--reposd-dir", place)
        _run(*zypper, "refresh", environment=environment)
        how = ("--no-recommends", "--auto-agree-with-licenses", "--capability")
        install = ("--no-refresh", "install", *how, *distro.base_packages)
        _run(*zypper, *install, environment=environment)
    report(Note(f"Writing the package database of {request.name}"))
    run(
        ["sh", "-c", _OWN_DATABASE, "sh", tree, folder / "database", _DATABASE],
        why="have the distro's own rpm keep the package database",
    )
    _tidy(tree)
    return maker


def _run(*argv: str | Path, environment: Mapping[str, str]) -> None:
    why = "make a base image"
    stream(argv, why=why, env=environment, on_line=lambda line: report(Output(line)))


def _tidy(tree: Path) -> None:
    """Remove what an installation leaves, but for its folders, which programs expect."""
    for folder in (tree / name for name in _UNTIDY):
        for path in () if folder.is_symlink() else folder.rglob("*"):
            if path.is_symlink() or not path.is_dir():
                path.unlink()
