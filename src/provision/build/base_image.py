"""The base image of the build stages: named, found here, pulled, or made.

What no registry has is made with this machine's debootstrap, dnf or zypper, or of Flatcar's
developer container. Never from an address with a password: it would be an argument of programs,
which every user can read, and debootstrap writes it into the image.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import tarfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from provision.build.output import transfer
from provision.build.workspace import Settings
from provision.distros import rpm
from provision.distros.distro import Distro, distro_named, release_address, release_of, uses_archive
from provision.distros.repositories import binary_key, repositories_of
from provision.documents import mistakes_of
from provision.engine.docker_api import Engine, Image, Message, split_reference
from provision.errors import NotFoundError, ProvisionError, UsageError, redact
from provision.fetch import download_signed
from provision.files import in_root, scratch, settled_path, write_atomic
from provision.pin import BasePin, DistroPin, names_of
from provision.progress import Note, Output, report
from provision.run import run, stream

# Where Docker's official images are, by machine.
_OFFICIAL = {"x86_64": "amd64", "aarch64": "arm64v8"}


class BaseRequest(NamedTuple):
    """The base image that is asked for."""

    distro: DistroPin
    architecture: str
    # ``name:tag`` or ``name@digest`` of another image; None: the distro's own.
    reference: str | None = None
    # Whether provision can make it from the distro's packages.
    can_be_made: bool = True
    # Debootstrap's script for it; None: the one that has the codename.
    script: str | None = None
    # Whether to look for it in a registry. An image that is only made locally is not looked for
    # there, because others could publish one under its name.
    is_published: bool = True

    @property
    def name(self) -> str:
        """The reference to look for."""
        return self.reference or image_for(
            self.architecture, f"{self.distro.id}:{self.distro.codename}"
        )


def image_for(machine: str, image: str) -> str:
    """Return what Docker's official images call an image for a machine.

    For another machine than this one they are in repositories of their own, so that a local image
    keeps its name. Source: https://github.com/docker-library/official-images#architectures-other-than-amd64
    """
    is_official = "/" not in image
    if machine == platform.machine() or not is_official:
        return image
    return f"{_OFFICIAL.get(machine, machine)}/{image}"


def base_request(
    settings: Settings, distro: DistroPin, *, reference: str | None = None
) -> BaseRequest:
    """Return the base image on which a distro is built here."""
    # For a build in a kernel tree, provision may have no data of the distro.
    data = distro_named(distro.id)
    release = data.release(distro.version) if data else None
    if data and release and data.family == "tree" and release.version != distro.version:
        # These distros have an image for each version, and none for a whole release.
        release = None
    configured = _configured_image(settings, distro, data)
    apt = data.apt if data else None
    published = (
        image_for(settings.architecture, release.image) if release and release.image else None
    )
    return BaseRequest(
        distro=distro,
        architecture=settings.architecture,
        reference=reference or configured or published,
        # Not under a name that an admin chose: it stands for something else.
        can_be_made=not (reference or configured)
        and (apt is not None or bool(data and data.base_packages)),
        script=apt.debootstrap_script if apt else None,
    )


def _configured_image(settings: Settings, distro: DistroPin, data: Distro | None) -> str | None:
    images = settings.config.distro(distro.id).base_images
    if distro.version in images or data is None or data.family == "tree":
        return images.get(distro.version)
    release = data.release(distro.version)
    return next((image for name, image in images.items() if data.release(name) == release), None)


def named_base(request: BaseRequest) -> BasePin | None:
    """Return the base image of a request that names it by its digest; no engine is needed."""
    name, digest = split_reference(request.name)
    if "@" not in request.name or digest is None:
        return None
    return base_pin(request.name.split("@", 1)[0] or name, digest)


def find_base(engine: Engine, request: BaseRequest) -> BasePin:
    """Return the base image of a name with its digest; pull it if it is not local."""
    name, _tag = split_reference(request.name)
    image = engine.image(request.name)
    if image is None and request.is_published:
        image = _pulled(engine, request)
    if image is None:
        raise NotFoundError(
            f"There is no base image '{request.name}', here or in its registry."
            if request.is_published
            else f"There is no base image '{request.name}' here.",
            resolution=f"Pull it (docker pull {request.name}), or name another with --base or in"
            f" /etc/provision/provision.toml: [distros.{request.distro.id}] base_images.",
        )
    require_architecture(image, request.name, request.architecture)
    return base_pin(request.name, _digest(image, name))


def ensure_base(engine: Engine, base: BasePin) -> Image:
    """Return exactly the image that a Pin names; pull it by its digest if necessary."""
    name, _tag = split_reference(base.image)
    pinned = f"{name}@{base.digest}"
    image = engine.image(base.digest) or engine.image(pinned)
    if image is None:
        report(Note(f"Pulling the base image {pinned}"))
        _drain(engine.pull(pinned))
        image = engine.image(pinned)
    if image is None:
        raise NotFoundError(
            f"The base image that the Pin names, '{pinned}', is neither here nor in a registry.",
            resolution="Resolve again, so that the Pin names the base image of this machine, or "
            "name one with --base.",
        )
    return image


def base_pin(name: str, digest: str) -> BasePin:
    """Return what a Pin says of an image; refuse a name that is none."""
    try:
        return BasePin(image=name, digest=digest)
    except ValidationError as error:
        raise UsageError(
            f"'{name}' ({digest}) is not a valid image name.",
            resolution="Give it as NAME:TAG or NAME@sha256:…, in lower case.",
            details="\n".join(map(str, mistakes_of(error))),
        ) from error


def _digest(image: Image, name: str) -> str:
    """Return the registry's digest of the image, or its own id where it has none."""
    of_registry = [d.split("@", 1)[1] for d in image.digests if d.split("@", 1)[0] == name]
    return sorted(of_registry)[0] if of_registry else image.id


def _pulled(engine: Engine, request: BaseRequest) -> Image | None:
    report(Note(f"Pulling the base image {request.name}"))
    architecture = names_of(request.architecture).go
    _drain(engine.pull(request.name, platform=f"linux/{architecture}"))
    return engine.image(request.name)


def _drain(messages: Iterator[Message]) -> None:
    """Follow a pull. If it fails, a note says why, and the image is missing afterwards."""
    try:
        for message in messages:
            if "error" in message:
                report(Note(f"Not pulled: {message['error']}"))
            for event in transfer(message):
                report(event)
    except ProvisionError as error:
        report(Note(f"Not pulled: {error.details or error.message}"))


def require_architecture(image: Image, name: str, machine: str) -> None:
    """Refuse a base image for another architecture than a kernel's."""
    architecture = names_of(machine).go
    if image.architecture != architecture:
        raise ProvisionError(
            f"The base image '{name}' is for {image.architecture}, not {architecture}.",
            resolution=f"Pull the right one: docker pull --platform linux/{architecture} {name};"
            " or name another with --base.",
        )


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


# Copied from this machine; the engine replaces them in every container.
_FOREIGN = ("etc/hostname", "etc/resolv.conf")
# Folders with what an installation leaves; programs expect the folders.
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
        if request.distro.id == _FLATCAR:
            program = _flatcar(settings, request, tree)
        elif uses_archive(request.distro):
            program = _debootstrap(settings, request, tree)
        else:
            program = _packages(settings, request, tree)
        _tidy(tree)
        report(Note(f"Importing {request.name}"))
        archive = folder / "image.tar"
        _pack(tree, archive, request, program)
        with archive.open("rb") as content:
            engine.load(content)
        image = engine.image(request.name)
        if image is None:
            raise ProvisionError(
                f"The engine at {engine.host} imported '{request.name}' but does not list it.",
                resolution="Look into the engine's log (journalctl -u docker),"
                " then run the command again.",
            )
        return base_pin(request.name, image.id)


def _flatcar(settings: Settings, request: BaseRequest, tree: Path) -> str:
    """Unpack the developer container of a release; return what its tree is of."""
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
    report(Note(f"Making {request.name} from {url}"))
    packed = tree.parent / _DISK
    keyring = _keyring(tree.parent, {str(key): key.read_bytes()})
    download_signed(f"{url}/{_DISK}", keyring=keyring, destination=packed)
    copy_root(packed, tree)
    return "Flatcar's developer container"


def _keyring(folder: Path, keys: Mapping[str, bytes]) -> Path:
    """Return a file with keys in OpenPGP's binary form, in which a keyring is a sequence of them.

    Source: https://www.rfc-editor.org/rfc/rfc9580#section-10.1
    """
    path = folder / "keys.gpg"
    path.write_bytes(b"".join(binary_key(key, name=name) for name, key in keys.items()))
    return path


def _debootstrap(settings: Settings, request: BaseRequest, tree: Path) -> str:
    distro = request.distro
    suites = repositories_of(distro, settings.config.distro(distro.id), settings.root)
    # Rather not one that may be another's archive.
    suite = min(
        (one for one in suites if one.id == distro.codename), key=lambda one: one.origin is not None
    )
    mirror = suite.urls[0]
    if redact(mirror) != mirror:
        raise UsageError(
            f"{request.name} can't be made from '{redact(mirror)}': debootstrap would show the"
            " password to every user, and write it into the image.",
            resolution="Load the image into the engine (docker load), or name a mirror without a"
            f" password: [distros.{distro.id}.archive] of /etc/provision/provision.toml.",
        )
    report(Note(f"Making {request.name} with debootstrap from {mirror}"))
    program = "debootstrap --variant=minbase"
    _run(
        *program.split(),
        "--force-check-gpg",
        f"--arch={names_of(request.architecture).debian}",
        # Without any, those that debootstrap knows.
        *([f"--keyring={_keyring(tree.parent, suite.keys)}"] if suite.keys else []),
        # apt in the image can't read an https mirror without these.
        *(["--include=ca-certificates"] if mirror.startswith("https:") else []),
        distro.codename,
        tree,
        mirror,
        *([f"/usr/share/debootstrap/scripts/{request.script}"] if request.script else []),
    )
    return program


def _packages(settings: Settings, request: BaseRequest, tree: Path) -> str:
    """Install a base image's packages with this machine's dnf or zypper.

    Their repositories are those of provision.toml, or of such a host.
    """
    distro, release = release_of(request.distro)
    own = repositories_of(request.distro, settings.config.distro(distro.id), settings.root)
    facts = settings.facts.distro
    is_such_a_host = facts.id == distro.id and distro.release(facts.version or "") == release
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
    folder = tree.parent
    report(Note(f"Making {request.name} with {distro.family}"))
    write_atomic(folder / "home/.rpmmacros", f"%_dbpath /{_DATABASE}\n")
    for name, content in rpm.repository_files(own, str(folder)).items():
        write_atomic(folder / name, content)
    (tree / _REPOSITORIES[distro.family]).mkdir(parents=True)
    # Scriptlets run in the tree, where the user's TMPDIR may not exist; "" is the default.
    environment = {"HOME": str(folder / "home"), "TMPDIR": ""}
    place = folder / "repos" if own else configured
    if distro.family == "dnf":
        # The release's name in its repositories ($releasever).
        version = facts.version if is_such_a_host and facts.version else release.version
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
    run(
        ["sh", "-c", _OWN_DATABASE, "sh", tree, folder / "database", _DATABASE],
        why="have the distro's own rpm keep the package database",
    )
    return distro.family


def _run(*argv: str | Path, environment: Mapping[str, str] | None = None) -> None:
    why = "make a base image"
    stream(argv, why=why, env=environment, on_line=lambda line: report(Output(line)))


def _tidy(tree: Path) -> None:
    for name in _FOREIGN:
        (tree / name).unlink(missing_ok=True)
    for folder in (tree / name for name in _UNTIDY):
        for path in () if folder.is_symlink() else folder.rglob("*"):
            if path.is_symlink() or not path.is_dir():
                path.unlink()


def _pack(tree: Path, archive: Path, request: BaseRequest, program: str) -> None:
    """Write a tree as the archive of an image of one layer, like the distro's own.

    No import by the engine: Docker 20.10 then takes any image for one of its own machine.
    Source: https://github.com/moby/docker-image-spec/blob/v1.3.1/spec.md
    """
    layer = archive.with_name("layer.tar")
    try:
        with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as packed:
            packed.add(tree, arcname=".", filter=_plain)
    except (tarfile.TarError, ValueError) as error:
        raise ProvisionError(
            f"'{tree}' could not be packed: {error}.",
            resolution="Run the command again, which makes the tree again.",
        ) from error
    with layer.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    # With a Z: Docker 20.10 takes another spelling of the same time for another time.
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    config = {
        "architecture": names_of(request.architecture).go,
        "os": "linux",
        "created": now,
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Cmd": ["bash"],
            "Labels": {
                "org.opencontainers.image.title": f"{request.distro.id} {request.distro.version}",
                "org.opencontainers.image.description": f"Made by {program}",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": now, "created_by": program}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [request.name], "Layers": [layer.name]}]
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as packed:
        packed.add(layer, arcname=layer.name)
        for name, document in (("config.json", config), ("manifest.json", manifest)):
            content = json.dumps(document).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    layer.unlink()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Drop user names: the numbers are the image's own, the names this machine's."""
    entry.uname = entry.gname = ""
    return entry
